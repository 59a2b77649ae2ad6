"""Epochs: claimed at the first next(), counted by the loader, named by set_epoch."""

from __future__ import annotations

import copy
import pickle

import pytest
from torch.utils.data import DistributedSampler

from lit_loader import DataLoader, RandomSampler
from tests.support.toys import Drawing, plain


def make_loader(**arguments):
    return DataLoader(Drawing(9), **{"batch_size": 2, "shuffle": True, "seed": 1, **arguments})


def epoch(number, **arguments):
    loader = make_loader(**arguments)
    loader.set_epoch(number)
    return [plain(batch) for batch in loader]


def batches(iterable):
    return [plain(batch) for batch in iterable]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_each_pass_is_the_next_epoch(workers):
    with make_loader(**workers) as loader:
        assert [batches(loader) for _ in range(3)] == [epoch(n) for n in range(3)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iter_alone_changes_nothing(num_workers):
    loader = make_loader(num_workers=num_workers)
    for _ in range(5):
        iter(loader)
    assert batches(loader) == epoch(0)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_two_live_iterators_have_an_epoch_each(workers):
    with make_loader(**workers) as loader:
        first = iter(loader)
        second = iter(loader)
        actual = {first: [], second: []}
        for _ in range(5):
            for iterator in (first, second):
                actual[iterator].append(plain(next(iterator)))
        assert actual[first] == epoch(0)
        assert actual[second] == epoch(1)
        del first, second, iterator, actual


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_pass_that_is_broken_off_leaves_nothing_to_the_next(workers):
    with make_loader(**workers) as loader:
        for _ in loader:
            break
        assert batches(loader) == epoch(1)


def test_set_epoch_names_the_next_one():
    loader = make_loader()
    loader.set_epoch(5)
    assert batches(loader) == epoch(5)
    assert batches(loader) == epoch(6)
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_an_epoch_named_to_the_sampler_reaches_the_loader():
    """Lightning calls set_epoch on the sampler, after iter() and before the first next()."""
    loader = make_loader()
    iterator = iter(loader)
    loader.sampler.set_epoch(4)
    assert batches(iterator) == epoch(4)
    assert batches(loader) == epoch(5)
    loader.sampler.set_epoch(4)
    assert batches(loader) == epoch(4)


def test_set_epoch_reaches_a_custom_sampler():
    custom = DistributedSampler(Drawing(9), num_replicas=1, rank=0)
    loader = make_loader(sampler=custom, shuffle=None)
    loader.set_epoch(3)
    assert custom.epoch == 3


def test_a_seed_of_the_samplers_own_decides_the_order_and_not_the_augmentation():
    def indices(actual):
        return [batch["index"][2] for batch in actual]

    reseeded = epoch(0, sampler=RandomSampler(9, seed=1), shuffle=None, seed=99)
    assert indices(reseeded) == indices(epoch(0))
    assert reseeded != epoch(0)


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_loader_is_copied_while_it_is_iterated(clone, workers):
    with make_loader(**workers) as loader:
        iterator = iter(loader)
        next(iterator)
        with clone(loader) as other:
            assert batches(other) == epoch(1)
        assert len(batches(iterator)) == 4
        del iterator


def test_a_dataset_that_grows_is_seen_whole_by_the_next_epoch():
    dataset = Drawing(4)
    loader = DataLoader(dataset, batch_size=2, shuffle=True, seed=0)
    assert len(loader) == len(list(loader)) == 2
    dataset.length = 9
    assert len(loader) == 5
    assert sorted(i for batch in loader for i in batch["index"].tolist()) == list(range(9))
