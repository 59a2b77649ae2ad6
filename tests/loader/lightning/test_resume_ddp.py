"""Guarantee: a run saved on one rank resumes exactly on several, and one saved there resumes on one rank.

Indices and augmentation bits are written down inside ``training_step``. One process group runs all cases.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.callbacks import ResumeLoaders
from lit_loader.datamodules import LoaderDataModule
from lit_loader.errors import ResumeWarning
from lit_loader.samplers import RandomSampler
from tests.support.lightning_ranks import on_ranks
from tests.support.lightning_resuming import Learner, Save, fitted
from tests.support.resume_sets import SIZE, Numbers, chosen

SAMPLERS = ("plain", "weighted", "class-balanced", "grouped", "weighted grouped", "custom")
CASES = [*SAMPLERS, "estimated steps", "data module"]
# Batches before a checkpoint, both in the middle of an epoch.
FIRST = 3
SECOND = 7


class NumbersModule(LoaderDataModule):
    def stage_data(self, stage):
        return [(Numbers(), RandomSampler(SIZE))]

    def collate_fn(self, stage):
        return None


def run(case, global_batch, world_size, *, callbacks=(), ckpt_path=None):
    """Return what this rank saw."""
    cut = {"batch_size": global_batch // world_size, "drop_last": True}
    settings = {"max_epochs": 4, "callbacks": list(callbacks), "ckpt_path": ckpt_path}
    if case == "data module":
        return fitted(Learner(), datamodule=NumbersModule(seed=3, **cut), **settings).seen
    name = case if case in SAMPLERS else "plain"

    def make():
        return DataLoader(Numbers(), seed=3, **{**chosen(name), **cut})

    settings["callbacks"].append(ResumeLoaders())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResumeWarning)  # of a user's sampler, which is replayed
        return fitted(Learner(make, ask=case == "estimated steps"), **settings).seen


def go_on(folder, global_batch, world_size):
    """Go on, on each rank, from what one process saved, and save again."""
    actual = {}
    for case in CASES:
        save = Save(folder / case / "second")
        path = folder / case / "first" / f"{FIRST - 1}.ckpt"
        actual[case] = run(case, global_batch, world_size, callbacks=[save], ckpt_path=path)
    torch.save(actual, folder / f"{torch.distributed.get_rank()}.pt")


def check(folder, world_size):
    global_batch = 12 // (world_size - 1)
    unbroken = {}
    for case in CASES:
        unbroken[case] = run(case, global_batch, 1, callbacks=[Save(folder / case / "first")])
    on_ranks(world_size, folder, go_on, folder, global_batch, world_size)
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]
    for case in CASES:
        together = [torch.cat(parts) for parts in zip(*(seen[case] for seen in ranks), strict=True)]
        assert len(together) == len(unbroken[case]) - FIRST
        same(together, unbroken[case][FIRST:])
        path = folder / case / "second" / f"{SECOND - FIRST - 1}.ckpt"
        same(run(case, global_batch, 1, ckpt_path=path), unbroken[case][SECOND:])


def same(actual, expected):
    assert len(actual) == len(expected)
    assert all(torch.equal(mine, other) for mine, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_one_rank_to_several_and_back(tmp_path, world_size):
    check(tmp_path, world_size)
