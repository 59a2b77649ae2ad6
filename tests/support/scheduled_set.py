"""Datasets for tests of scheduling: they draw as any backend may, count what is made, and wait to be let go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader import sample_rng


class Draws(Dataset):
    """Draws from torch's generator and from the sample's own, in processes and threads alike."""

    def __init__(self, length: int = 24, *, bad: Sequence[int] = (), slow: Sequence[int] = (), slow_s: float = 0.01):
        self.length = length
        self.bad = frozenset(bad)
        self.slow = frozenset(slow)
        self.slow_s = slow_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.slow:
            time.sleep(self.slow_s)
        if index in self.bad:
            raise LookupError(f"sample {index}")
        return {"index": index, "torch": torch.rand(2), "own": sample_rng().python.random()}


class Counted(Dataset):
    """Writes down every sample that is made, in a file that all backends can add to."""

    def __init__(self, path: Path, length: int = 16, seconds: float = 0.0):
        self.path = path
        self.length = length
        self.seconds = seconds
        path.touch()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")
        return index

    @property
    def made(self) -> int:
        """Samples that were made until now."""
        return self.path.stat().st_size

    def settled(self, expected: int, within_s: float = 10.0) -> int:
        """Wait until as many as expected are made, and a short time more; return how many are."""
        deadline = time.monotonic() + within_s
        while self.made < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        return self.made


class Gated(Dataset):
    """Some samples wait until their gate is opened."""

    def __init__(self, gates: dict[int, Any], length: int = 24):
        self.gates = gates
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.gates:
            assert self.gates[index].wait(30), "nobody opened the gate"
        return index
