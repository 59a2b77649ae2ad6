"""Guarantee: an error of a sample names it and its file, if that is known; what cannot be promised is refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, Subset

from lit_loader import DataLoader
from tests.support.faulty_set import Faulty, FaultyFiles, loader_of, outcomes
from tests.support.outcomes import FEW_BACKENDS
from tests.support.toys import DrawingBatches, Stream

BACKEND = pytest.mark.parametrize("workers", FEW_BACKENDS.values(), ids=FEW_BACKENDS)


def raised(loader, kind=Exception):
    with pytest.raises(kind) as caught:
        list(loader)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


ERRORS = {
    "sample_path": (ValueError("no"), "sample 17, file /pictures/17.jpg"),
    "filename": (FileNotFoundError(2, "gone", "/x/17.png"), "sample 17, file /x/17.png"),
    "bytes": (FileNotFoundError(2, "gone", b"/x/17.png"), "sample 17, file /x/17.png"),
    "descriptor": (OSError(5, "of a descriptor", 7), "sample 17, file /pictures/17.jpg"),
    "memory": (MemoryError("large"), "sample 17, file /pictures/17.jpg"),
}


def named_errors():
    """Every error inline, and on each backend one that the dataset names and one that names itself."""
    for backend, workers in FEW_BACKENDS.items():
        for name, (error, message) in ERRORS.items():
            is_quick = backend == "inline" or name in ("sample_path", "filename")
            marks = () if is_quick else pytest.mark.soak
            yield pytest.param(workers, error, message, id=f"{name}-{backend}", marks=marks)


@pytest.mark.parametrize(("workers", "error", "message"), [*named_errors()])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_seeded_error_names_sample_and_file(workers, error, message, batch_size):
    text = raised(loader_of(FaultyFiles({17: error}), batch_size, on_bad_sample="raise", **workers), type(error))
    assert message in text.splitlines()
    assert "__getitem__" in text or not workers  # the worker's traceback


@BACKEND
@pytest.mark.parametrize("batch_size", [4, None])
def test_an_unseeded_error_names_the_sample(workers, batch_size):
    text = raised(DataLoader(Faulty({6: KeyError("six")}), batch_size, **workers), KeyError)
    assert "sample 6" in text.splitlines()


class AnyIndex(Faulty):
    def __getitem__(self, index):
        return super().__getitem__(int(index))


@pytest.mark.parametrize(
    "batch", [[5, 6, 7], (5, 6, 7), {5, 6, 7}, torch.tensor([5, 6, 7]), range(5, 8), dict.fromkeys([5, 6, 7])]
)
@pytest.mark.parametrize("seed", [None, 1])
def test_items_of_any_batch_sampler_are_named(batch, seed):
    text = raised(DataLoader(AnyIndex({6: KeyError("six")}), batch_sampler=[batch], seed=seed))
    assert text.splitlines()[-1] in ("sample 6", "sample tensor(6)")


def test_error_of_an_iterator_batch_is_raised_unchanged():
    text = raised(DataLoader(Faulty({6: KeyError("six")}), batch_sampler=[(i for i in (5, 6))]), KeyError)
    assert text == "'six'"


def test_error_object_raised_repeatedly_is_named_once_per_sample():
    error = ValueError("no")
    loader = DataLoader(Faulty({2: error, 3: error}), batch_size=None)
    for _ in range(3):
        outcomes(loader)
    assert error.__notes__ == ["sample 2", "sample 3"]


@pytest.mark.parametrize("seed", [None, 1])
def test_error_in_a_subset_names_the_subset_index(seed):
    split = Subset(FaultyFiles({9: ValueError("nine")}), [1, 3, 9])
    text = raised(DataLoader(split, batch_size=3, seed=seed))
    assert text.splitlines()[-1] == "sample 2, file /pictures/9.jpg"


@pytest.mark.parametrize("seed", [None, 1])
def test_error_of_getitems_names_all_samples(seed):
    class Together(Faulty):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    loader = DataLoader(Together({40: ValueError("no")}, 50), batch_size=50, seed=seed)
    assert raised(loader).splitlines()[-1] == f"one of the samples {[*range(50)]}"


class Awkward(Exception):
    """Its message and its file cannot be read."""

    def __str__(self):
        raise RuntimeError("str")

    @property
    def filename(self):
        raise RuntimeError("filename")


class NoNotes(Exception):
    def add_note(self, note):
        raise RuntimeError("add_note")


class NoPath(Faulty):
    def sample_path(self, index):
        raise RuntimeError("sample_path")


@pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
@pytest.mark.parametrize("error", [Awkward(), NoNotes("x"), ValueError("x" * 5000)], ids=["str", "note", "long"])
@BACKEND
def test_errors_while_naming_do_not_hide_the_first_error(workers, error):
    loader = loader_of(NoPath({4: error}), **workers)
    list(loader)
    (record,) = loader.bad_samples
    assert (record.index, record.error, record.file) == (4, type(error).__name__, None)
    assert len(record.message) <= 1003
    assert outcomes(loader_of(NoPath({4: error}), on_bad_sample="raise")).count(type(error)) == 1


# -- errors under every policy ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@BACKEND
def test_memory_error_is_not_a_bad_sample(workers, policy):
    loader = loader_of(FaultyFiles({17: MemoryError("large")}), on_bad_sample=policy, **workers)
    assert "sample 17, file /pictures/17.jpg" in raised(loader, MemoryError)
    assert loader.bad_samples == ()


class Interrupted(Faulty):
    def __getitem__(self, index):
        raise KeyboardInterrupt


def test_interrupt_is_not_a_bad_sample():
    with pytest.raises(KeyboardInterrupt):
        list(loader_of(Interrupted({})))


def refuse_to_collate(samples):
    raise LookupError("collate")


@BACKEND
@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_errors_of_the_collate_function_are_raised(workers, policy):
    loader = loader_of(Faulty({3: ValueError()}), on_bad_sample=policy, collate_fn=refuse_to_collate, **workers)
    assert outcomes(loader) == [LookupError] * 6


# -- refusals ---------------------------------------------------------------------------------------------


class Batchwise(Dataset):
    def __len__(self):
        return 3

    def __getitems__(self, indices):
        return indices


REFUSED = {
    "policy": (range(3), {"on_bad_sample": "ignore"}, "on_bad_sample='ignore' is unknown; it is one of"),
    "bound": (range(3), {"on_bad_sample": "skip", "max_bad_samples": -1}, "must be an int of at least 0"),
    "no bound": (range(3), {"on_bad_sample": "skip", "max_bad_samples": True}, "max_bad_samples=True must be an int"),
    "nothing to bound": (range(3), {"max_bad_samples": 5}, 'no effect with on_bad_sample="raise"'),
    "stream": (Stream(), {"on_bad_sample": "skip"}, "got the IterableDataset Stream; catch errors in its __iter__"),
    "seeded stream": (Stream(), {"on_bad_sample": "substitute", "seed": 1}, "needs a map dataset"),
    "together": (DrawingBatches(), {"on_bad_sample": "skip"}, "DrawingBatches has __getitems__"),
    "subset": (Subset(Batchwise(), [1]), {"on_bad_sample": "skip"}, "Batchwise has __getitems__"),
    "no batches": (range(3), {"on_bad_sample": "skip", "batch_size": None}, "batch_size=None makes none"),
    "no seed": (range(3), {"on_bad_sample": "substitute"}, "pass seed= and a sampler"),
    "custom": (
        range(3),
        {"on_bad_sample": "substitute", "seed": 1, "sampler": [1, 2]},
        "a sampler of lit_loader.samplers",
    ),
    "custom batches": (
        range(3),
        {"on_bad_sample": "substitute", "seed": 1, "batch_sampler": [[1, 2]]},
        "a sampler of lit_loader.samplers",
    ),
}


@pytest.mark.parametrize(("dataset", "arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_impossible_policy_is_refused_with_the_remedy(dataset, arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(dataset, **arguments)


@pytest.mark.parametrize("seed", [None, 1])
def test_index_outside_of_a_subset_is_named(seed):
    loader = DataLoader(Subset(range(9), [1, 3]), batch_sampler=[[0, 1, 7]], seed=seed)
    with pytest.raises(IndexError) as caught:
        list(loader)
    assert "0, 1, 7" in " ".join(caught.value.__notes__)
