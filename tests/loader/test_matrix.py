"""Guarantee: with a seed, every backend, number of workers and delivery gives the same bits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.engine import fetch
from lit_loader.loader.resume.epochs import EpochState
from lit_loader.seeding import ThreadScope, draw_modes, generators, sample_rng
from tests.support.toys import plain

NUM_BATCHES = 6


class OwnAndTorch(Dataset):
    """Draws from torch and from the sample's own generators: what every backend can promise."""

    def __init__(self, length=4 * NUM_BATCHES - 1):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = sample_rng()
        return {
            "index": index,
            "torch": torch.rand(2),
            "normal": torch.randn(3).to(torch.float64).sum(),
            "permutation": torch.randperm(5),
            "own_torch": torch.rand(2, generator=rng.torch),
            "own_numpy": rng.numpy.random(2),
            "own_python": rng.python.random(),
            "again": torch.randint(1000, (2,)),
        }


class Everything(OwnAndTorch):
    """Draws from the process-wide generators of numpy and random besides, which threads refuse."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "numpy": np.random.rand(2), "python": random.random(), "gauss": random.gauss()}


def loader_of(dataset, num_workers=0, method=None, **arguments):
    if method == "thread":
        arguments["worker_method"] = "thread"
    elif num_workers:
        arguments["multiprocessing_context"] = method
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        seed=11,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        **arguments,
    )


def epoch(loader, number):
    loader.set_epoch(number)
    return [plain(batch) for batch in loader]


def inline(dataset, number):
    return epoch(loader_of(dataset), number)


def by_indices(batches):
    return sorted(batches, key=lambda batch: batch["index"][2])


def without_process_wide(batches):
    return [
        {name: part for name, part in batch.items() if name not in ("numpy", "python", "gauss")} for batch in batches
    ]


def assert_the_whole_row(dataset, num_workers, method, epochs=(0, 3)):
    """One loader, its workers kept, serves both deliveries, in several epochs."""
    expected = {number: inline(dataset, number) for number in epochs}
    with loader_of(dataset, num_workers, method) as loader:
        for number in epochs:
            for in_order in (True, False):
                loader.in_order = in_order
                arrange = list if in_order else by_indices
                actual = arrange(epoch(loader, number))
                assert actual == arrange(expected[number]), (num_workers, method, number, in_order)


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        *((method, num_workers) for method in ("fork", "forkserver") for num_workers in (1, 2, 5)),
        ("spawn", 2),
        *(pytest.param("spawn", num_workers, marks=pytest.mark.soak) for num_workers in (1, 5)),
    ],
)
def test_worker_processes_give_the_inline_batches(method, num_workers):
    assert_the_whole_row(Everything(), num_workers, method)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_worker_threads_give_the_inline_batches(num_workers):
    assert_the_whole_row(OwnAndTorch(), num_workers, "thread", epochs=(0, 1, 3))


def test_both_datasets_draw_the_same_from_torch_and_their_own():
    """So that threads and processes are held to the same numbers."""
    assert without_process_wide(inline(Everything(), 2)) == inline(OwnAndTorch(), 2)


def test_the_epochs_of_the_matrix_differ_and_their_samples_too():
    actual = [batch for number in (0, 1, 3) for batch in inline(Everything(), number)]
    for name in ("torch", "numpy", "own_torch"):
        draws = [tuple(draw) for batch in actual for draw in batch[name][2]]
        assert len(set(draws)) == len(draws) == 3 * len(Everything())


class TestTheMatrixFails:
    """Each mechanism disabled in turn."""

    @pytest.mark.parametrize("method", ["fork", "thread"])
    def test_when_samples_are_keyed_by_worker(self, method, monkeypatch):
        make = fetch.MapFetcher._make

        def by_place_in_batch(self, task, move):
            return make(self, task._replace(key=task.key._replace(first=0)), move)

        dataset = OwnAndTorch()
        expected = inline(dataset, 0)
        monkeypatch.setattr(fetch.MapFetcher, "_make", by_place_in_batch)
        with loader_of(dataset, 2, method) as loader:
            assert epoch(loader, 0) != expected

    def test_when_processes_do_not_seed(self, monkeypatch):
        monkeypatch.setattr(generators, "seed_generators", lambda key: None)
        with pytest.raises(AssertionError):
            assert_the_whole_row(Everything(), 1, "fork")

    @pytest.mark.parametrize("left_out", ["torch", "numpy", "python"])
    def test_when_processes_leave_out_one_generator(self, left_out, monkeypatch):
        seed = generators.seed_generators

        def all_but_one(key):
            states = torch.get_rng_state(), np.random.get_state(), random.getstate()
            seed(key)
            match left_out:
                case "torch":
                    torch.set_rng_state(states[0])
                case "numpy":
                    np.random.set_state(states[1])
                case "python":
                    random.setstate(states[2])

        monkeypatch.setattr(generators, "seed_generators", all_but_one)
        with pytest.raises(AssertionError):
            assert_the_whole_row(Everything(), 1, "fork")

    @pytest.mark.filterwarnings("ignore::lit_loader.errors.SharedGeneratorWarning")
    def test_when_threads_have_no_scope(self, monkeypatch):
        monkeypatch.setattr(draw_modes, "_HANDLERS", {})
        with pytest.raises((AssertionError, RuntimeError)):
            assert_the_whole_row(OwnAndTorch(), 2, "thread")

    def test_when_threads_do_not_seed(self, monkeypatch):
        monkeypatch.setattr(ThreadScope, "seed_for", staticmethod(lambda *parts: None))
        with pytest.raises(AssertionError):
            assert_the_whole_row(OwnAndTorch(), 1, "thread")

    def test_when_the_epoch_is_not_in_the_key(self, monkeypatch):
        claim = EpochState.claim

        def first_epoch(self, loader):
            progress, point = claim(self, loader)
            progress.epoch = 0
            return progress, point

        with loader_of(OwnAndTorch(), 2, "thread") as loader:
            monkeypatch.setattr(EpochState, "claim", first_epoch)
            actual = epoch(loader, 3)
        monkeypatch.undo()
        assert actual != inline(OwnAndTorch(), 3)
