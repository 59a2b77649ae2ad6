"""Guarantee: a bad sample is raised, skipped or replaced, the same on every backend, and no batch is lost by it."""

from __future__ import annotations

import weakref
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from lit_loader import ClassBalancedSampler, SequentialSampler, WeightedRandomSampler
from lit_loader.engine import plan_order
from lit_loader.errors import BadBatchError, BadSamplesWarning
from tests.support.faulty_set import Faulty, FaultyFiles, indices, loader_of, order_of, outcomes
from tests.support.outcomes import BACKENDS

pytestmark = pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
BAD = {3: ValueError("three"), 4: OSError(5, "broken", "/x/four.jpg"), 17: KeyError("k"), 18: StopIteration()}
BACKEND = pytest.mark.parametrize("workers", BACKENDS.values(), ids=BACKENDS)
SOME = ("inline", "fork", "thread")


def epochs(dataset, count=2, **arguments):
    with loader_of(dataset, **arguments) as loader:
        return [(outcomes(loader), loader.bad_samples) for _ in range(count)]


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@BACKEND
def test_batches_and_records_do_not_depend_on_the_backend(workers, policy):
    inline = epochs(FaultyFiles(BAD), on_bad_sample=policy)
    assert sum(len(records) for _, records in inline) >= 8
    for persistent in (False, True) if workers else ():
        batches = epochs(FaultyFiles(BAD), on_bad_sample=policy, persistent_workers=persistent, **workers)
        assert batches == inline


@BACKEND
def test_skipping_shrinks_batches_and_changes_no_other_sample(workers):
    complete_batches = outcomes(loader_of(Faulty({}), on_bad_sample="raise"))
    ((batches, records),) = epochs(Faulty(BAD), 1, **workers)
    assert len(batches) == len(complete_batches) == 6
    assert sorted(record.index for record in records) == sorted(BAD)
    for batch, complete in zip(batches, complete_batches, strict=True):
        good_rows = [row for row, index in enumerate(complete["index"][2]) if index not in BAD]
        assert batch["index"][2] == [complete["index"][2][row] for row in good_rows]
        assert batch["torch"][2] == [complete["torch"][2][row] for row in good_rows]
        assert batch["own"][2] == [complete["own"][2][row] for row in good_rows]


@BACKEND
@pytest.mark.parametrize("seed", [None, 3])
def test_batch_without_good_samples_raises_in_its_turn(workers, seed):
    bad = dict.fromkeys([4, 5, 6, 7, 9], ValueError("no"))
    loader = loader_of(Faulty(bad, 16), seed=seed, shuffle=False, **workers)
    batches = outcomes(loader)
    assert indices(batches) == [[0, 1, 2, 3], BadBatchError, [8, 10, 11], [12, 13, 14, 15]]
    assert [(record.batch, record.index) for record in loader.bad_samples] == [
        *((1, index) for index in (4, 5, 6, 7)),
        (2, 9),
    ]
    with pytest.raises(BadBatchError, match=r"batch 1 of epoch 1 on rank 0 has no sample left, all 4 are bad"):
        list(loader)


@pytest.mark.parametrize("in_order", [True, False])
@BACKEND
def test_unseeded_batches_shrink_too(workers, in_order):
    loader = loader_of(Faulty(BAD), seed=None, shuffle=False, in_order=in_order, **workers)
    batches = indices(outcomes(loader))
    expected = [[i for i in batch if i not in BAD] for batch in order_of(loader)]
    assert sorted(batches) == sorted(expected)
    if in_order:
        assert batches == expected
    records = sorted(loader.bad_samples, key=lambda record: record.index)
    assert [(record.index, record.batch, record.position) for record in records] == [
        (3, 0, None),
        (4, 1, None),
        (17, 4, None),
        (18, 4, None),
    ]


@pytest.mark.parametrize("seed", [None, 3])
def test_records_of_a_subset_have_the_loader_index_and_the_file(seed):
    """The index is into the loader's dataset; the file belongs to the sample."""
    split = Subset(Subset(FaultyFiles({9: ValueError("nine")}), range(2, 14)), range(11, -1, -1))
    loader = loader_of(split, seed=seed, shuffle=False)
    assert sum(len(batch) for batch in indices(outcomes(loader))) == 11
    (record,) = loader.bad_samples
    assert (record.index, record.file) == (4, "/pictures/9.jpg")
    with pytest.raises(ValueError, match="nine"):
        split[record.index]


def test_replacement_has_the_position_and_the_draws_of_the_bad_sample():
    """The dataset draws before it fails; what replaces it has the bits of the first draws at the position."""
    planned = order_of(loader_of(Faulty({})))
    complete_batches = outcomes(loader_of(Faulty({}), on_bad_sample="raise"))
    loader = loader_of(Faulty(BAD), on_bad_sample="substitute")
    batches = outcomes(loader)
    assert len(loader.bad_samples) >= len(BAD)
    for record in loader.bad_samples:
        row = record.position - 4 * record.batch
        assert batches[record.batch]["index"][2][row] == record.replaced_by
    firsts = {record.position: record for record in reversed(loader.bad_samples)}
    assert {position: record.index for position, record in firsts.items()} == {
        position: index for position, index in enumerate(chain.from_iterable(planned)) if index in BAD
    }
    for batch, complete in zip(batches, complete_batches, strict=True):
        assert batch["torch"] == complete["torch"]  # keyed by the position, not by the index
        assert batch["own"] == complete["own"]


