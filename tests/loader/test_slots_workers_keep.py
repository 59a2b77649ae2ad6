"""Guarantee: objects kept by user code in a worker and batches of the consumer never change each other."""

from __future__ import annotations

import pytest
import torch

from lit_loader.collate import default_collate
from lit_loader.memory import batch_memory
from lit_loader.memory.mapping import Mapping
from tests.support.slot_sets import SHAPE, Large, is_right, loader_of

EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


class Keeping(Large):
    """A dataset that keeps its samples, checks whether they have changed, and overwrites earlier ones."""

    def __init__(self, length=120, *, spoils):
        super().__init__(length)
        self.kept = {}
        self.spoils = spoils

    def __getitem__(self, index):
        changed = sum(
            not bool((first == value).all() and (other == value).all()) for first, other, value in self.kept.values()
        )
        if self.spoils and len(self.kept) >= 4:
            last = list(self.kept)[-4]
            first, other, _ = self.kept[last]
            first.fill_(-5)
            other.fill(-5)
            self.kept[last] = (first, other, -5)
        sample = super().__getitem__(index)
        self.kept[index] = sample
        return {"sample": sample, "changed": changed}


@EACH_SEED
@pytest.mark.parametrize("spoils", [False, True])
def test_a_dataset_that_keeps_its_samples(spoils, seed):
    with loader_of(Keeping(spoils=spoils), seed=seed) as loader:
        live_batches = []
        for batch in loader:
            assert batch["changed"].sum() == 0
            assert is_right(batch["sample"])
            live_batches.append(batch)
            for part in live_batches[-1]["sample"][:2]:
                part.add_(3)
            live_batches[-1]["sample"][2].add_(3)
            live_batches = live_batches[-6:]
        assert all(is_right(batch["sample"]) for batch in live_batches)


class InOurMemory(Large):
    """Takes memory for its samples where the batch is made, keeps the last ones and spoils them later."""

    def __init__(self, length=80):
        super().__init__(length)
        self.kept = []

    def __getitem__(self, index):
        changed = sum(not bool((tensor == value).all()) for tensor, value in self.kept)
        for tensor, _ in self.kept[:-4]:
            tensor.fill_(-7)
        self.kept[:-4] = [(tensor, -7) for tensor, _ in self.kept[:-4]]
        tensor = batch_memory.empty(SHAPE, torch.float32)
        tensor.fill_(index)
        self.kept.append((tensor, index))
        return tensor, changed, index


@EACH_SEED
def test_a_dataset_that_keeps_what_it_wrote_in_place(seed):
    with loader_of(InOurMemory(), seed=seed) as loader:
        received = []
        for batch, changed, index in loader:
            assert changed.sum() == 0
            received.append((batch, index))
        for batch, index in received:
            assert (batch == index.view(-1, 1, 1)).all()


KEPT = []


def keep_and_look(samples):
    """Keep every batch; tell how many of them have changed; spoil the one before last."""
    batch = default_collate([sample for sample, _, _ in samples])
    changed = sum(not bool((stored == value).all()) for stored, value in KEPT)
    if len(KEPT) > 1:
        KEPT[-2][0].fill_(-9)
        KEPT[-2] = (KEPT[-2][0], -9)
    KEPT.append((batch, batch.clone()))
    return batch, changed, torch.tensor([index for _, _, index in samples])


def test_a_collate_function_that_keeps_its_batches():
    KEPT.clear()
    with loader_of(Large(120), collate_fn=keep_and_look) as loader:
        live_batches = []
        for batch, changed, index in loader:
            assert changed == 0
            live_batches.append((batch, index))
            batch.mul_(1)
        assert all((batch == index.view(-1, 1, 1)).all() for batch, index in live_batches)


class Stored(Large):
    """Views of one stored tensor, and the same tensor for every sample."""

    def __init__(self):
        super().__init__(40)
        self.data = torch.arange(40.0).view(-1, 1, 1).expand(40, *SHAPE).contiguous()
        self.same = torch.ones(SHAPE)

    def __getitem__(self, index):
        same = self.same
        return self.data[index], same, same, bool((self.data[index] == index).all() and (same == 1).all())


@EACH_SEED
def test_views_of_a_stored_tensor_and_one_tensor_for_all_samples(seed):
    with loader_of(Stored(), shuffle=False, seed=seed) as loader:
        for _ in range(2):
            for number, (batch, first, other, intact) in enumerate(loader):
                assert intact.all()
                assert batch[:, 0, 0].tolist() == list(range(4 * number, 4 * number + 4))
                first += 1
                batch += 1
                assert (other == 1).all()


def no_memory_once(_):
    """Let the first batch that is kept in this worker find no memory for a copy of its own."""
    make_private = Mapping.make_private
    refusals = [1]

    def refuse(mapping, ranges):
        if refusals:
            refusals.pop()
            raise MemoryError("no memory for a copy")
        make_private(mapping, ranges)

    Mapping.make_private = refuse


KEPT = []


def keep_first(samples):
    batch = default_collate(samples)
    KEPT.append(batch[0])
    values = [int(row.flatten()[0]) for row in KEPT[0]]
    same = all(bool((row == value).all()) for row, value in zip(KEPT[0], values, strict=True))
    return {"batch": batch, "values": values, "same": same}


@EACH_SEED
def test_memory_that_a_worker_keeps_and_cannot_copy_is_never_overwritten(seed):
    with loader_of(
        Large(200), num_workers=1, collate_fn=keep_first, worker_init_fn=no_memory_once, seed=seed
    ) as loader:
        iterator = iter(loader)
        actual = []
        with pytest.raises(MemoryError, match="which the dataset or the collate function keeps"):
            next(iterator)
        actual = list(iterator)
    assert len(actual) > 10
    assert all(batch["same"] and batch["values"] == actual[0]["values"] for batch in actual)
