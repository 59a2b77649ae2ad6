"""Small datasets and functions for tests; spawned workers import them by name."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from lit_loader import get_worker_info
from lit_loader.seeding import sample_rng


class Drawing(Dataset):
    """Each sample holds its index and a draw from every generator there is."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = sample_rng()
        return {
            "index": index,
            "torch": torch.rand(3),
            "numpy": np.random.rand(2),
            "python": random.random(),
            "own_torch": torch.rand(2, generator=rng.torch),
            "own_numpy": rng.numpy.random(),
            "own_python": rng.python.random(),
        }


class DrawingBatches(Drawing):
    """The same through ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """A stream that each worker ends at another point."""

    def __init__(self, length: int = 11, *, uneven: int = 3) -> None:
        self.length = length
        self.uneven = uneven

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker = info.id if info else 0
        for count in range(self.length + self.uneven * worker):
            yield {"worker": worker, "count": count, "draw": torch.rand(2)}


class Point(NamedTuple):
    x: Any
    y: Any


class Points(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Point:
        return Point(x=np.float32(index), y=torch.full((2,), index))


class Mixed(Dataset):
    """Dicts of everything that default collation takes."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "tensor": torch.arange(index, index + 3),
            "array": np.ones((2, 2)) * index,
            "int": index,
            "float": index / 2,
            "str": f"s{index}",
            "bytes": b"b",
            "nested": (index, [torch.tensor(index)], {"deep": Point(index, "p")}),
        }


class Failing(Dataset):
    """Some samples raise."""

    def __init__(self, bad: dict[int, Exception], length: int = 12) -> None:
        self.bad = bad
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.bad[index]
        return index


class Slow(Dataset):
    def __init__(self, seconds: float, length: int = 64) -> None:
        self.seconds = seconds
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


class Pids(Dataset):
    """The process that made each sample."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Dying(Dataset):
    """One sample ends its process."""

    def __init__(self, deadly: int, signal_number: int | None = None) -> None:
        self.deadly = deadly
        self.signal_number = signal_number

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == self.deadly:
            if self.signal_number is None:
                os._exit(3)
            os.kill(os.getpid(), self.signal_number)
            time.sleep(10)
        return index


def outcomes(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of an iterator, with an error instead of each batch that failed."""
    while True:
        try:
            outcome = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            outcome = error
        yield outcome
        del outcome  # or the batch would live until the next one


def collate_with_draw(samples: list[Any]) -> tuple[list[Any], torch.Tensor]:
    return samples, torch.rand(2)


def plain(value: Any) -> Any:
    """Return a batch as nested lists, so that two can be compared to the bit."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return [str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(plain(item) for item in value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(plain(item) for item in vars(value).values())]
    return value
