"""Epochs: claimed at the first next(), counted by the loader, named by set_epoch."""

from __future__ import annotations

import copy
import pickle

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader import DataLoader, RandomSampler
from tests.support.toys import Drawing, plain


def loader(**arguments):
    return DataLoader(Drawing(9), **{"batch_size": 2, "shuffle": True, "seed": 1, **arguments})


def epoch(number, **arguments):
    it = loader(**arguments)
    it.set_epoch(number)
    return [plain(batch) for batch in it]


def batches(iterable):
    return [plain(batch) for batch in iterable]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_each_pass_is_the_next_epoch(workers):
    with loader(**workers) as it:
        assert [batches(it) for _ in range(3)] == [epoch(n) for n in range(3)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iter_alone_changes_nothing(num_workers):
    it = loader(num_workers=num_workers)
    for _ in range(5):
        iter(it)
    assert batches(it) == epoch(0)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_two_live_iterators_have_an_epoch_each(workers):
    with loader(**workers) as it:
        first = iter(it)
        second = iter(it)
        actual = {first: [], second: []}
        for _ in range(5):
            for one in (first, second):
                actual[one].append(plain(next(one)))
        assert actual[first] == epoch(0)
        assert actual[second] == epoch(1)
        del first, second, one, actual


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_pass_that_is_broken_off_leaves_nothing_to_the_next(workers):
    with loader(**workers) as it:
        for _ in it:
            break
        assert batches(it) == epoch(1)


def test_set_epoch_names_the_next_one():
    it = loader()
    it.set_epoch(5)
    assert batches(it) == epoch(5)
    assert batches(it) == epoch(6)
    with pytest.raises(ValueError, match="epoch=-1"):
        it.set_epoch(-1)


def test_an_epoch_named_to_the_sampler_reaches_the_loader():
    """Lightning calls set_epoch on the sampler, after iter() and before the first next()."""
    it = loader()
    iterator = iter(it)
    it.sampler.set_epoch(4)
    assert batches(iterator) == epoch(4)
    assert batches(it) == epoch(5)
    it.sampler.set_epoch(4)
    assert batches(it) == epoch(4)


def test_set_epoch_reaches_a_custom_sampler():
    custom = DistributedSampler(Drawing(9), num_replicas=1, rank=0)
    it = loader(sampler=custom, shuffle=None)
    it.set_epoch(3)
    assert custom.epoch == 3


def test_a_plain_batch_sampler_over_a_sampler_of_ours_is_cut_like_batch_size():
    over = loader(batch_size=1, shuffle=None, batch_sampler=BatchSampler(RandomSampler(9), 2, False))
    assert len(over) == 5
    assert [batches(over) for _ in range(2)] == [epoch(0), epoch(1)]


def test_a_seed_of_the_samplers_own_decides_the_order_and_not_the_augmentation():
    def indices(actual):
        return [batch["index"][2] for batch in actual]

    own = epoch(0, sampler=RandomSampler(9, seed=1), shuffle=None, seed=99)
    assert indices(own) == indices(epoch(0))
    assert own != epoch(0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_loader_is_copied_while_it_is_iterated(clone, workers):
    with loader(**workers) as it:
        iterator = iter(it)
        next(iterator)
        with clone(it) as other:
            assert batches(other) == epoch(1)
        assert len(batches(iterator)) == 4
        del iterator


def test_an_iterator_does_not_pickle_as_torchs_does_not():
    with pytest.raises(NotImplementedError, match="pickle the loader instead"):
        pickle.dumps(iter(loader()))


def test_a_dataset_that_grows_is_seen_whole_by_the_next_epoch():
    dataset = Drawing(4)
    it = DataLoader(dataset, batch_size=2, shuffle=True, seed=0)
    assert len(it) == len(list(it)) == 2
    dataset.length = 9
    assert len(it) == 5
    assert sorted(i for batch in it for i in batch["index"].tolist()) == list(range(9))
