"""Measuring a data module's training loader under given worker settings."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from lit_loader.datamodules import LoaderDataModule
from lit_loader.resources import read_throttled_s
from lit_loader.tuning.candidates import Candidate
from lit_loader.tuning.figures import Figures
from lit_loader.tuning.processes import Used, busy_cores_s, descendants, memory_bytes, used_by

__all__ = ["LoaderMeter"]

_SETTLE_S: Final = 0.25
"""Longest pause in which workers fill their queues before memory is read."""


class LoaderMeter:
    """Measures settings: a loader is made, its first batches are passed over, then whole turns are counted.

    A turn is one batch for each worker: with batches that arrive in bursts any other number would count parts of
    a burst. The batches that were ready before the clock started are passed over, so that the rate is what
    workers make, not what they had made. Epochs follow each other, as in training.

    Args:
        datamodule: Whose training loader is measured; its worker settings are set, and put back by `restore`.
        step_s: How long the main process computes after each batch, as a training step on the CPU does.

    Owns: the loader of the measurement under way; it is closed when that ends.
    """

    def __init__(self, datamodule: LoaderDataModule, *, step_s: float = 0.0) -> None:
        self._datamodule, self._step_s = datamodule, step_s
        self._given: dict[str, Any] = {}
        self._memory: dict[Candidate, int | None] = {}

    def __call__(self, candidate: Candidate, seconds: float) -> Figures:
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
        for name, value in self._given.items():
            setattr(self._datamodule, name, value)
        self._given.clear()

    def _apply(self, candidate: Candidate) -> None:
        self.restore()
        for name, value in candidate.settings().items():
            self._given[name] = getattr(self._datamodule, name)
            setattr(self._datamodule, name, value)

    def _measured(
        self, candidate: Candidate, batches: Iterator[int], seconds: float, start_s: float, before: set[int]
    ) -> Figures:
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
        return Figures(
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
    told = used_by([pid])
    return Used(time.process_time(), told.major_faults, told.read_bytes)  # finer than the kernel's ticks


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
