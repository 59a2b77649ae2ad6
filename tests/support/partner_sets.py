"""Toy datasets whose samples are mixed, which draw wherever a dataset may draw; spawned workers import them by name."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

import lit_loader
from lit_loader import get_worker_info
from lit_loader.mixing import Mix, PartnerDataset, mix_parts
from lit_loader.samplers.weighted import AliasTable
from lit_loader.seeding import RngPurpose, sample_rng
from lit_loader.seeding.generators import context

MAX_MEMBERS = 9
"""Rows of ``members`` in a sample."""


def draw_everywhere(*, shared: bool) -> Tensor:
    """Return draws of the present key: float64 ``(5,)``, or ``(7,)`` if generators that threads share are included."""
    rng = sample_rng()
    draws = [
        *torch.rand(2).tolist(),
        torch.rand((), generator=rng.torch).item(),
        rng.numpy.random(),
        rng.python.random(),
    ]
    if shared:
        draws += [np.random.rand(), random.random()]
    return torch.tensor(draws, dtype=torch.float64)


class Plain(Dataset):
    """Samples that draw when they are read and when they are transformed.

    Args:
        length: Number of samples.
        shared: True to draw from the generators of numpy and random too, which threads share.
        bad: Errors that reading an index raises, after its draws.
    """

    def __init__(self, length: int = 23, *, shared: bool = False, bad: dict[int, Exception] | None = None) -> None:
        self.length = length
        self.shared = shared
        self.bad = bad or {}

    def __len__(self) -> int:
        return self.length

    def sample_path(self, index: int) -> str:
        return f"/pictures/{index}.jpg"

    def read(self, index: int, object_row: int | None = None) -> dict[str, Any]:
        draws = draw_everywhere(shared=self.shared)
        if index in self.bad:
            raise self.bad[index]
        return {"members": [(index, -1 if object_row is None else object_row)], "read": draws}

    def finish(self, sample: dict[str, Any]) -> dict[str, Any]:
        members = sample["members"] + [(-1, -1)] * (MAX_MEMBERS - len(sample["members"]))
        return {
            "members": torch.tensor(members),
            "read": sample["read"],
            "finished": draw_everywhere(shared=self.shared),
            "epoch": lit_loader.current_epoch(),
            "batch": lit_loader.current_batch(),
            "is_duplicate": lit_loader.is_duplicate(),
        }

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.finish(self.read(index))


class Blend(Mix):
    """Adds the draws of a sample and its partners with random weights.

    Args:
        count: Number of partners, or the number for each epoch; the last one is for all later epochs.
        p: See `Mix`.
        weights: Weights of the indices in a pool, or None for the order of the epoch.
        shared: As for `Plain`.
    """

    def __init__(self, count: Any = 3, *, p: Any = 1.0, weights: Any = None, shared: bool = False) -> None:
        super().__init__(p=p)
        self.counts = [count] if isinstance(count, int) else list(count)
        self.weights = weights
        self.shared = shared

    def num_partners(self, epoch: int) -> int:
        return self.counts[min(epoch, len(self.counts) - 1)]

    def apply(self, samples: list[Any], rng: Any) -> Any:
        weights = rng.numpy.random(len(samples))
        read = sum(weight * sample["read"] for weight, sample in zip(weights, samples, strict=True))
        return {
            "members": [member for sample in samples for member in sample["members"]],
            "read": read + draw_everywhere(shared=self.shared),
        }

    def pool(self, tables: Any) -> Any:
        return None if self.weights is None else WeightedPool(self.weights)


class WeightedPool:
    """Draws indices by weight, each with its index modulo 5 as the row of an object; index 0 has none."""

    def __init__(self, weights: Any) -> None:
        self.table = AliasTable(np.asarray(weights, dtype=np.float64))

    def draw(self, key: int, start: int, stop: int) -> tuple[Any, Any]:
        indices = self.table.draw(key, start, stop)
        return indices, np.where(indices == 0, -1, indices % 5)

    def __reduce__(self) -> Any:
        raise AssertionError("pools stay in the main process")


class Mixed(PartnerDataset, Dataset):
    """A dataset whose samples are mixed.

    Args:
        mixing: The mixes.
        dataset: The dataset.
        late: Errors that an index causes while its part is mixed, as for images that are decoded on demand.
    """

    def __init__(self, *mixing: Mix, dataset: Plain | None = None, late: dict[int, Exception] | None = None) -> None:
        self.mixing = mixing
        self.dataset = Plain() if dataset is None else dataset
        self.late = late or {}
        self.num_pools = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the engine reads the parts")

    def sample_path(self, index: int) -> str:
        return self.dataset.sample_path(index)

    def partner_pool(self, number: int) -> Any:
        self.num_pools += 1
        return self.mixing[number].pool([])

    def read_part(self, index: int, object_row: int | None = None) -> Any:
        return self.dataset.read(index, object_row)

    def mixed_sample(self, index: int, part: Any, partners: Any) -> Any:
        assert part["members"][0][0] == index
        part = mix_parts(self.mixing, part, partners, sample_rng())
        for member, _ in part["members"]:
            if member in self.late:
                raise self.late[member]
        return self.dataset.finish(part)


def members_of(batch: dict[str, Any]) -> list[list[int]]:
    """Return the indices of each sample of a batch: its own, then its partners'."""
    rows = [batch["members"]] if batch["members"].ndim == 2 else batch["members"]
    return [[index for index, _ in members.tolist() if index >= 0] for members in rows]


class Dying(Mixed):
    """Kills its worker once in each process tree, while it reads a partner; ``folder`` remembers that it did."""

    def __init__(self, *mixing: Mix, folder: Path, **arguments: Any) -> None:
        super().__init__(*mixing, **arguments)
        self.mark = folder / "killed"

    def read_part(self, index: int, object_row: int | None = None) -> Any:
        parts = context.key_parts
        is_partner = parts is not None and parts[1] is RngPurpose.PARTNER and parts[3] == 2
        if is_partner and get_worker_info() is not None and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read_part(index, object_row)
