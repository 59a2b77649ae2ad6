"""Without a seed the loader gives what torch's gives, value for value and draw for draw."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.toys import Drawing, DrawingBatches, Mixed, Points, Slow, Stream, collate_with_draw, plain


class Batches:
    """A batch sampler that is no Sampler, of containers that are no lists."""

    def __iter__(self):
        return iter([(0, 3), np.array([1, 2, 5]), range(4)])

    def __len__(self):
        return 3


def tensors():
    return TensorDataset(torch.randn(11, 3, generator=torch.Generator().manual_seed(0)), torch.arange(11))


CASES = {
    "tensor dataset": lambda: (tensors(), {"batch_size": 4}),
    "dict dataset": lambda: (Mixed(), {"batch_size": 3}),
    "namedtuple dataset": lambda: (Points(), {"batch_size": 4, "drop_last": True}),
    "iterable dataset": lambda: (Stream(), {"batch_size": 4}),
    "iterable dataset, drop_last": lambda: (Stream(), {"batch_size": 4, "drop_last": True}),
    "iterable dataset, no batching": lambda: (Stream(), {"batch_size": None}),
    "no batching": lambda: (tensors(), {"batch_size": None}),
    "custom batch sampler": lambda: (tensors(), {"batch_sampler": Batches()}),
    "plain batch sampler": lambda: (
        tensors(),
        {"batch_sampler": BatchSampler(SequentialSampler(range(11)), 3, True)},
    ),
    "torch's weighted sampler": lambda: (
        Drawing(),
        {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 23, 30)},
    ),
    "list sampler": lambda: (tensors(), {"batch_size": 2, "sampler": [3, 1, 2]}),
    "shuffled": lambda: (Drawing(), {"batch_size": 4, "shuffle": True}),
    "shuffled by a generator": lambda: (
        Drawing(),
        {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(4)},
    ),
    "getitems": lambda: (DrawingBatches(), {"batch_size": 4, "shuffle": True}),
    "subset": lambda: (Subset(Drawing(), [5, 1, 9, 2, 2]), {"batch_size": 2}),
    "collate_fn that draws": lambda: (Drawing(), {"batch_size": 6, "collate_fn": collate_with_draw}),
}


def epochs_of(kind, case, **workers):
    """Return two epochs of batches, and what the process draws afterwards."""
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    dataset, arguments = CASES[case]()
    loader = kind(dataset, **arguments, **workers)
    batches = [[plain(batch) for batch in loader] for _ in range(2)]
    after = (torch.rand(1).item(), np.random.rand(), random.random())
    return batches, after


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}], ids=["inline", "fork"])
@pytest.mark.parametrize("case", CASES)
def test_batches_and_draws_equal_torchs(case, workers):
    assert epochs_of(DataLoader, case, **workers) == epochs_of(TorchDataLoader, case, **workers)


@pytest.mark.parametrize("case", ["iterable dataset", "shuffled", "dict dataset"])
def test_persistent_workers_equal_torchs(case):
    workers = {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 3}
    assert epochs_of(DataLoader, case, **workers) == epochs_of(TorchDataLoader, case, **workers)


def test_spawned_workers_equal_torchs():
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert epochs_of(DataLoader, "shuffled", **workers) == epochs_of(TorchDataLoader, "shuffled", **workers)


def test_it_is_torchs_class_by_isinstance_and_name():
    loader = DataLoader[int](tensors())
    assert isinstance(loader, TorchDataLoader)
    assert type(loader).__name__ == "DataLoader"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_workers": -1}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"prefetch_factor": 2}, ValueError),
        ({"persistent_workers": True}, ValueError),
        ({"sampler": [0], "shuffle": True}, ValueError),
        ({"batch_sampler": [[0]], "batch_size": 2}, ValueError),
        ({"batch_sampler": [[0]], "drop_last": True}, ValueError),
        ({"batch_size": None, "drop_last": True}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"multiprocessing_context": "fork"}, ValueError),
        ({"multiprocessing_context": "nope", "num_workers": 1}, ValueError),
        ({"multiprocessing_context": 3, "num_workers": 1}, TypeError),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_arguments_that_exclude_each_other_fail_as_in_torch(arguments, error, seed):
    with pytest.raises(error) as torchs:
        TorchDataLoader(tensors(), **arguments)
    with pytest.raises(error) as ours:
        DataLoader(tensors(), **arguments, **seed)
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_attributes_that_torch_fixes_are_fixed(name):
    with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
        setattr(DataLoader(tensors(), seed=1), name, 3)


def test_an_iterable_dataset_that_gives_more_than_it_said_is_warned_about():
    class Short(Stream):
        def __len__(self) -> int:
            return 2

    def warned(kind):
        loader = kind(Short(4), batch_size=1)
        len(loader)
        with pytest.warns(UserWarning, match="was reported to be 2") as caught:
            list(loader)
        return len(caught)

    assert warned(DataLoader) == warned(TorchDataLoader)


def test_lengths_equal_torchs():
    for batch_size in (1, 4, 11, 20, None):
        for drop_last in (False, True):
            if batch_size is None and drop_last:
                continue
            arguments = {"batch_size": batch_size, "drop_last": drop_last}
            expected = len(TorchDataLoader(tensors(), **arguments))
            assert len(DataLoader(tensors(), **arguments)) == expected
            assert len(DataLoader(tensors(), seed=0, **arguments)) == expected
            assert len(iter(DataLoader(tensors(), seed=0, **arguments))) == expected


def test_batches_may_be_delivered_out_of_order():
    for seed in ({}, {"seed": 3}):
        loader = DataLoader(tensors(), batch_size=2, num_workers=2, in_order=False, **seed)
        assert sorted(i for _, labels in loader for i in labels.tolist()) == list(range(11))


def test_pin_memory_without_an_accelerator_warns_as_torch_does():
    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    for kind in (TorchDataLoader, DataLoader):
        with pytest.warns(UserWarning, match="no accelerator is found"):
            batches = list(kind(tensors(), batch_size=4, pin_memory=True))
        assert len(batches) == 3


def test_a_datapipe_is_refused():
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(TypeError, match="DataPipe"):
        DataLoader(IterableWrapper([1, 2]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_profiler_label_is_torchs(num_workers):
    def labels(kind):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(kind(tensors(), batch_size=4, num_workers=num_workers))
        return {
            event.key for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)")
        }

    assert labels(DataLoader) == labels(TorchDataLoader) != set()


def test_a_sample_that_raises_stop_iteration_ends_a_loop_and_not_the_iterator():
    class Stopping(Slow):
        def __getitem__(self, index):
            if index == 1:
                raise StopIteration
            return index

    def found(kind, num_workers):
        iterator = iter(kind(Stopping(0, 4), num_workers=num_workers))
        return [list(iterator) for _ in range(2)]

    for num_workers in (0, 1):
        ours, torchs = found(DataLoader, num_workers), found(TorchDataLoader, num_workers)
        assert [[b.tolist() for b in part] for part in ours] == [
            [b.tolist() for b in part] for part in torchs
        ]
        assert [len(part) for part in ours] == [1, 2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_indices_of_a_users_sampler_arrive_as_they_are(num_workers):
    class Types(Drawing):
        def __getitem__(self, index):
            return type(index).__name__

    arguments = {
        "sampler": [np.array([1, 2]), np.int64(3), 4],
        "batch_size": None,
        "num_workers": num_workers,
    }
    assert list(DataLoader(Types(), **arguments)) == list(TorchDataLoader(Types(), **arguments))
    batches = {"batch_sampler": [np.array([[1, 2], [3, 4]])], "num_workers": num_workers}
    assert (
        list(DataLoader(Types(), **batches)) == list(TorchDataLoader(Types(), **batches)) == [["ndarray"] * 2]
    )


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_settings_that_torch_refuses_when_iterated_are_refused(seed):
    with pytest.raises(AssertionError, match="prefetch_factor"):
        iter(DataLoader(Drawing(), num_workers=1, prefetch_factor=0, **seed))
    with pytest.raises(AssertionError, match="timeout"):
        iter(DataLoader(Drawing(), timeout=1, **seed))
