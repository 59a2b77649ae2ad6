"""Monitor of a training loop: it divides its time into waiting, transfer and steps.

NOTE [Bursts]
    The step's own rate cannot be seen while workers take cores from it, or while the loop waits. So a few times in a
    run the loader holds batches back until several are ready, and its workers pause until those are delivered. The
    steps between them wait for nothing. The device is waited for before and after such a burst, and never in another
    step. Bursts are left out of all other figures. Batches and their order do not change.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, NamedTuple

import torch

from lit_loader.engine.stats import LoaderStats
from lit_loader.foundation.host import Resources, read_busy_s, read_resources
from lit_loader.loader import DataLoader
from lit_loader.monitoring.diagnosis import Verdict, diagnose
from lit_loader.monitoring.report import NO_STATS, DataReport, LoaderSettings, add_stats

__all__ = ["LoopMonitor", "LoopTotals", "StepRecord", "find_loader"]

# Steps before the first burst, and steps from one to the next, by which the cost of a burst is small. Primes, so that
# bursts seldom meet a validation every 10 or 50 steps, which ends them.
_FIRST_BURST = 31
_BURST_DISTANCE = 97

# Smallest and largest number of batches in a burst; a single step says little.
_BURST_SIZE = (6, 16)

# Share of a burst that may be waiting; a longer wait shows that the batches were not ready.
_MAX_BURST_WAIT = 0.02


class StepRecord(NamedTuple):
    """Times of one step, by ``time.perf_counter()``.

    Attributes:
        start_s: End of the step before, from which the batch was waited for.
        wait_s: Seconds of waiting for the batch.
        step_start_s: Time at which the step began.
        end_s: Time at which the step ended.
    """

    start_s: float
    wait_s: float
    step_start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTotals:
    """Sums over a loop so far; the difference of two is a period.

    Attributes:
        total_s: Seconds of the loop.
        gap_s: Seconds between steps, with waiting and transfer.
        first_wait_s: Seconds of waiting for the first batch of each epoch.
        num_epochs: Number of epochs.
        num_steps: Number of steps.
        num_images: Number of images in them.
        main_cpu_s: CPU seconds of this process.
        host_cpu_s: CPU seconds of all processes of the host.
        stats: Statistics of the loaders.
    """

    total_s: float = 0.0
    gap_s: float = 0.0
    first_wait_s: float = 0.0
    num_epochs: int = 0
    num_steps: int = 0
    num_images: int = 0
    main_cpu_s: float = 0.0
    host_cpu_s: float = 0.0
    stats: LoaderStats = NO_STATS

    def __sub__(self, earlier: LoopTotals) -> LoopTotals:
        values = {entry.name: getattr(self, entry.name) - getattr(earlier, entry.name) for entry in fields(LoopTotals)}
        return LoopTotals(**values)


class _Snapshot(NamedTuple):
    """Counters of this process and of the loaders at the start of an interval of the loop."""

    time_s: float
    main_cpu_s: float
    host_cpu_s: float
    stats: tuple[LoaderStats, ...]


class _Burst:
    """Steps for which all batches are ready: see NOTE [Bursts].

    Args:
        loader: The loader, which collects batches from now on.
        size: Number of batches that it collects.
        synchronize: Waits for the device.
    """

    def __init__(self, loader: DataLoader[Any], size: int, synchronize: Callable[[], None]) -> None:
        self._loader = loader
        # The first step may wait for other ranks that collect batches. With a transfer ahead, workers begin again
        # during the last step.
        self._num_steps = size - 3
        self._synchronize = synchronize
        self._num_batches = 0
        self._start: LoaderStats | None = None
        self._before = loader.stats()
        self._end: LoaderStats | None = None
        self._collected = False
        loader.hold_batches(size)

    def add_batch(self) -> bool:
        """Count a batch that arrived, before its step; return True if it ends the burst."""
        if self._start is None:
            if self._collected:
                self._synchronize()
                self._start = self._loader.stats()
                self._num_batches = 0
                return False
            # A batch that was already taken for its transfer arrives before the others are collected.
            if self._loader.stats().hold_s > self._before.hold_s:
                self._collected = True
                return False
            self._num_batches += 1
            return self._num_batches > self._num_steps
        self._num_batches += 1
        if self._num_batches < self._num_steps:
            return False
        self._synchronize()
        self._end = self._loader.stats()
        return True

    def cancel(self) -> None:
        """Withdraw the request for batches, which the loader would otherwise collect in a later step."""
        self._loader.hold_batches(0)

    def step_s(self) -> float | None:
        """Return the seconds per step after the last batch, or None if a batch was not ready."""
        if self._start is None or self._end is None:
            return None
        burst = self._end - self._start
        was_ready = burst.wait_s <= _MAX_BURST_WAIT * burst.time_s and burst.hold_s == 0
        return burst.time_s / self._num_steps if was_ready else None


class LoopMonitor:
    """Measures why a training loop waits: for Fabric, and for loops of your own.

    The monitor counts the time in which the loader has no batch, and no time of the device: it does not synchronise,
    except around a few bursts in which all batches are ready, which measure the step alone. ::

        monitor = LoopMonitor(loader)
        for epoch in range(num_epochs):
            for batch in monitor.batches():
                step(batch)
            validate()  # between epochs nothing is counted; within an epoch, use `excluded`
        for verdict in monitor.diagnosis():
            print(verdict.text())

    Args:
        loader: A `lit_loader.DataLoader`, the loader that Fabric makes of one, or None to set ``loaders`` later.
        device: Device of the model, which bursts wait for; None for the loader's device.
        num_bursts: Number of bursts, with one loader that has a seed, counting those that a validation ends; 0 for
            none, and the headroom is then an upper bound.
        num_records: Number of the last steps whose times are stored in ``records``, for a timeline.
        rank: Rank of this process, for the report.

    Attributes:
        loaders: The loaders of lit_loader whose statistics count; several if a step takes a batch of each.
        settings: Settings of the loader, for the diagnosis; None to read them from the loader.
        records: Times of the last steps.

    Runs in: the thread of the loop.

    Raises:
        TypeError: If ``loader`` is another loader.
    """

    def __init__(
        self,
        loader: Any = None,
        *,
        device: torch.device | str | None = None,
        num_bursts: int = 3,
        num_records: int = 0,
        rank: int = 0,
    ) -> None:
        self.loaders: list[DataLoader[Any]] = [] if loader is None else [find_loader(loader)]
        self._iterable = loader
        self.device = None if device is None else torch.device(device)
        self.settings: LoaderSettings | None = None
        self.records: deque[StepRecord] = deque(maxlen=num_records)
        self.rank = rank
        self._num_bursts = num_bursts
        self._totals = LoopTotals()
        self._snapshot: _Snapshot | None = None
        # Sums since the snapshot.
        self._interval = LoopTotals()
        self._gap_s = 0.0
        self._num_steps = 0
        self._num_epoch_steps = 0
        self._num_images = 0
        self._mark_s = 0.0
        self._record_start = (0.0, 0.0)
        self._gap_wait_s = 0.0
        self._epoch_wait_s: float | None = None
        self._burst: _Burst | None = None
        self._next_burst = _FIRST_BURST if num_bursts else None
        self._free_steps_s: list[float] = []
        self._resources: Resources | None = None

    # -- intervals ------------------------------------------------------------------------------------------

    def start_epoch(self, loaders: Sequence[DataLoader[Any]] | None = None) -> LoopTotals:
        """Start to wait for the first batch of an epoch, and return the sums so far.

        Args:
            loaders: The loaders from this epoch on; None for the same as before.
        """
        if self._epoch_wait_s is None:
            self.pause()
            self._totals = replace(self._totals, num_epochs=self._totals.num_epochs + 1)
        # Otherwise the last epoch had no step yet, and begins again.
        self._snapshot = None
        self._num_epoch_steps = 0
        if loaders is not None:
            self.loaders = list(loaders)
        self.resume()
        self._epoch_wait_s = self._wait_s
        return self._totals

    def resume(self) -> None:
        """Start or continue to count time; without effect while it is counted."""
        if self._snapshot is None:
            # During a validation workers have no tasks.
            self._snapshot = self._take_snapshot(restart_idle=True)
            self._mark_s = self._snapshot.time_s
            self._gap_wait_s = self._wait_s

    def pause(self) -> None:
        """Stop to count time, for a validation or between epochs; without effect while it is not counted."""
        if self._burst is not None:
            self._burst.cancel()
            self._burst = None
        if self._snapshot is not None:
            self._totals = self.totals()
            self._snapshot = None
            self._gap_s = 0.0
            self._num_steps = 0
            self._num_images = 0

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave out the time of a block within an epoch, such as a validation."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    # -- steps ----------------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield the batches of an epoch; a step lasts until the next batch is asked for.

        Args:
            loader: The iterable that yields the batches, such as a progress bar around the loader; None for the loader.
        """
        iterable = self._iterable if loader is None else loader
        self.start_epoch()
        try:
            for batch in iterable:
                self.start_step()
                yield batch
                self.end_step()
        finally:
            self.pause()

    def start_step(self, num_images: int = 0) -> None:
        """Start a step, after its batch arrived; without `start_epoch` before it, the time so far does not count.

        Args:
            num_images: Number of images in the batch, for the report.
        """
        if self._burst is not None:
            if self._burst.add_batch():
                self._end_burst()
            return
        if self._snapshot is None:
            self.start_epoch()
        now = time.perf_counter()
        if self._epoch_wait_s is not None:
            first_wait_s = self._totals.first_wait_s + self._wait_s - self._epoch_wait_s
            self._totals = replace(self._totals, first_wait_s=first_wait_s)
            self._epoch_wait_s = None
        self._gap_s += now - self._mark_s
        self._num_images += num_images
        if self.records.maxlen:
            self._record_start = (self._mark_s, self._wait_s - self._gap_wait_s)
        self._mark_s = now

    def end_step(self) -> None:
        """End a step, and start to wait for the next batch."""
        self._num_epoch_steps += 1
        if self._burst is not None:
            return
        now = time.perf_counter()
        if self.records.maxlen:
            start_s, wait_s = self._record_start
            self.records.append(StepRecord(start_s, wait_s, self._mark_s, now))
            self._gap_wait_s = self._wait_s
        self._mark_s = now
        self._num_steps += 1
        if self._next_burst is not None and self._totals.num_steps + self._num_steps >= self._next_burst:
            self._begin_burst()

    # -- bursts ---------------------------------------------------------------------------------------------

    def _begin_burst(self) -> None:
        # With several loaders a step takes a batch of each, and their bursts would end at different times. Without a
        # seed, batches that are made earlier could share draws with the training.
        if len(self.loaders) != 1 or self.loaders[0].seed is None:
            self._next_burst = None
            return
        loader = self.loaders[0]
        smallest, largest = _BURST_SIZE
        size = min(largest, max(smallest, loader.num_workers * (loader.prefetch_factor or 0)))
        # Without a length, an epoch that ends within the burst costs only that burst.
        with suppress(TypeError):
            # One batch may already be taken for its transfer.
            size = min(size, len(loader) - self._num_epoch_steps - 1)
        if size < smallest:
            # Begin it in the next epoch.
            return
        self.pause()
        self._num_bursts -= 1
        self._next_burst = self._totals.num_steps + _BURST_DISTANCE if self._num_bursts else None
        self._burst = _Burst(loader, size, self._synchronize)

    def _end_burst(self) -> None:
        assert self._burst is not None
        step_s = self._burst.step_s()
        if step_s is not None:
            self._free_steps_s.append(step_s)
        self._burst = None
        self.resume()

    def _synchronize(self) -> None:
        device = self.device
        if device is None and self.loaders:
            device = self.loaders[0].device
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    # -- figures --------------------------------------------------------------------------------------------

    @property
    def _wait_s(self) -> float:
        return sum(loader.wait_s for loader in self.loaders)

    def _take_snapshot(self, *, restart_idle: bool = False) -> _Snapshot:
        stats = tuple(loader.stats(restart_idle=restart_idle) for loader in self.loaders)
        return _Snapshot(time.perf_counter(), time.process_time(), read_busy_s() or 0.0, stats)

    def totals(self) -> LoopTotals:
        """Return the sums so far."""
        if self._snapshot is None:
            return self._totals
        start = self._snapshot
        end = self._take_snapshot()
        stats = self._totals.stats
        for loader_end, loader_start in zip(end.stats, start.stats, strict=True):
            stats = add_stats(stats, loader_end - loader_start)
        totals = self._totals
        return replace(
            totals,
            total_s=totals.total_s + end.time_s - start.time_s,
            gap_s=totals.gap_s + self._gap_s,
            num_steps=totals.num_steps + self._num_steps,
            num_images=totals.num_images + self._num_images,
            main_cpu_s=totals.main_cpu_s + end.main_cpu_s - start.main_cpu_s,
            host_cpu_s=totals.host_cpu_s + end.host_cpu_s - start.host_cpu_s,
            stats=stats,
        )

    def report(self, since: LoopTotals | None = None) -> DataReport:
        """Return the report of the loop so far.

        Args:
            since: An earlier value of `totals`, from which the report begins; None for the start of the loop.
        """
        period = self.totals() - (since or LoopTotals())
        # Without a loader of lit_loader, all time between steps counts as waiting.
        stats = period.stats if self.loaders else replace(period.stats, wait_s=period.gap_s)
        # The loop does not include the collecting of batches, even if user code called `hold_batches`.
        report = DataReport(
            total_s=period.total_s - stats.hold_s,
            between_s=max(0.0, period.gap_s - stats.hold_s - stats.wait_s - stats.transfer_s),
            first_wait_s=period.first_wait_s,
            num_epochs=period.num_epochs,
            num_steps=period.num_steps,
            num_images=period.num_images,
            stats=stats,
            main_cpu_s=period.main_cpu_s,
            free_step_s=median(self._free_steps_s) if self._free_steps_s else None,
            settings=self.settings or self.loader_settings(),
            host=self._host(),
            rank=self.rank,
        )
        if not period.host_cpu_s or not period.total_s:
            return report
        other_cores = period.host_cpu_s / period.total_s - report.cores_used
        return replace(report, other_cores=max(0.0, other_cores))

    def _host(self) -> Resources:
        # A progress bar asks for a report twice a second, and reading all control groups takes a millisecond.
        if self._resources is None:
            self._resources = read_resources()
        device = self.device or (self.loaders[0].device if self.loaders else None)
        return replace(self._resources, has_accelerator=device is not None and device.type != "cpu")

    def loader_settings(self) -> LoaderSettings:
        """Return the settings of the first loader."""
        if not self.loaders:
            return LoaderSettings()
        loader = self.loaders[0]
        return LoaderSettings(
            num_workers=loader.num_workers,
            worker_method=loader.worker_method,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            pin_memory=loader.pin_memory,
            copies_ahead=loader.device is not None and loader.device.type != "cpu",
            num_loaders=len(self.loaders),
        )

    def diagnosis(self, *, ranks: Sequence[DataReport] = ()) -> list[Verdict]:
        """Return why the loop waits, the main cause first.

        Args:
            ranks: Reports of all ranks, as `gather_reports` returns them.
        """
        return diagnose(self.report(), ranks=ranks)


def find_loader(loader: Any) -> DataLoader[Any]:
    """Return a loader of lit_loader, also if Fabric has wrapped it.

    Raises:
        TypeError: If it is another loader.
    """
    # Fabric's wrapper, which this package does not import, has the loader under this name.
    inner = getattr(loader, "_dataloader", loader)
    if isinstance(inner, DataLoader):
        return inner
    raise TypeError(
        f"expected a lit_loader.DataLoader, which measures its workers, got a {type(inner).__name__}; replace it by "
        "lit_loader.DataLoader with the same arguments"
    )