SAMPLERS = {
    "weighted": lambda: WeightedRandomSampler(np.arange(24) % 2.0, 60),
    "without replacement": lambda: WeightedRandomSampler(np.arange(24) % 2.0, 12, replacement=False),
    "class balanced": lambda: ClassBalancedSampler(np.arange(24) % 3),
    "in order": lambda: SequentialSampler(24),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_replacements_come_from_the_order_of_the_sampler(sampler):
    """With a weight of 0 on even indices, none may be let in."""
    bad = dict.fromkeys([1, 2, 3, 5], ValueError("no"))
    arguments = {"sampler": sampler(), "shuffle": None, "max_bad_samples": 10_000}
    replacements = set()
    loader = loader_of(Faulty(bad), on_bad_sample="substitute", **arguments)
    for epoch in range(12):
        delivered = [i for batch in indices(outcomes(loader)) if isinstance(batch, list) for i in batch]
        replacements.update(record.replaced_by for record in loader.bad_samples)
        assert set(delivered) <= set(sampler().order(seed=3, epoch=epoch)[:].tolist()) - set(bad)
    assert len(replacements - {None}) > 3  # drawn, and not always the same


def test_replacements_are_drawn_uniformly_from_the_order():
    """60,000 draws over 24 indices: each within six standard deviations of 2,500."""
    counts = np.zeros(24)
    loader = loader_of(Faulty(dict.fromkeys(range(24), ValueError("no"))), on_bad_sample="substitute")
    for epoch in range(834):
        for task in tasks_of(loader, epoch):
            assert [len(tries) for tries in task.spares] == [3] * 4
            counts += np.bincount(np.ravel(task.spares), minlength=24)
    assert np.abs(counts - counts.sum() / 24).max() < 6 * np.sqrt(counts.sum() / 24)


def tasks_of(loader, epoch=0):
    spec = loader._spec()
    return plan_order(spec, spec.slicing, epoch)


@pytest.mark.parametrize("world_size", [2, 3])
def test_replacements_do_not_depend_on_the_number_of_ranks(world_size):
    alone = tasks_of(loader_of(range(24), batch_size=12, on_bad_sample="substitute"))
    alone = [spares for task in alone for spares in task.spares]
    parts = [
        tasks_of(loader_of(range(24), 12 // world_size, on_bad_sample="substitute", rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [spares for batch in zip(*parts, strict=True) for task in batch for spares in task.spares] == alone


@pytest.mark.parametrize("workers", [BACKENDS[name] for name in SOME], ids=SOME)
def test_bad_replacements_fail_the_batch_and_are_named(workers):
    bad = dict.fromkeys(range(1, 24), ValueError("no"))
    loader = loader_of(Faulty(bad), on_bad_sample="substitute", max_bad_samples=1000, **workers)
    batches = outcomes(loader)
    assert batches.count(BadBatchError) == 6  # of one good sample in 24
    records = loader.bad_samples
    with pytest.raises(BadBatchError, match=r"a sample is bad and so are its 3 replacements") as caught:
        loader.set_epoch(0)
        list(loader)
    first = next(record for record in records if record.replaced_by is None)
    tries = [record.index for record in records if record.position == first.position]
    assert len(tries) == 4
    assert "; ".join(f"sample {index}: ValueError: no" for index in tries) in str(caught.value)


@BACKEND
def test_unbatched_samples_are_replaced(workers):
    inline = epochs(Faulty(BAD), batch_size=None, on_bad_sample="substitute")
    assert epochs(Faulty(BAD), batch_size=None, on_bad_sample="substitute", **workers) == inline
    batches, records = inline[0]
    assert len(batches) == 24
    assert all(batches[record.position]["index"] == record.replaced_by for record in records)


def test_unbatched_replacement_may_be_a_false_value():
    """Index 0 of a range is the sample 0."""

    class Zeros(Faulty):
        def __getitem__(self, index):
            if index in self.bad:
                raise self.bad[index]
            return 0

    loader = loader_of(Zeros({3: ValueError("three")}), None, on_bad_sample="substitute")
    assert outcomes(loader) == [0] * 24


def test_warning_turned_into_an_error_comes_after_the_last_batch(recwarn):
    """If warnings are errors, the report is raised after the last batch and before the end of the epoch."""
    loader = loader_of(Faulty(BAD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", raising)
        iterator = iter(loader)
        assert len([next(iterator) for _ in range(6)]) == 6
        with pytest.raises(BadSamplesWarning):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def raising(text, category, **_):
    raise category(text)


def test_changed_policy_reaches_persistent_workers():
    with loader_of(Faulty({3: ValueError("three")}), num_workers=1, persistent_workers=True) as loader:
        assert [type(batch) for batch in outcomes(loader)] == [dict] * 6
        loader.on_bad_sample = "raise"
        assert outcomes(loader).count(ValueError) == 1
        assert loader.bad_samples == ()
        loader.on_bad_sample = "substitute"
        assert [len(batch) for batch in indices(outcomes(loader))] == [4] * 6


class Keeping(Faulty):
    """Keeps its errors, and so all that their frames hold."""

    def __getitem__(self, index):
        if index == 2:
            raise self.bad[index]
        sample = torch.zeros(2)
        self.made.append(weakref.ref(sample))
        return sample


def test_recorded_error_keeps_no_sample_alive():
    dataset = Keeping({2: ValueError("two")}, 4)
    dataset.made = []
    (batch,) = loader_of(dataset, shuffle=False)
    assert len(batch) == len(dataset.made) == 3
    assert [reference() for reference in dataset.made] == [None] * 3
