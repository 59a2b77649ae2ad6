"""Guarantee: the partners of a mixed sample, and all of its draws, are functions of (seed, epoch, position)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from lit_loader import DataLoader, MixedSourceSampler, WeightedRandomSampler, get_worker_info
from lit_loader.errors import PrivateGeneratorWarning, WorkerRestartWarning
from lit_loader.samplers import GroupedSampler, RandomSampler
from tests.support.partner_sets import Blend, Dying, Mixed, Plain
from tests.support.toys import plain

WORKERS = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    "thread": {"num_workers": 2, "worker_method": "thread", "persistent_workers": True},
}
BACKEND = pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)


def mixed_set(*, shared=False, length=23):
    """Return a dataset with two mixes: one with partners from the order, and one with a pool."""
    pool = Blend(2, p=0.7, weights=np.arange(length), shared=shared)
    return Mixed(Blend(3, p=0.6, shared=shared), pool, dataset=Plain(length, shared=shared))


def loader_of(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 4, "shuffle": "sampler" not in arguments, "seed": 7, **arguments})


def epochs(dataset, count=2, **arguments):
    with loader_of(dataset, **arguments) as loader:
        return [[plain(batch) for batch in loader] for _ in range(count)]


def num_members(epoch):
    """Return the number of images in each sample of an epoch."""
    return [sum(index >= 0 for index, _ in sample) for batch in epoch for sample in batch["members"][2]]


def test_samples_are_mixed_and_differ():
    """So that the other tests compare something."""
    batches = epochs(mixed_set(shared=True), 4)
    assert {number for epoch in batches for number in num_members(epoch)} == {1, 3, 4, 6}
    for name in ("read", "finished"):
        draws = [tuple(draw) for epoch in batches for batch in epoch for draw in batch[name][2]]
        assert len(set(draws)) == len(draws) == 4 * 23


# -- the same bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        *((method, num_workers) for method in ("fork", "forkserver") for num_workers in (1, 2)),
        ("fork", 5),
        # One spawned process is enough to unpickle the mixing; tests/loader/test_matrix.py spawns two.
        ("spawn", 1),
        *(
            pytest.param(method, number, marks=pytest.mark.soak)
            for method, number in (("forkserver", 5), ("spawn", 2), ("spawn", 5))
        ),
    ],
)
def test_worker_processes_mix_as_the_main_process(method, num_workers):
    workers = {"num_workers": num_workers, "multiprocessing_context": method, "persistent_workers": True}
    assert epochs(mixed_set(shared=True), **workers) == epochs(mixed_set(shared=True))


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_worker_threads_mix_as_the_main_process(num_workers):
    workers = {"num_workers": num_workers, "worker_method": "thread", "persistent_workers": True}
    assert epochs(mixed_set(), **workers) == epochs(mixed_set())


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@BACKEND
def test_policies_on_bad_samples_change_no_good_sample(workers, policy):
    assert epochs(mixed_set(), on_bad_sample=policy, **workers) == epochs(mixed_set())


@BACKEND
def test_unbatched_samples_are_those_of_batches(workers):
    samples = epochs(mixed_set(), 1, batch_size=None, **workers)[0]
    batches = epochs(mixed_set(), 1)[0]
    for name in ("members", "read", "finished"):
        rows = [row for batch in batches for row in batch[name][2]]
        assert [sample[name][2] for sample in samples] == rows


@BACKEND
def test_resumed_epochs_mix_as_unbroken_ones(workers):
    expected = epochs(mixed_set())
    for num_before in (1, 4):
        with loader_of(mixed_set()) as loader:
            iterator = iter(loader)
            for _ in range(num_before):
                next(iterator)
            state = loader.state_dict()
        with loader_of(mixed_set(), **workers) as loader:
            loader.load_state_dict(state)
            actual = [[plain(batch) for batch in loader] for _ in range(2)]
        assert actual == [expected[0][num_before:], expected[1]]


SAMPLERS = {
    "random": lambda: RandomSampler(24),
    "weighted": lambda: WeightedRandomSampler(np.arange(24), 48),
    "mixed sources": lambda: MixedSourceSampler([20, 4], counts=[3, 1], num_samples=48),
    "grouped": lambda: GroupedSampler(RandomSampler(24), np.arange(24) % 3),
}


def rows_of(batches, name="members"):
    return [row for batch in batches for row in batch[name][2]]


@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_mix_as_one_process(name):
    dataset = mixed_set(length=24)
    (expected,) = epochs(dataset, 1, sampler=SAMPLERS[name](), batch_size=8)
    by_rank = [epochs(dataset, 1, sampler=SAMPLERS[name](), rank=rank, world_size=2)[0] for rank in range(2)]
    for field in ("members", "read", "finished"):
        parts = [row for batches in zip(*by_rank, strict=True) for row in rows_of(batches, field)]
        assert parts == rows_of(expected, field)


def test_resume_on_another_number_of_ranks_mixes_as_before():
    dataset = mixed_set(length=24)
    loader = loader_of(dataset, batch_size=8)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = [plain(batch) for batch in iterator]
    by_rank = []
    for rank in range(2):
        resumed = loader_of(dataset, rank=rank, world_size=2)
        resumed.load_state_dict(state)
        by_rank.append([plain(batch) for batch in resumed])
    assert [row for batches in zip(*by_rank, strict=True) for row in rows_of(batches, "read")] == rows_of(
        expected, "read"
    )
    other = loader_of(dataset, batch_size=5, resume="same_sample")
    other.load_state_dict(state)
    assert rows_of([plain(batch) for batch in other], "finished") == rows_of(expected, "finished")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_of_a_killed_worker_are_mixed_again(method, tmp_path):
    dataset = Dying(Blend(3), dataset=Plain(24), folder=tmp_path)
    with pytest.warns(WorkerRestartWarning, match="SIGKILL"):
        actual = epochs(dataset, num_workers=2, multiprocessing_context=method)
    assert actual == epochs(Mixed(Blend(3), dataset=Plain(24)))


# -- epochs ----------------------------------------------------------------------------------------------


@BACKEND
@pytest.mark.parametrize("resumes", [False, True])
def test_mixing_ends_at_its_epoch_also_after_a_resume(workers, resumes):
    """ultralytics#25762: after a resume, workers went on with mosaics because they had not heard of the end.

    ultralytics#25815: the seed did not reach the workers.
    """
    dataset = Mixed(Blend(3, p={"epochs": [0, 2], "value": 1.0}))
    expected = epochs(dataset, 4)
    assert [set(num_members(epoch)) for epoch in expected] == [{4}, {4}, {1}, {1}]
    num_before = 0
    state = None
    if resumes:
        with loader_of(dataset, **workers) as loader:
            list(loader)
            iterator = iter(loader)
            num_before = len([next(iterator) for _ in range(3)])
            state = loader.state_dict()
    with loader_of(dataset, **workers) as loader:
        if state is None:
            assert [plain(batch) for batch in loader] == expected[0]
        else:
            loader.load_state_dict(state)
        actual = [[plain(batch) for batch in loader] for _ in range(3)]
    assert actual == [expected[1][num_before:], *expected[2:]]


@BACKEND
def test_epoch_without_partners_has_the_samples_of_the_inner_dataset(workers):
    expected = epochs(Plain(), 3)
    actual = epochs(Mixed(Blend(3, p={"epochs": [1, 2], "value": 1.0})), 3, **workers)
    assert [actual[0], actual[2]] == [expected[0], expected[2]]
    assert actual[1] != expected[1]
    assert epochs(Mixed(), 3, **workers) == expected


def test_samples_without_partners_equal_those_of_the_inner_dataset():
    """Of an epoch in which other samples are mixed."""
    (expected,) = epochs(Plain(), 1)
    (actual,) = epochs(Mixed(Blend(3, p=0.5)), 1)
    is_plain = [number == 1 for number in num_members(actual)]
    assert 5 < sum(is_plain) < 18
    for name in ("read", "finished"):
        pairs = zip(rows_of(actual, name), rows_of(expected, name), strict=True)
        assert [row == other for row, other in pairs] == is_plain


# -- the parts -------------------------------------------------------------------------------------------


class WorkerIds(Plain):
    """Appends the number of the worker to the draws of each part."""

    def read(self, index, object_row=None):
        part = super().read(index, object_row)
        info = get_worker_info()
        return {**part, "read": torch.cat([part["read"], torch.tensor([-1.0 if info is None else info.id])])}


class OneWorker(Blend):
    """Blends parts that one worker has read."""

    def apply(self, samples, rng):
        assert len({sample["read"][-1].item() for sample in samples}) == 1
        return super().apply([{**sample, "read": sample["read"][:-1]} for sample in samples], rng)


@BACKEND
def test_parts_are_read_in_the_worker_of_their_sample(workers):
    assert epochs(Mixed(OneWorker(3), dataset=WorkerIds()), **workers) == epochs(Mixed(Blend(3)))


def test_a_part_has_the_same_draws_whatever_the_parts_before_it_draw():
    class Thirsty(Plain):
        def read(self, index, object_row=None):
            part = super().read(index, object_row)
            torch.rand(index)
            return part

    assert epochs(Mixed(Blend(3), dataset=Thirsty())) == epochs(Mixed(Blend(3)))


def test_duplicates_are_marked_in_mixed_samples():
    """23 samples on two ranks: the last position is a duplicate."""
    by_rank = [epochs(mixed_set(), 1, rank=rank, world_size=2)[0] for rank in range(2)]
    marks = [[mark for batch in batches for mark in batch["is_duplicate"][2]] for batches in by_rank]
    assert [sum(rank_marks) for rank_marks in marks] == [0, 1]
    assert marks[1][-1]


@BACKEND
def test_subset_mixes_only_its_own_images(workers):
    dataset = Subset(Subset(Mixed(Blend(3)), range(3, 15)), [0, 2, 4, 6, 8, 10])
    batches = epochs(dataset, 3, **workers)
    assert batches == epochs(dataset, 3)
    members = {index for epoch in batches for sample in rows_of(epoch) for index, _ in sample}
    assert members == {-1, 3, 5, 7, 9, 11, 13}


# -- the checks of the loader ------------------------------------------------------------------------------


class Flipping(Mixed):
    """Mixes with a generator of its own, which the seed does not reach."""

    def mixed_sample(self, index, part, partners):
        sample = super().mixed_sample(index, part, partners)
        if partners:
            sample["read"] = sample["read"] + np.random.default_rng().random()
        return sample


class TestTheRepeatabilityCheck:
    @pytest.fixture(autouse=True)
    def samples_made_once(self):
        """Leave the check on, unlike in other tests."""

    @BACKEND
    @pytest.mark.parametrize("policy", ["raise", "substitute"])
    def test_mixes_again_and_finds_private_generators(self, workers, policy):
        with pytest.warns(PrivateGeneratorWarning, match=r"Flipping.*differ at \['read'\]"):
            epochs(Flipping(Blend(3)), on_bad_sample=policy, **workers)

    @BACKEND
    @pytest.mark.parametrize("policy", ["raise", "substitute"])
    def test_passes_repeatable_mixes_and_changes_no_batch(self, workers, policy):
        expected = epochs(mixed_set(), check_repeatability=False)
        assert epochs(mixed_set(), on_bad_sample=policy, **workers) == expected


def test_pickled_loader_has_no_pools():
    loader = loader_of(mixed_set())
    expected = [plain(batch) for batch in loader]
    copied = pickle.loads(pickle.dumps(loader))  # a `WeightedPool` refuses to be pickled
    copied.set_epoch(0)
    assert [plain(batch) for batch in copied] == expected


def test_pools_are_kept_from_epoch_to_epoch():
    dataset = mixed_set()
    epochs(dataset, 3)
    assert dataset.num_pools == 2
