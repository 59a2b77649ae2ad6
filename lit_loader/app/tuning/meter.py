"""Measuring a data module's training loader under given worker settings.

What processes have used is read from ``/proc``; where there is none, nothing is reported.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from lit_loader.app.tuning.search import Candidate, Measurement
from lit_loader.datamodules import LoaderDataModule
from lit_loader.foundation.host import read_counters, read_text, read_throttled_s

__all__ = ["LoaderMeter", "busy_cores_s", "descendants", "memory_bytes", "used_by"]

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
        self._datamodule.workers = replace(self._given, **candidate.settings())
        before = descendants(os.getpid())
        start = time.perf_counter()
        with warnings.catch_warnings():
            # torch advises against more workers than cores; whether they pay is what is being measured
            warnings.filterwarnings(
                "ignore", message="This DataLoader will create .* worker processes in total"
            )
            try:
                loader = self._datamodule.train_dataloader()
                batches = _sizes_of_batches(loader, self._datamodule.batch_size)
                next(batches)
                return self._measured(candidate, batches, seconds, time.perf_counter() - start, before)
            finally:
                self._datamodule.teardown()  # closes the loader

    def restore(self) -> None:
        """Put the data module's own worker settings back."""
        self._datamodule.workers = self._given

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
        first, first_main_s, begun = _snapshot(main, workers), time.process_time(), time.perf_counter()
        samples = 0
        while (wall_s := time.perf_counter() - begun) < seconds or not samples:
            samples += self._take(batches, turn)
        main_s = time.process_time() - first_main_s  # finer than the kernel's ticks
        worker_s, read, throttled_s, busy_s = (
            b - a for a, b in zip(first, _snapshot(main, workers), strict=True)
        )
        if candidate not in self._memory:  # once is enough: it does not depend on what else runs
            time.sleep(min(_SETTLE_S, ready * wall_s / samples * self._datamodule.batch_size))
            self._memory[candidate] = memory_bytes([main, *workers])
        return Measurement(
            candidate=candidate,
            samples_per_s=samples / wall_s,
            cpu_s_per_sample=(main_s + worker_s) / samples,
            main_cpu_s_per_sample=main_s / samples,
            start_s=start_s,
            wall_s=wall_s,
            memory_bytes=self._memory[candidate],
            read_bytes_per_sample=read / samples,
            throttled_s=throttled_s,
            other_cores=None if busy_cores_s() is None else max(0.0, (busy_s - main_s - worker_s) / wall_s),
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


def _snapshot(main: int, workers: Iterable[int]) -> tuple[float, int, float, float]:
    """Return the workers' CPU seconds, the bytes that all read, and seconds of throttling and of busy cores, so far."""
    (cpu_s, read), (_, own_read) = used_by(workers), used_by([main])
    return cpu_s, read + own_read, read_throttled_s() or 0.0, busy_cores_s() or 0.0


def _compute(seconds: float) -> None:
    """Keep a core busy without holding the interpreter lock, as a training step does."""
    factor = torch.full((192, 192), 1e-3)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(factor, factor)


def used_by(pids: Iterable[int], *, proc: Path = Path("/proc")) -> tuple[float, int]:
    """Return the CPU seconds, in user and kernel mode, that processes have used, and the bytes read from storage.

    One that is gone adds nothing.
    """
    cpu_s, read_bytes = 0.0, 0
    for folder in (proc / str(pid) for pid in pids):
        if words := _stat(folder):
            cpu_s += (int(words[11]) + int(words[12])) / _TICKS_A_SECOND
            read_bytes += read_counters(folder / "io").get("read_bytes:", 0)
    return cpu_s, read_bytes


def memory_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int | None:
    """Return the memory of processes, each page divided by the number of processes that share it.

    Returns:
        Bytes, or None if the kernel does not report them.
    """
    kib = sum(read_counters(proc / str(pid) / "smaps_rollup").get("Pss:", 0) for pid in pids)
    return kib << 10 or None


def descendants(pid: int, *, proc: Path = Path("/proc")) -> set[int]:
    """Return the processes that a process started, and those that these started, as long as they live."""
    parents = {int(folder.name): int(words[1]) for folder in proc.glob("[0-9]*") if (words := _stat(folder))}
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def busy_cores_s(*, proc: Path = Path("/proc")) -> float | None:
    """Return the seconds for which this host's cores have been busy, all together, or None if it is not reported."""
    words = read_text(proc / "stat").partition("\n")[0].split()  # "cpu" and the ticks of all cores
    ticks = [int(word) for word in words[1:9]]  # what guests used is in the first two
    idle = sum(ticks[3:5])  # and waiting for disks
    return (sum(ticks) - idle) / _TICKS_A_SECOND if ticks else None


def _stat(folder: Path) -> list[str]:
    """Return the fields of ``stat`` that stand behind the name, which may hold anything; the first is the state."""
    return read_text(folder / "stat").rpartition(")")[2].split()
