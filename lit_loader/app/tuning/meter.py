"""Measure a data module's training loader with given worker settings.

On a system without ``/proc``, the CPU time, memory and reads of workers are not reported.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from lit_loader.app.tuning.search import Candidate, Measurement
from lit_loader.datamodules import LoaderDataModule
from lit_loader.foundation.host import TICKS_A_SECOND, read_busy_s, read_counters, read_text, read_throttled_s

__all__ = ["LoaderMeter", "descendants", "memory_bytes", "used_by"]

# Longest pause in which workers fill their queues before memory is read.
_SETTLE_S: Final = 0.25


class LoaderMeter:
    """Callable that measures worker settings: build a loader, skip its first batches, then count whole turns.

    A turn is one batch of each worker. Batches arrive in bursts of that size, and any other number would count parts of
    a burst. Epochs follow each other, as in training.

    Args:
        datamodule: The data module to measure; its worker settings are changed during a measurement.
        step_s: Seconds for which the main process computes after each batch, like a training step on the CPU.

    Owns: the loader of the current measurement, which is closed at its end.
    """

    def __init__(self, datamodule: LoaderDataModule, *, step_s: float = 0.0) -> None:
        self._datamodule = datamodule
        self._step_s = step_s
        self._memory: dict[Candidate, int | None] = {}

    def __call__(self, candidate: Candidate, seconds: float) -> Measurement:
        """Measure settings for about ``seconds``, and for one turn at least."""
        original_workers = self._datamodule.workers
        self._datamodule.workers = replace(original_workers, **candidate.settings())
        other_processes = descendants(os.getpid())
        start = time.perf_counter()
        with warnings.catch_warnings():
            # torch warns about more workers than cores, but the measurement is there to find out.
            warnings.filterwarnings("ignore", message="This DataLoader will create .* worker processes in total")
            try:
                loader = self._datamodule.train_dataloader()
                batch_sizes = _iterate_batch_sizes(loader, self._datamodule.batch_size)
                next(batch_sizes)
                start_s = time.perf_counter() - start
                workers = sorted(descendants(os.getpid()) - other_processes)
                return self._measure(candidate, batch_sizes, workers, seconds=seconds, start_s=start_s)
            finally:
                self._datamodule.teardown()  # closes the loader
                self._datamodule.workers = original_workers

    def _measure(
        self,
        candidate: Candidate,
        batch_sizes: Iterator[int],
        workers: Sequence[int],
        *,
        seconds: float,
        start_s: float,
    ) -> Measurement:
        main = os.getpid()
        turn = max(1, candidate.num_workers)
        # Skip the batches that are already loaded, so that the rate is of loading batches, not of taking them.
        num_ready = candidate.num_workers * (1 + candidate.prefetch_factor)
        num_skipped = 0
        begin = time.perf_counter()
        while num_skipped < num_ready and (num_skipped == 0 or time.perf_counter() - begin < seconds):
            self._take(batch_sizes, turn)
            num_skipped += turn
        snapshot = _snapshot(main, workers)
        main_begin_s = time.process_time()  # finer than the kernel's ticks in /proc
        begin = time.perf_counter()
        samples = 0
        while (wall_s := time.perf_counter() - begin) < seconds or not samples:
            samples += self._take(batch_sizes, turn)
        main_s = time.process_time() - main_begin_s
        worker_s, read_bytes, throttled_s, busy_s = (
            end - start for start, end in zip(snapshot, _snapshot(main, workers), strict=True)
        )
        # Memory does not depend on what else runs, so one reading per candidate is enough.
        if candidate not in self._memory:
            # Let the workers fill their queues first.
            time.sleep(min(_SETTLE_S, num_ready * wall_s / samples * self._datamodule.batch_size))
            self._memory[candidate] = memory_bytes([main, *workers])
        return Measurement(
            candidate=candidate,
            samples_per_s=samples / wall_s,
            cpu_s_per_sample=(main_s + worker_s) / samples,
            main_cpu_s_per_sample=main_s / samples,
            start_s=start_s,
            wall_s=wall_s,
            memory_bytes=self._memory[candidate],
            read_bytes_per_sample=read_bytes / samples,
            throttled_s=throttled_s,
            other_cores=None if read_busy_s() is None else max(0.0, (busy_s - main_s - worker_s) / wall_s),
        )

    def _take(self, batch_sizes: Iterator[int], count: int) -> int:
        """Take some batches and return their number of samples."""
        samples = 0
        for _ in range(count):
            samples += next(batch_sizes)
            if self._step_s:
                _compute(self._step_s)
        return samples


def _iterate_batch_sizes(loader: Any, batch_size: int) -> Iterator[int]:
    """Load batches, epoch after epoch, and yield the number of samples of each."""
    while True:
        # Batches are not opened, since a collate function may return anything. Only the last one of an epoch can be
        # smaller, and with drop_last it does not arrive, so that the sampler needs no length.
        num_samples = math.inf if loader.drop_last else len(loader.sampler)
        for _ in loader:
            yield int(min(batch_size, num_samples))
            num_samples -= batch_size


def _snapshot(main: int, workers: Iterable[int]) -> tuple[float, int, float, float]:
    """Return the workers' CPU seconds, the bytes read by all processes, the throttled seconds, and the busy seconds."""
    worker_cpu_s, worker_read_bytes = used_by(workers)
    _, main_read_bytes = used_by([main])
    read_bytes = worker_read_bytes + main_read_bytes
    return worker_cpu_s, read_bytes, read_throttled_s() or 0.0, read_busy_s() or 0.0


def _compute(seconds: float) -> None:
    """Keep a core busy without holding the interpreter lock, like a training step."""
    # One product takes less than a millisecond, so the loop ends in time.
    factor = torch.full((192, 192), 1e-3)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(factor, factor)


def used_by(pids: Iterable[int], *, proc: Path = Path("/proc")) -> tuple[float, int]:
    """Return the CPU seconds of processes, in user and kernel mode, and the bytes that they read from storage.

    A process that has ended counts as zero.
    """
    cpu_s = 0.0
    read_bytes = 0
    for folder in (proc / str(pid) for pid in pids):
        if words := _stat(folder):
            cpu_s += (int(words[11]) + int(words[12])) / TICKS_A_SECOND
            read_bytes += read_counters(folder / "io").get("read_bytes:", 0)
    return cpu_s, read_bytes


def memory_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int | None:
    """Return the memory of processes, with each page divided by the number of processes that share it.

    Returns:
        Bytes, or None if the kernel does not report them.
    """
    # Pss rather than Rss: forked workers share most pages with the main process.
    kib = sum(read_counters(proc / str(pid) / "smaps_rollup").get("Pss:", 0) for pid in pids)
    return kib << 10 or None


def descendants(pid: int, *, proc: Path = Path("/proc")) -> set[int]:
    """Return the living child processes of a process, and their children, at any depth."""
    parents = {int(folder.name): int(words[1]) for folder in proc.glob("[0-9]*") if (words := _stat(folder))}
    processes: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation} - processes
        processes |= generation
    return processes


def _stat(folder: Path) -> list[str]:
    """Return the fields of ``stat`` from the state on; the name before them may contain blanks and parentheses."""
    return read_text(folder / "stat").rpartition(")")[2].split()
