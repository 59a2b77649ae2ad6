"""Construction: exclusions between arguments, the order of their checks, and defaults."""

from __future__ import annotations

import inspect
import itertools
import os
import warnings

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support.parity_datasets import Count, Numbers, Unsized

OTHER = object()

# Every argument with values that are refused, alone or together with another one.
CHOICES = {
    "num_workers": [-1, 0, 1],
    "timeout": [-1],
    "prefetch_factor": [-1, 0, 2],
    "persistent_workers": [True],
    "shuffle": [True, False, "yes"],
    "sampler": [[0, 1]],
    "batch_sampler": [[[0, 1]]],
    "batch_size": [None, 0, 2, -1, 1.5, True, "2"],
    "drop_last": [True, "no"],
    "multiprocessing_context": ["fork", "nope", 3],
    "in_order": [False],
}


def attempts(count):
    """Yield every choice of ``count`` arguments with values."""
    for names in itertools.combinations(CHOICES, count):
        for values in itertools.product(*(CHOICES[name] for name in names)):
            yield dict(zip(names, values, strict=True))


def outcome(kind, dataset, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind(dataset, **arguments)
        except Exception as error:
            return type(error), str(error)
    return "accepted"


@pytest.mark.parametrize("dataset", [Numbers(), Unsized(), Count(3), []], ids=["map", "unsized", "iterable", "empty"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_combination_is_accepted_or_refused_with_torchs_type_and_message(dataset, count):
    for arguments in attempts(count):
        expected = outcome(TorchDataLoader, dataset, arguments)
        assert outcome(DataLoader, dataset, arguments) == expected, arguments


@pytest.mark.parametrize("count", [1, 2])
def test_seed_does_not_change_the_refusals(count):
    for arguments in attempts(count):
        expected = outcome(TorchDataLoader, Numbers(), arguments)
        if expected != "accepted":
            assert outcome(lambda *a, **k: DataLoader(*a, seed=1, **k), Numbers(), arguments) == expected


def test_first_wrong_argument_is_named():
    wrong = {"num_workers": -1, "timeout": -1, "prefetch_factor": -1}
    wrong |= {"sampler": [0], "shuffle": True, "batch_sampler": [[0]], "batch_size": 0}
    while wrong:
        assert outcome(DataLoader, Numbers(), wrong) == outcome(TorchDataLoader, Numbers(), wrong)
        wrong.pop(next(iter(wrong)))


def test_arguments_have_torchs_names_positions_and_defaults():
    torchs = inspect.signature(TorchDataLoader.__init__).parameters
    ours = inspect.signature(DataLoader.__init__).parameters
    by_position = [name for name, item in ours.items() if item.kind is item.POSITIONAL_OR_KEYWORD]
    assert by_position == [name for name, item in torchs.items() if item.kind is item.POSITIONAL_OR_KEYWORD]
    for name, item in torchs.items():
        assert (ours[name].kind, ours[name].default) == (item.kind, item.default)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 1}, {"batch_size": None}, {"shuffle": True}], ids=str)
@pytest.mark.parametrize("dataset", [Numbers(), Count(3)], ids=["map", "iterable"])
def test_attributes_after_construction_are_torchs(dataset, arguments):
    if isinstance(dataset, Count):
        arguments = {name: value for name, value in arguments.items() if name != "shuffle"}
    torchs = TorchDataLoader(dataset, **arguments)
    ours = DataLoader(dataset, **arguments)
    names = inspect.signature(TorchDataLoader.__init__).parameters.keys()
    for name in names - {"self", "shuffle", "sampler", "batch_sampler"}:
        assert getattr(ours, name) == getattr(torchs, name), name
    assert type(ours.sampler) is type(torchs.sampler)
    assert type(ours.batch_sampler) is type(torchs.batch_sampler)


def test_unknown_argument_is_refused():
    for kind in (TorchDataLoader, DataLoader):
        with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
            kind(Numbers(), batchsize=3)


def test_random_sampler_gets_the_generator():
    generator = torch.Generator()
    for kind in (TorchDataLoader, DataLoader):
        assert kind(Numbers(), shuffle=True, generator=generator).sampler.generator is generator


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_more_workers_than_cores_give_a_warning_at_construction_and_iteration(monkeypatch, seed):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})

    def warned(kind, **arguments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(Numbers(), num_workers=2, multiprocessing_context="fork", **arguments)
            list(loader)
            list(loader)
        texts = [str(warning.message) for warning in caught]
        return [text for text in texts if "is multi-threaded" not in text]  # Python's, about a fork

    ours = warned(DataLoader, **seed)
    assert ours == warned(TorchDataLoader)
    assert len(ours) == 3
    assert "will create 2 worker processes in total. Our suggested max number of worker in current" in ours[0]
