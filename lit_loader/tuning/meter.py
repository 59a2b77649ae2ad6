"""Measuring a data module's training loader under given worker settings.

What processes have used is read from ``/proc``; where there is none, nothing is reported.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from lit_loader.datamodules import LoaderDataModule
from lit_loader.resources import read_throttled_s
from lit_loader.tuning.candidates import Candidate, Measurement

__all__ = ["LoaderMeter", "Used", "busy_cores_s", "descendants", "memory_bytes", "used_by"]

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

_SETTLE_S: Final = 0.25
"""Longest pause in which workers fill their queues before memory is read."""


class LoaderMeter:
    """Measures settings: a loader is made, its first batches are passed over, then whole turns are counted.

    A turn is one batch for each worker: with batches that arrive in bursts any other number would count parts of
    a burst. The batches that were ready before the clock started are passed over, so that the rate is that of
    making batches, not of taking ready ones. Epochs follow each other, as in training.

    Args:
        datamodule: Whose training loader is measured; its worker settings are set, and put back by `restore`.
        step_s: How long the main process computes after each batch, as a training step on the CPU does.

    Owns: the loader of the measurement under way; it is closed when that ends.
    """

    def __init__(self, datamodule: LoaderDataModule, *, step_s: float = 0.0) -> None:
        self._datamodule, self._step_s = datamodule, step_s
        self._given = datamodule.workers
        self._memory: dict[Candidate, int | None] = {}

    def __call__(self, candidate: Candidate, seconds: float) -> Measurement:
        """Measure for about so many seconds; slow batches take longer, since one turn is counted at least."""
        self._apply(candidate)
        before = descendants(os.getpid())
        start = time.perf_counter()
        with _quiet_about_many_workers():
            try:
                loader = self._datamodule.train_dataloader()
                batches = _sizes_of_batches(loader, self._datamodule.batch_size)
                next(batches)
                start_s = time.perf_counter() - start
                return self._measured(candidate, batches, seconds, start_s, before)
            finally:
                self._datamodule.teardown()  # closes the loader

    def restore(self) -> None:
        """Put the data module's own worker settings back."""
        self._datamodule.workers = self._given

    def _apply(self, candidate: Candidate) -> None:
        self._datamodule.workers = replace(self._given, **candidate.settings())

    def _measured(
        self, candidate: Candidate, batches: Iterator[int], seconds: float, start_s: float, before: set[int]
    ) -> Measurement:
        main, workers = os.getpid(), sorted(descendants(os.getpid()) - before)
        turn = max(1, candidate.num_workers)
        ready, begun = candidate.num_workers * (1 + candidate.prefetch_factor), time.perf_counter()
        passed = 0
        while passed < ready and (passed == 0 or time.perf_counter() - begun < seconds):
            self._take(batches, turn)
            passed += turn
        first, first_main, throttled = used_by(workers), _main_used(main), read_throttled_s()
        busy, begun = busy_cores_s(), time.perf_counter()
        samples = 0
        while (wall_s := time.perf_counter() - begun) < seconds or not samples:
            samples += self._take(batches, turn)
        own = _main_used(main) - first_main
        used = used_by(workers) - first + own
        busy_after, throttled_after = busy_cores_s(), read_throttled_s()
        others = None
        if busy is not None and busy_after is not None:
            others = max(0.0, (busy_after - busy - used.cpu_s) / wall_s)
        if candidate not in self._memory:  # once is enough: it does not depend on what else runs
            time.sleep(min(_SETTLE_S, ready * wall_s / samples * self._datamodule.batch_size))
            self._memory[candidate] = memory_bytes([main, *workers])
        return Measurement(
            candidate=candidate,
            samples_per_s=samples / wall_s,
            cpu_s_per_sample=used.cpu_s / samples,
            main_cpu_s_per_sample=own.cpu_s / samples,
            start_s=start_s,
            wall_s=wall_s,
            memory_bytes=self._memory[candidate],
            major_faults_per_sample=used.major_faults / samples,
            read_bytes_per_sample=used.read_bytes / samples,
            throttled_s=(throttled_after or 0.0) - (throttled or 0.0),
            other_cores=others,
        )

    def _take(self, batches: Iterator[int], count: int) -> int:
        samples = 0
        for _ in range(count):
            samples += next(batches)
            if self._step_s:
                _compute(self._step_s)
        return samples


