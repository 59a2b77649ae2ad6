"""Cost of the monitor of a loop, and how close the headroom of a run is to a loop over one repeated batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.rounds import Pass, Rounds, compare, judge, run
from lit_loader import DataLoader, LoopMonitor
from lit_loader.monitoring import loop

# Detection samples take this much CPU: `benchmarks.detection`, exact decoding to float32.
SAMPLE_US = 6000.0
BATCH_SIZE = 4
NUM_BATCHES = 4000

Step = Callable[[Any], None]


class Stored(Dataset[torch.Tensor]):
    """Returns a stored sample, after a pause.

    Args:
        length: Number of samples.
        sample_s: Seconds of the pause.
    """

    def __init__(self, length: int, sample_s: float = 0.0) -> None:
        self.length = length
        self.sample_s = sample_s
        self.sample = torch.zeros(3)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sample_s:
            time.sleep(self.sample_s)
        return self.sample


def bare_pass(loader: DataLoader[Any]) -> Pass:
    """Return a pass over the loader alone."""
    return lambda: BATCH_SIZE * sum(1 for _ in loader)


def monitored_pass(loader: DataLoader[Any]) -> Pass:
    """Return a pass with a monitor, a report at its end as after an epoch, and one burst."""

    def work() -> int:
        monitor = LoopMonitor(loader, num_bursts=1)
        num_batches = sum(1 for _ in monitor.batches())
        monitor.diagnosis()
        return BATCH_SIZE * num_batches

    return work


def sleeping_step(seconds: float, batch: Any) -> None:
    """Wait, as for a device."""
    time.sleep(seconds)


def computing_step(num_products: int, batch: Any) -> None:
    """Compute, as a model on the CPU."""
    factor = torch.full((256, 256), 1e-3)
    for _ in range(num_products):
        torch.mm(factor, factor)


def loop_s(batches: Iterable[Any], step: Step) -> float:
    """Return the seconds per step of a loop."""
    num_steps = 0
    begin = time.perf_counter()
    for batch in batches:
        step(batch)
        num_steps += 1
    return (time.perf_counter() - begin) / num_steps


def headroom_ratios(step: Step, sample_s: float, rounds: int) -> Rounds:
    """Return the step of a burst, relative to the best loop: on one batch from memory, measured around each run."""
    ratios: Rounds = []
    for _ in range(rounds):
        loader = DataLoader(Stored(90 * BATCH_SIZE, sample_s), batch_size=BATCH_SIZE, seed=0, num_workers=2)
        repeated = [Stored(1)[0]] * 40
        with loader:
            before_s = loop_s(repeated, step)
            monitor = LoopMonitor(loader)
            loop_s(monitor.batches(), step)
            after_s = loop_s(repeated, step)
        free_step_s = monitor.report().free_step_s
        if free_step_s is None:
            raise RuntimeError("no burst was measured: the batches were not ready")
        ratios.append(free_step_s / ((before_s + after_s) / 2))
    return ratios


def main(rounds: int) -> None:
    """Compare loops with and without a monitor, and the headroom with a repeated batch."""
    loader = DataLoader(Stored(NUM_BATCHES * BATCH_SIZE), batch_size=BATCH_SIZE, seed=0)
    contenders = {"bare": bare_pass(loader), "monitored": monitored_pass(loader)}
    figures = compare("inline, batch 4", contenders, rounds=rounds, unit="sample")
    pairs = zip(figures.cpu_seconds["monitored"], figures.cpu_seconds["bare"], strict=True)
    more_us = [(monitored - bare) * 1e6 for monitored, bare in pairs]
    judge("monitor, CPU of a sample", more_us, at_most=0.01 * SAMPLE_US, unit=" us")
    # Bursts come early, so that a short run has several.
    loop._BURST_DISTANCE = 15
    for name, step in (("sleeping", partial(sleeping_step, 0.02)), ("computing", partial(computing_step, 30))):
        for kind, sample_s in (("fast", 0.0), ("slow", 0.02)):
            ratios = headroom_ratios(step, sample_s, rounds)
            judge(f"headroom, {name} step, {kind} data", ratios, at_least=0.95, at_most=1.05)


if __name__ == "__main__":
    run(main)
