"""Guarantee: with a seed no StopIteration of the user's code ends an epoch silently; without one all is as in torch."""

from __future__ import annotations

import pytest
from torch.utils.data import Dataset, IterableDataset, Subset

from lit_loader import DataLoader, get_worker_info
from lit_loader.errors import BadSamplesWarning
from tests.support.outcomes import FEW_BACKENDS, outcomes_of

EACH = pytest.mark.parametrize("workers", FEW_BACKENDS.values(), ids=FEW_BACKENDS)


class Stops(Dataset):
    """Sample 4 raises StopIteration, as a bare next() does."""

    def __len__(self):
        return 10

    def sample_path(self, index):
        return f"/images/{index}.jpg"

    def __getitem__(self, index):
        return next(iter(())) if index == 4 else index


class StopsTogether(Stops):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """Samples 0 to 9, shared out among the workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 10, step))


class StopsAtOnce(Stream):
    def __iter__(self):
        raise StopIteration


class StopsResuming(Stream):
    """Its iterators have a state, and cannot go on from it."""

    def __iter__(self):
        return StopsResumingIterator()


class StopsResumingIterator:
    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise StopIteration


def as_list(samples):
    return samples


def stops_at_four(samples):
    return next(iter(())) if 4 in samples else samples


def stops(_):
    raise StopIteration("early")


def batches_and_errors(loader):
    outcomes = outcomes_of(loader)
    errors = [outcome for outcome in outcomes if isinstance(outcome, RuntimeError)]
    return [outcome for outcome in outcomes if outcome not in errors], errors


def says(error, *words):
    """Return True if an error, with its notes, contains all words."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return all(word in text for word in words)


MAPS = {
    "each": (Stops(), {}, "sample 4, file /images/4.jpg"),
    "together": (StopsTogether(), {}, "one of the samples [4, 5]"),
    "subset": (Subset(Stops(), range(10)), {}, "sample 4, file /images/4.jpg"),
    "shifted subset": (Subset(Stops(), [*range(2, 10), 0, 1]), {}, "sample 2, file /images/4.jpg"),
    "subset, together": (Subset(StopsTogether(), range(10)), {}, "one of the samples [4, 5]"),
}


@EACH
@pytest.mark.parametrize(("dataset", "arguments", "named"), MAPS.values(), ids=MAPS)
def test_stop_iteration_of_a_sample_is_an_error_that_names_it(dataset, arguments, named, workers):
    loader = DataLoader(dataset, 2, seed=0, collate_fn=as_list, **arguments, **workers)
    batches, errors = batches_and_errors(loader)
    assert len(batches) == 4
    (error,) = errors
    assert type(error) is RuntimeError
    assert says(error, "raised StopIteration, which would end the epoch here", "catch it", named)
    if not workers:
        assert isinstance(error.__cause__, StopIteration)
    else:
        assert says(error, "direct cause of the following exception")


@EACH
def test_stop_iteration_of_an_unbatched_sample_is_an_error(workers):
    batches, errors = batches_and_errors(DataLoader(Stops(), None, seed=0, **workers))
    assert batches == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert len(errors) == 1
    assert says(errors[0], "dataset Stops raised StopIteration", "sample 4, file /images/4.jpg")


@EACH
@pytest.mark.parametrize("dataset", [range(10), Stream()], ids=["map", "iterable"])
def test_stop_iteration_of_the_collate_function_is_an_error(dataset, workers):
    batches, errors = batches_and_errors(DataLoader(dataset, 2, seed=0, collate_fn=stops_at_four, **workers))
    assert sum(map(len, batches)) == 8
    assert len(errors) == 1
    assert type(errors[0]) is RuntimeError
    assert says(errors[0], "collate_fn raised StopIteration")


@EACH
def test_stop_iteration_of_iter_is_an_error(workers):
    with pytest.raises(RuntimeError, match="__iter__ of dataset StopsAtOnce raised StopIteration"):
        next(iter(DataLoader(StopsAtOnce(), 2, seed=0, **workers)))


@EACH
def test_end_of_an_iterable_dataset_is_no_error(workers):
    batches, errors = batches_and_errors(DataLoader(Stream(), 2, seed=0, collate_fn=as_list, **workers))
    assert sorted(sample for batch in batches for sample in batch) == list(range(10))
    assert not errors


@pytest.mark.parametrize("workers", [FEW_BACKENDS["inline"], FEW_BACKENDS["fork"]], ids=["inline", "fork"])
def test_stop_iteration_of_load_state_dict_is_an_error(workers):
    loader = DataLoader(StopsResuming(), 2, seed=0, collate_fn=as_list, **workers)
    iterator = iter(loader)
    next(iterator), next(iterator)  # each worker has given one
    state = loader.state_dict()
    loader.close()
    later = DataLoader(StopsResuming(), 2, seed=0, collate_fn=as_list, **workers)
    later.load_state_dict(state)
    iterator = iter(later)
    for _ in range(2):  # it must not start again instead
        with pytest.raises(RuntimeError, match="load_state_dict of StopsResuming or its iterator raised StopI"):
            next(iterator)
    later.close()


@pytest.mark.parametrize("dataset", [range(10), Stream()], ids=["map", "iterable"])
@pytest.mark.parametrize("workers", [FEW_BACKENDS["thread"], FEW_BACKENDS["fork"]], ids=["thread", "fork"])
def test_stop_iteration_of_worker_init_fn_is_an_error(dataset, workers):
    with pytest.raises(
        RuntimeError, match=r"code of a worker \(its worker_init_fn, for example\) raised StopIteration"
    ):
        next(iter(DataLoader(dataset, 2, seed=0, worker_init_fn=stops, **workers)))


@EACH
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", [[0, 1], [2, 3], [5], [6, 7], [8, 9]]), ("substitute", [[0, 1], [2, 3], [..., 5], [6, 7], [8, 9]])],
)
@pytest.mark.parametrize("dataset", [Stops(), Subset(Stops(), range(10))], ids=["each", "subset"])
def test_stop_iteration_is_a_bad_sample_like_any_other(dataset, policy, expected, workers):
    loader = DataLoader(dataset, 2, seed=0, collate_fn=as_list, on_bad_sample=policy, **workers)
    with pytest.warns(BadSamplesWarning, match=r"sample 4, file /images/4\.jpg: StopIteration"):
        batches = list(loader)
    if policy == "substitute":
        assert batches[2][0] != 4
        batches[2][0] = ...
    assert batches == expected
    assert [(bad.index, bad.error) for bad in loader.bad_samples] == [(4, "StopIteration")]


@EACH
def test_stop_iteration_without_a_seed_ends_the_loop_as_in_torch(workers):
    with DataLoader(Stops(), 2, collate_fn=as_list, **workers) as loader:
        assert list(loader) == [[0, 1], [2, 3]]
