"""Guarantee: a dataset that makes other samples from the same key brings one warning, and no other dataset does."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision import tv_tensors

from lit_loader import DataLoader, sample_rng
from lit_loader.engine.repeatability import NUM_CHECKED, find_difference
from lit_loader.errors import PrivateGeneratorWarning
from tests.support.toys import plain


@pytest.fixture(autouse=True)
def samples_made_once():
    """Leave the check on, unlike in other tests."""


WORKERS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "worker_method": "thread"},
]


class Flipped(Dataset):
    """Images that are flipped, or not, by draws of a generator; as albumentations does by its own."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 24

    def __getitem__(self, index):
        image = torch.arange(6.0).reshape(2, 3) + index
        return {"image": image.flip(-1) if self.draw() < 0.5 else image, "label": index}


class FlippedTogether(Flipped):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def own_generators():
    return [
        random.Random(1).random,
        np.random.default_rng(1).random,
        partial(torch.rand, (), generator=torch.Generator()),
    ]


def loader(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 3, **arguments})


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_a_transform_with_a_generator_of_its_own_brings_one_warning(workers, batch_size):
    dataset = Flipped(random.Random(1).random)
    batches = loader(dataset, batch_size=batch_size, **workers)
    with pytest.warns(PrivateGeneratorWarning) as records:
        counts = [len(list(batches)) for _ in range(2)]
    batches.close()
    assert counts == [24 // (batch_size or 1)] * 2
    (warning,) = records
    text = str(warning.message)
    assert "dataset Flipped made two different samples of index" in text
    assert "they differ at ['image']" in text
    assert "sample_rng()" in text


@pytest.mark.parametrize("draw", own_generators(), ids=["random", "numpy", "torch"])
@pytest.mark.parametrize("kind", [Flipped, FlippedTogether, lambda draw: Subset(Flipped(draw), range(1, 17))])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_private_generator_is_noticed_for_every_generator_and_way_to_make_samples(draw, kind, policy):
    dataset = kind(draw)
    if policy == "skip" and hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset):
        return  # refused
    with pytest.warns(PrivateGeneratorWarning):
        list(loader(dataset, on_bad_sample=policy))


@pytest.mark.parametrize("workers", WORKERS[:3], ids=str)
@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(()), lambda: sample_rng().numpy.random()]
)
def test_draws_that_are_keyed_are_the_same_bits_with_and_without_the_check(draw, workers):
    expected = [plain(batch) for batch in loader(Flipped(draw), check_repeatability=False)]
    assert [plain(batch) for batch in loader(Flipped(draw), **workers)] == expected


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: sample_rng().numpy.random()])
def test_samples_of_threads_are_made_again_from_the_threads_generator(draw):
    expected = [plain(batch) for batch in loader(Flipped(draw), check_repeatability=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [plain(batch) for batch in loader(Flipped(draw), **WORKERS[3])] == expected


class Counted(Dataset):
    """Counts the calls for each index in a file, as workers are processes."""

    def __init__(self, path, seconds=0.0, *, fails=False):
        self.path = path
        self.seconds = seconds
        self.fails = fails

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(self.seconds)
        is_again = self.num_calls() > 0 and f" {index}\n" in self.path.read_text()
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {index}\n")
        if self.fails and is_again:
            raise ValueError("it was made before")
        return index

    def num_calls(self):
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
def test_eight_samples_of_a_datasets_first_epoch_are_made_twice_and_no_more(workers, tmp_path):
    dataset = Counted(tmp_path / "calls")
    batches = loader(dataset, batch_size=3, **workers)
    list(batches)
    assert dataset.num_calls() == 24 + NUM_CHECKED
    list(batches)
    list(loader(dataset))  # another loader over the same dataset
    assert dataset.num_calls() == 3 * 24 + NUM_CHECKED


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [({"check_repeatability": False}, 0.0), ({"seed": None}, 0.0), ({"rank": 1, "world_size": 2}, 0.0), ({}, 0.3)],
    ids=["switched off", "unseeded", "another rank", "slow samples"],
)
def test_samples_are_made_once(arguments, seconds, tmp_path):
    dataset = Counted(tmp_path / "calls", seconds)
    next(iter(loader(dataset, batch_size=2, **arguments)))
    assert dataset.num_calls() == 2


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
def test_a_sample_that_fails_the_second_time_fails_no_run(workers, tmp_path):
    assert len(list(loader(Counted(tmp_path / "calls", fails=True), **workers))) == 6


class Rewriting(Dataset):
    """Returns the same tensor for an index each time, with the number of the call in it."""

    def __init__(self):
        self.samples = torch.zeros(24, 1)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        sample = self.samples[index]
        sample += 1
        return sample


def test_a_dataset_that_writes_to_its_samples_again_changes_no_batch():
    batches = list(loader(Rewriting(), shuffle=False))
    assert torch.cat(batches).flatten().tolist() == [1.0] * 24


def test_the_collate_function_draws_as_without_the_check():
    def collate(samples):
        return [torch.rand(()).item(), np.random.rand(), random.random()]

    expected = list(loader(range(24), collate_fn=collate, check_repeatability=False))
    assert list(loader(Flipped(random.random), collate_fn=collate)) == expected


Pair = namedtuple("Pair", "left right")


@dataclass
class Marked:
    value: object


@pytest.mark.parametrize(
    ("make", "other", "where"),
    [
        (lambda: torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), ""),
        (lambda: torch.tensor(0.0), torch.tensor(-0.0), ""),
        (lambda: torch.zeros(2), torch.zeros(2, dtype=torch.float64), ""),
        (lambda: torch.ones(3, 2).T, torch.zeros(2, 3), ""),
        (lambda: tv_tensors.Image(torch.zeros(3, 2, 2)), tv_tensors.Image(torch.ones(3, 2, 2)), ""),
        (lambda: np.arange(4)[::2], np.arange(2), ""),
        (lambda: np.float32("nan"), np.float32(1), ""),
        (lambda: Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2), "red"), ""),
        (lambda: float("nan"), 1.0, ""),
        (lambda: "a", "b", ""),
        (lambda: {"a": [1, (2, 3)]}, {"a": [1, (2, 4)]}, "['a'][1][1]"),
        (lambda: {"a": 1}, {"b": 1}, ""),
        (lambda: OrderedDict(a=1), OrderedDict(a=2), "['a']"),
        (lambda: [1], [1, 2], ""),
        (lambda: Pair(1, 2), Pair(1, 3), "[1]"),
        (lambda: Marked([1]), Marked([2]), ".value[0]"),
        (lambda: 1, 1.0, ""),
    ],
)
def test_samples_are_compared_bit_by_bit(make, other, where):
    assert find_difference(make(), make()) is None
    assert find_difference(make(), other) == where


def test_values_of_unknown_types_are_not_compared():
    assert find_difference(SimpleNamespace(a=1), SimpleNamespace(a=2)) is None
    assert find_difference(np.array([object()]), np.array([object()])) is None
