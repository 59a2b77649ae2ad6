"""Guarantee: with a seed, a batch is the same bits whichever worker, backend or rank makes it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, random_split

from lit_loader import ClassBalancedSampler, DataLoader, RandomSampler, WeightedRandomSampler
from lit_loader.collate import default_collate
from tests.support.in_threads import Calls
from tests.support.scheduled_set import Draws as DrawsInThreads
from tests.support.toys import Drawing, DrawingBatches, Stream, plain


class DrawnTogether(DrawsInThreads):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def collate_with_torch_draw(samples):
    return default_collate(samples), torch.rand(2)


def epochs(dataset=None, *, count=2, **arguments):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 7, **arguments}
    loader = DataLoader(dataset or Drawing(), **arguments)
    actual = [[plain(batch) for batch in loader] for _ in range(count)]
    loader.close()
    return actual


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)])
def test_workers_have_the_default_dtype_of_the_main_process(method, double_by_default):
    expected = epochs(count=1)
    assert "float64" in str(expected[0][0]["torch"])
    assert epochs(count=1, num_workers=1, multiprocessing_context=method) == expected


def test_workers_that_are_kept_follow_a_change_of_the_default_dtype(double_by_default):
    def dtype_of_batches(loader):
        return {batch.dtype for batch in loader}

    with DataLoader(Calls(lambda index: torch.ones(2)), num_workers=1, seed=1, persistent_workers=True) as loader:
        assert dtype_of_batches(loader) == {torch.float64}
        torch.set_default_dtype(torch.float32)
        assert dtype_of_batches(loader) == {torch.float32}


def test_epochs_seeds_and_samples_all_differ():
    first, second = epochs()
    assert first != second
    assert epochs(seed=8)[0] != first
    draws = [tuple(draw) for batch in first for draw in batch["torch"][2]]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_process_wide_generators_are_left_alone(num_workers):
    def state():
        return torch.rand(1).item(), np.random.rand(), random.random()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = state()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    epochs(num_workers=num_workers)
    assert state() == expected


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(23),
        lambda: WeightedRandomSampler(np.arange(1.0, 24), 40),
        lambda: WeightedRandomSampler(np.arange(1.0, 24), 10, replacement=False),
        lambda: ClassBalancedSampler(np.arange(23) % 3),
        lambda: [5, 4, 3, 2, 1, 0] * 3,
    ],
    ids=["random", "weighted", "without replacement", "class balanced", "custom list"],
)
def test_every_sampler_keeps_the_promise(sampler):
    inline = epochs(sampler=sampler(), shuffle=None)
    assert epochs(sampler=sampler(), shuffle=None, num_workers=3) == inline


def test_a_custom_batch_sampler_keeps_the_promise():
    arguments = {"batch_sampler": [[1, 2], (3,), [4, 4, 4]], "batch_size": 1, "shuffle": None}
    inline = epochs(**arguments)
    assert epochs(num_workers=2, **arguments) == inline
    draws = [tuple(draw) for batch in inline[0] for draw in batch["torch"][2]]
    assert len(set(draws)) == 6  # the same index three times is three different samples


def test_a_dataset_with_getitems_has_a_key_for_the_batch():
    inline = epochs(DrawingBatches())
    assert epochs(DrawingBatches(), num_workers=2) == inline
    assert inline != epochs(Drawing())


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Subset(DrawsInThreads(), [4, 2, 9, 7, 1]), {}),
        (DrawsInThreads(), {"batch_size": None}),
        (DrawsInThreads(), {"collate_fn": collate_with_torch_draw}),
        (DrawnTogether(), {}),
        (Subset(DrawnTogether(), range(3, 12)), {}),
    ],
    ids=["split", "no batches", "a collate function of the user's", "getitems", "getitems below"],
)
def test_every_way_to_ask_a_dataset_gives_the_inline_batches(dataset, arguments, num_workers, method):
    arguments = {"shuffle": False, **arguments}
    inline = epochs(dataset, **arguments)
    assert epochs(dataset, num_workers=num_workers, worker_method=method, **arguments) == inline


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_collate_function_of_ours_may_be_exchanged_for_one_that_draws(method):
    arguments = {"batch_size": 4, "seed": 7}

    def exchanged(**workers):
        with DataLoader(DrawsInThreads(), **arguments, **workers) as loader:
            list(loader)
            loader.collate_fn = collate_with_torch_draw
            return [plain(batch) for batch in loader]

    workers = {"num_workers": 2, "persistent_workers": True, "worker_method": method}
    assert exchanged(**workers) == exchanged()


def test_subset_is_unwrapped_so_that_a_split_keeps_keys_for_each_sample():
    split = random_split(Drawing(), [13, 10], generator=torch.Generator().manual_seed(0))[0]
    inline = epochs(split, batch_size=4, shuffle=False)
    in_one = epochs(split, batch_size=13, shuffle=False)

    def draws(actual):
        return [draw for batch in actual[0] for draw in batch["torch"][2]]

    assert draws(inline) == draws(in_one)
    assert inline == epochs(Subset(split, range(13)), batch_size=4, shuffle=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_size_does_not_change_a_samples_bits(num_workers):
    def by_index(batch_size):
        actual = {}
        for batch in DataLoader(Drawing(), batch_size=batch_size, shuffle=True, seed=2, num_workers=num_workers):
            indices = torch.as_tensor(batch["index"]).reshape(-1).tolist()
            draws = batch["torch"].reshape(-1, 3).tolist()
            actual.update(zip(indices, draws, strict=True))
        return actual

    assert by_index(2) == by_index(7) == by_index(None)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_repeats_for_the_same_workers(num_workers):
    arguments = {"shuffle": None, "num_workers": num_workers}
    first = epochs(Stream(), **arguments)
    assert first == epochs(Stream(), **arguments)
    assert first[0] != first[1]


def test_ranks_together_give_the_batches_of_one_process():
    unbroken = epochs(batch_size=4, count=1, drop_last=True)[0]
    ranks = [epochs(batch_size=2, count=1, rank=r, world_size=2, drop_last=True)[0] for r in range(2)]
    for number, batch in enumerate(unbroken):
        parts = [rank[number] for rank in ranks]
        assert batch["index"][2] == parts[0]["index"][2] + parts[1]["index"][2]
        assert batch["torch"][2] == parts[0]["torch"][2] + parts[1]["torch"][2]