def _sizes_of_batches(loader: Any, batch_size: int) -> Iterator[int]:
    """Yield how many samples each batch has, epoch after epoch."""
    while True:
        left = None if loader.drop_last else len(loader.sampler)
        for _ in loader:
            size = batch_size if left is None else min(batch_size, left)
            left = None if left is None else left - size
            yield size


def _main_used(pid: int) -> Used:
    used = used_by([pid])
    return Used(time.process_time(), used.major_faults, used.read_bytes)  # finer than the kernel's ticks


def _compute(seconds: float) -> None:
    """Keep a core busy without holding the interpreter lock, as a training step does."""
    factor = torch.full((192, 192), 1e-3)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(factor, factor)


@contextmanager
def _quiet_about_many_workers() -> Iterator[None]:
    """Leave out torch's advice on more workers than cores: whether they pay is what is being measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create .* worker processes in total")
        yield


@dataclass(frozen=True)
class Used:
    """Totals since the start of one process, or the sum of several.

    Attributes:
        cpu_s: CPU seconds, in user and kernel mode.
        major_faults: Page faults that waited for storage.
        read_bytes: Bytes fetched from storage.
    """

    cpu_s: float = 0.0
    major_faults: int = 0
    read_bytes: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.cpu_s + other.cpu_s,
            self.major_faults + other.major_faults,
            self.read_bytes + other.read_bytes,
        )

    def __sub__(self, other: Used) -> Used:
        return Used(
            self.cpu_s - other.cpu_s,
            self.major_faults - other.major_faults,
            self.read_bytes - other.read_bytes,
        )


def used_by(pids: Iterable[int], *, proc: Path = Path("/proc")) -> Used:
    """Return what processes have used; one that is gone adds nothing."""
    return sum((_used_by(proc / str(pid)) for pid in pids), Used())


def memory_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int | None:
    """Return the memory of processes, each page divided by the number of processes that share it.

    Returns:
        Bytes, or None if the kernel does not report them.
    """
    sizes = [_proportional_bytes(proc / str(pid)) for pid in pids]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def descendants(pid: int, *, proc: Path = Path("/proc")) -> set[int]:
    """Return the processes that a process started, and those that these started, as long as they live."""
    parents: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        words = _stat(folder)
        if words:
            parents[int(folder.name)] = int(words[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def busy_cores_s(*, proc: Path = Path("/proc")) -> float | None:
    """Return the seconds for which this host's cores have been busy, all together, or None if it is not reported."""
    for line in _text(proc / "stat").splitlines():
        if line.startswith("cpu "):
            ticks = [int(word) for word in line.split()[1:9]]  # what guests used is in the first two
            user_to_steal, idle_and_waiting = sum(ticks), sum(ticks[3:5])
            return (user_to_steal - idle_and_waiting) / _TICKS_A_SECOND
    return None


def _used_by(folder: Path) -> Used:
    words = _stat(folder)
    if not words:
        return Used()
    read = [line for line in _text(folder / "io").splitlines() if line.startswith("read_bytes:")]
    ticks = int(words[11]) + int(words[12])
    return Used(ticks / _TICKS_A_SECOND, int(words[9]), int(read[0].split()[1]) if read else 0)


def _proportional_bytes(folder: Path) -> int | None:
    for name in ("smaps_rollup", "smaps"):
        shares = [line for line in _text(folder / name).splitlines() if line.startswith("Pss:")]
        if shares:
            return sum(int(line.split()[1]) << 10 for line in shares)
    return None


def _stat(folder: Path) -> list[str]:
    """Return the fields of ``stat`` that stand behind the name, which may hold anything; the first is the state."""
    return _text(folder / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone, or another user's
        return ""
