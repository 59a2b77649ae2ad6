"""Training loops that are slowed on purpose at one place, and the causes that a monitor finds."""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.foundation.stage_times import DECODING, READING, TRANSFORMING
from lit_loader.monitoring import LoopMonitor, diagnose
from tests.support.simulated_device import Prompt, present

CONTEXTS = {"read": READING, "decode": DECODING, "transform": TRANSFORMING, "sample": nullcontext()}


class SlowSet(Dataset):
    """Sleeps in one stage of each sample."""

    def __init__(self, stage, seconds, length):
        self.stage = stage
        self.seconds = seconds
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with CONTEXTS.get(self.stage) or nullcontext():
            time.sleep(self.seconds * (self.stage in CONTEXTS))
        return torch.zeros(2)


class SlowCollate:
    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, samples):
        time.sleep(self.seconds)
        return torch.stack(samples)


def slow_device(seconds):
    """Return a device that blocks the host during copies, like copies of pageable memory."""

    class Slow(Prompt):
        def copy_to_device(self, tensor):
            time.sleep(seconds)
            return super().copy_to_device(tensor)

    return Slow


def run_loop(cause, *, seconds=0.02, num_batches=6, rank=0, monkeypatch=None, **settings):
    """Run a loop that is slowed at one place, and return its report."""
    arguments = {"batch_size": 1, "seed": 0} | settings
    if cause == "collate":
        arguments["collate_fn"] = SlowCollate(seconds)
    if cause == "transfer":
        present(monkeypatch, slow_device(seconds))
        arguments["device"] = "cuda"
    loader = DataLoader(SlowSet(cause, seconds, num_batches), **arguments)
    monitor = LoopMonitor(loader, rank=rank, num_bursts=0)
    with loader:
        for _ in monitor.batches():
            time.sleep(seconds * (cause == "consumer"))
    return monitor.report()


def first_cause(cause, *, monkeypatch=None, **settings):
    """Return the first cause of a loop that is slowed at one place; other processes of the machine do not count."""
    ranks = []
    if cause == "slow rank":
        ranks = [run_loop("consumer", rank=0, **settings), run_loop("read", rank=1, **settings)]
        report = ranks[0]
    else:
        report = run_loop(cause, monkeypatch=monkeypatch, **settings)
    # Half of the loop: the load of the machine must not count as waiting.
    causes = [verdict.cause for verdict in diagnose(report, ranks=ranks, above=0.5)]
    return next(name for name in causes if name != "busy host")
