"""Guarantee: a dataset that draws from what worker threads share brings a warning at once, and no other does."""

from __future__ import annotations

import random
import threading
import time
import warnings
from itertools import count

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, sample_rng
from lit_loader.errors import SharedGeneratorWarning
from lit_loader.seeding import SharedDrawCheck, preserved_generators
from tests.support.in_threads import Calls
from tests.support.in_threads import batched_threads as threads
from tests.support.toys import plain


def drawing(draw, length=16):
    """Return a dataset of indices, each with a draw."""
    return Calls(lambda index: (index, draw()), length)


class DrawsInIter(IterableDataset):
    def __iter__(self):
        random.random()
        yield from range(4)


# Draws where no mode of torch sees it.
UNSEEN = Calls(lambda index: torch.default_generator.seed() % 2)
seeds = count()


def seed_numpy():
    np.random.seed(next(seeds))
    return 0


def own():
    rng = sample_rng()
    return rng.python.random(), rng.numpy.random(), torch.rand(1, generator=rng.torch), torch.rand(1)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(
    ("name", "draw"), [("random", random.random), ("numpy", np.random.rand), ("numpy", seed_numpy)]
)
def test_a_dataset_that_draws_brings_a_warning_at_the_first_batch(name, draw, in_order, num_workers):
    loader = threads(drawing(draw), num_workers=num_workers, in_order=in_order)
    for _ in range(2):
        with pytest.warns(SharedGeneratorWarning, match=rf"generator of {name}.*sample_rng"):
            next(iter(loader))


def test_no_batch_is_refused_and_one_warning_is_enough():
    with threads(drawing(random.random), persistent_workers=True) as loader:
        with pytest.warns(SharedGeneratorWarning) as records:
            assert [len(list(loader)) for _ in range(2)] == [8, 8]
        assert len(records) == 1


def test_a_filter_that_makes_the_warning_an_error_refuses_the_dataset():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedGeneratorWarning)
        with pytest.raises(SharedGeneratorWarning, match="of random"):
            list(threads(drawing(random.random)))


@pytest.mark.parametrize("dataset", [DrawsInIter(), UNSEEN])
def test_streams_and_unseen_draws_of_torch_are_found_too(dataset):
    with pytest.warns(SharedGeneratorWarning):
        next(iter(threads(dataset)))


def test_a_collate_function_that_draws_is_found():
    def collate(samples):
        return random.random()

    with pytest.warns(SharedGeneratorWarning):
        next(iter(threads(range(8), collate_fn=collate)))


def test_a_dropout_in_a_sample_has_the_bits_of_no_workers():
    dataset = drawing(lambda: torch.nn.functional.dropout(torch.ones(9)))
    expected = [plain(batch) for batch in DataLoader(dataset, 2, seed=3)]
    assert [plain(batch) for batch in threads(dataset, seed=3)] == expected


def test_without_the_check_it_would_pass(monkeypatch):
    """The mechanism disabled."""
    monkeypatch.setattr(SharedDrawCheck, "warn", lambda check: None)
    assert len(list(threads(drawing(random.random)))) == 8


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_without_a_seed_nothing_is_promised_and_nothing_warned_of(draw):
    assert len(list(threads(drawing(draw), seed=None))) == 8


def test_generators_of_a_sample_are_no_false_alarm_and_give_the_inline_numbers():
    expected = [plain(batch) for batch in threads(drawing(own), num_workers=0)]
    assert [plain(batch) for batch in threads(drawing(own))] == expected


def busy_draws():
    random.random(), np.random.rand(), torch.rand(1)


def test_a_consumer_that_draws_all_the_time_is_no_false_alarm():
    for number in range(30):
        busy_draws()
        loader = threads(drawing(own), seed=number, num_workers=1 + number % 3, in_order=number % 2 == 0)
        iterator = iter(loader)
        busy_draws()
        for _ in iterator:
            for _ in range(20):
                busy_draws()


@pytest.mark.filterwarnings("ignore::lit_loader.errors.SharedGeneratorWarning")
def test_another_thread_that_draws_all_the_time_refuses_nothing():
    """The check cannot tell that thread's draws from the dataset's."""
    over = threading.Event()

    def draw():
        while not over.is_set():
            busy_draws()
            time.sleep(0)

    other = threading.Thread(target=draw)
    other.start()
    try:
        for number in range(10):
            assert len(list(threads(drawing(own), seed=number))) == 8
    finally:
        over.set()
        other.join()


def test_idle_workers_of_another_loader_do_not_prevent_the_check():
    with threads(range(8), persistent_workers=True) as idle:
        list(idle)
        time.sleep(0.2)  # its threads make the first batches of the next epoch
        with pytest.warns(SharedGeneratorWarning):
            list(threads(drawing(random.random)))


def test_another_loaders_threads_that_draw_are_no_false_alarm():
    def slow_draw():
        time.sleep(0.0002)
        return random.random()

    with threads(drawing(slow_draw, 100_000), seed=None, prefetch_factor=50) as noisy:
        noise = iter(noisy)
        for number in range(20):
            next(noise)
            assert len(list(threads(drawing(own), seed=number))) == 8


def test_a_worker_init_fn_that_seeds_is_no_false_alarm():
    def init(worker):
        time.sleep(0.002 * worker)
        random.seed(worker)
        np.random.seed(worker)

    for number in range(15):
        assert len(list(threads(drawing(own), seed=number, num_workers=3, worker_init_fn=init))) == 8


def test_a_loader_inside_of_a_sample_moves_nothing_of_the_process():
    """Seeded and inline, it would seed the process's generators in each worker process."""

    def nested():
        drawn = torch.rand(1)
        inside = [plain(batch) for batch in DataLoader(drawing(lambda: torch.rand(1), 4), seed=3, batch_size=2)]
        return drawn, torch.rand(1), inside[1][2][2][0][0]

    expected = [plain(batch) for batch in threads(drawing(nested), num_workers=0)]
    state = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    assert [plain(batch) for batch in threads(drawing(nested))] == expected
    assert state == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())


def test_a_sample_that_seeds_torchs_default_generator_brings_a_warning():
    with preserved_generators(), pytest.warns(SharedGeneratorWarning, match="generator of torch"):
        list(threads(drawing(lambda: torch.manual_seed(3).initial_seed())))
