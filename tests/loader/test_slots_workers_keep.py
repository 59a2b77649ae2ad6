"""Guarantee: objects kept by user code in a worker and batches of the consumer never change each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.collate import default_collate
from lit_loader.memory import batch_memory
from lit_loader.memory.mapping import Mapping
from tests.support.slot_sets import SHAPE, Large, is_right, loader_of, slots_of

EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


class Keeping(Large):
    """A dataset that keeps its samples, checks whether they have changed, and overwrites earlier ones."""

    def __init__(self, length=120, *, spoils):
        super().__init__(length)
        self.kept = {}
        self.spoils = spoils

    def __getitem__(self, index):
        changed = sum(
            not bool((one == value).all() and (other == value).all()) for one, other, value in self.kept.values()
        )
        if self.spoils and len(self.kept) >= 4:
            last = list(self.kept)[-4]
            one, other, _ = self.kept[last]
            one.fill_(-5)
            other.fill(-5)
            self.kept[last] = (one, other, -5)
        sample = super().__getitem__(index)
        self.kept[index] = sample
        return {"sample": sample, "changed": changed}


@EACH_SEED
@pytest.mark.parametrize("spoils", [False, True])
def test_a_dataset_that_keeps_its_samples(spoils, seed):
    with loader_of(Keeping(spoils=spoils), seed=seed) as loader:
        held = []
        for batch in loader:
            assert batch["changed"].sum() == 0
            assert is_right(batch["sample"])
            held.append(batch)
            for part in held[-1]["sample"][:2]:
                part.add_(3)
            held[-1]["sample"][2].add_(3)
            held = held[-6:]
        assert all(is_right(batch["sample"]) for batch in held)


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
    changed = sum(not bool((kept == value).all()) for kept, value in KEPT)
    if len(KEPT) > 1:
        KEPT[-2][0].fill_(-9)
        KEPT[-2] = (KEPT[-2][0], -9)
    KEPT.append((batch, batch.clone()))
    return batch, changed, torch.tensor([index for _, _, index in samples])


def test_a_collate_function_that_keeps_its_batches():
    KEPT.clear()
    with loader_of(Large(120), collate_fn=keep_and_look) as loader:
        held = []
        for batch, changed, index in loader:
            assert changed == 0
            held.append((batch, index))
            batch.mul_(1)
        assert all((batch == index.view(-1, 1, 1)).all() for batch, index in held)


def pad_by_itself(samples):
    out = torch.zeros(len(samples), 70, 100)
    for row, (one, _, _) in zip(out, samples, strict=True):
        row[:64] = one
    return out, np.stack([array for _, array, _ in samples]), torch.tensor([index for *_, index in samples])


def as_views(samples):
    unbroken = torch.stack([one for one, _, _ in samples])
    return [unbroken, unbroken[0], unbroken.view(-1), samples[0][0], samples[0][1], samples[0][2]]


@pytest.mark.parametrize("seed", [None, 0])
def test_a_collate_function_that_stacks_or_pads_by_itself(seed):
    with loader_of(Large(80), collate_fn=pad_by_itself, seed=seed) as loader:
        for _ in range(2):
            for batch, array, index in loader:
                assert (batch[:, :64] == index.view(-1, 1, 1)).all()
                assert (batch[:, 64:] == 0).all()
                assert (array == index.view(-1, 1, 1).numpy()).all()
        assert slots_of(loader).num_slots < 12


def stack_and_edit(samples):
    """The samples, and a stack of them that is edited in the worker."""
    stack = default_collate([one for one, _, _ in samples])
    stack += 1
    return stack, [one for one, _, _ in samples], [index for *_, index in samples]


def test_an_edit_of_the_stack_in_the_collate_function_does_not_edit_the_samples():
    with loader_of(Large(40), collate_fn=stack_and_edit) as loader:
        for _ in range(2):
            for stack, samples, indices in loader:
                for row, sample, index in zip(stack, samples, indices, strict=True):
                    assert (row == index + 1).all()
                    assert (sample == index).all()


def test_views_in_a_batch_are_tensors_of_their_own():
    with loader_of(Large(40), collate_fn=as_views) as loader:
        for unbroken, row, flat, sample, array, value in loader:
            unbroken += 1
            row += 2
            assert (flat[: row.numel()] == value).all()
            assert (sample == value).all()
            assert (array == value).all()
            assert (row == value + 2).all()
            assert (unbroken[0] == value + 1).all()


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
            for number, (batch, one, other, intact) in enumerate(loader):
                assert intact.all()
                assert batch[:, 0, 0].tolist() == list(range(4 * number, 4 * number + 4))
                one += 1
                batch += 1
                assert (other == 1).all()


class Batches(Large):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Uneven:
    def __iter__(self):
        start = 0
        for size in (1, 7, 2, 16, 3, 1, 10, 24):
            yield list(range(start, start + size))
            start += size

    def __len__(self):
        return 8


@EACH_SEED
@pytest.mark.parametrize("dataset", [Large(), Batches()], ids=["one by one", "made at once"])
def test_uneven_batches(dataset, seed):
    with DataLoader(dataset, batch_sampler=Uneven(), num_workers=2, persistent_workers=True, seed=seed) as loader:
        for _ in range(3):
            kept = list(loader)
            assert [len(batch[2]) for batch in kept] == [1, 7, 2, 16, 3, 1, 10, 24]
            assert all(is_right(batch) for batch in kept)


@pytest.mark.parametrize("seed", [None, 3])
def test_samples_that_are_not_batched(seed):
    with loader_of(Large(40), None, seed=seed) as loader:
        kept = list(loader)
        assert [value for _, _, value in kept] == list(range(40))
        assert all((one == value).all() and (other == value).all() for one, other, value in kept)
        assert slots_of(loader).num_slots > 30


class Unsized:
    """Batches without a length, which torch takes."""

    def __iter__(self):
        yield iter([0, 1, 2])
        yield iter([3])


def test_an_index_without_a_length():
    with DataLoader(Large(), batch_sampler=Unsized(), num_workers=1, persistent_workers=True) as loader:
        assert [batch[2].tolist() for batch in loader] == [[0, 1, 2], [3]]
        assert all(is_right(batch) for batch in loader)


class Twice(Large):
    def __getitem__(self, index):
        tensor = torch.full(self.shape, float(index))
        return {"one": tensor, "other": tensor, "index": index}


@EACH_SEED
def test_a_tensor_that_a_sample_holds_twice_becomes_two_stacks(seed):
    """An edit of one does not change the other."""
    with loader_of(Twice(), seed=seed) as loader:
        for _ in range(2):
            for batch in loader:
                batch["one"] += 100
                assert (batch["other"] == batch["index"].view(-1, 1, 1)).all()


def no_memory_once(_):
    """Let the first batch that is kept in this worker find no memory for a copy of its own."""
    make_private = Mapping.make_private
    left = [1]

    def refuse(mapping, ranges):
        if left:
            left.pop()
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
