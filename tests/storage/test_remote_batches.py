"""Guarantee: images in a store give the batches of local files, bit for bit."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.util import find_spec

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.datasets import DetectionDataset
from tests.support.sampler_families import FAMILIES
from tests.support.stored_sets import closing_store, draw_images, remote_images, remote_set, table_of

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

NUM_IMAGES = 23


def collate(samples):
    return [(target["image_id"], image.numpy().tobytes()) for image, target in samples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stored")


@pytest.fixture(scope="module")
def names(folder):
    return draw_images(folder / "set", NUM_IMAGES)


@pytest.fixture(scope="module")
def store(folder, names):
    """A store that serves all tests, with a window that is smaller than the set."""
    with closing_store(remote_images(folder / "set", names, folder / "cache", window=8)) as store:
        # It also opens the socket for requests, which no test shall leave behind.
        store.read(names[0])
        yield store


@pytest.fixture
def local_set(folder, names):
    return DetectionDataset(table_of(folder / "set", names))


@pytest.fixture
def stored_set(folder, names, store):
    return remote_set(store, folder / "elsewhere", names)


def batches(dataset, name="random", num_epochs=2, **arguments):
    settings = {"sampler": FAMILIES[name](NUM_IMAGES, None), "seed": 3, "batch_size": 4, "collate_fn": collate}
    with DataLoader(dataset, **(settings | arguments)) as loader:
        return [list(loader) for _ in range(num_epochs)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_sampler_gives_the_batches_of_files(name, local_set, stored_set):
    for rank in range(2):
        arguments = {"rank": rank, "world_size": 2}
        assert batches(stored_set, name, **arguments) == batches(local_set, name, **arguments)


@pytest.mark.parametrize("name", FAMILIES)
def test_resumed_epoch_gives_the_batches_of_files(name, local_set, stored_set):
    arguments = {"sampler": FAMILIES[name](NUM_IMAGES, None), "seed": 3, "batch_size": 4, "collate_fn": collate}
    local_loader = DataLoader(local_set, **arguments)
    iterator = iter(local_loader)
    next(iterator)
    with DataLoader(stored_set, **arguments) as loader:
        loader.load_state_dict(local_loader.state_dict())
        assert list(loader) == list(iterator)


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_workers_give_the_batches_of_files(method, local_set, stored_set):
    arguments = {"num_workers": 2, "worker_method": method, "persistent_workers": True}
    assert batches(stored_set, **arguments) == batches(local_set)


def test_loaders_of_two_sets_share_a_store(local_set, stored_set):
    settings = {"seed": 1, "batch_size": 4, "collate_fn": collate}
    with DataLoader(stored_set, shuffle=True, **settings) as first, DataLoader(stored_set, **settings) as second:
        pairs = list(zip(first, second, strict=True))
    local = zip(DataLoader(local_set, shuffle=True, **settings), DataLoader(local_set, **settings), strict=True)
    assert pairs == list(local)


def test_images_are_fetched_before_they_are_read(folder, names):
    with closing_store(remote_images(folder / "set", names, folder / "ahead")) as store:
        dataset = remote_set(store, folder / "elsewhere", names)
        with DataLoader(dataset, seed=0, shuffle=True, collate_fn=collate) as loader:
            batches = iter(loader)
            next(batches)
            deadline = time.monotonic() + 20
            while store.stats()["fetched_images"] < NUM_IMAGES and time.monotonic() < deadline:
                time.sleep(0.01)
            list(batches)
            stats = store.stats()
        # Only the first image may have been read before it was there.
        assert stats["fetched_images"] == NUM_IMAGES
        assert stats["requested_images"] <= 1


def test_neither_main_process_nor_workers_import_obstore(stored_set, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert len(batches(stored_set, num_workers=2)) == 2
    assert len(batches(stored_set)) == 2


def test_torchs_loader_and_single_indices_read_from_the_store(local_set, stored_set):
    assert collate([stored_set[-1], stored_set[4]]) == collate([local_set[-1], local_set[4]])
    loaders = [torch.utils.data.DataLoader(data, batch_size=5, collate_fn=collate) for data in (stored_set, local_set)]
    assert list(loaders[0]) == list(loaders[1])


def test_killed_fetch_process_loses_no_sample(folder, names, local_set):
    with closing_store(remote_images(folder / "set", names, folder / "killed", window=4)) as store:
        dataset = remote_set(store, folder / "elsewhere", names)
        actual = []
        settings = {"seed": 3, "shuffle": True, "collate_fn": collate}
        with DataLoader(dataset, num_workers=2, **settings) as loader:
            for number, batch in enumerate(loader):
                actual.append(batch)
                if number == 2:
                    os.kill(store.stats()["pid"], signal.SIGKILL)
        assert actual == list(DataLoader(local_set, **settings))


@pytest.mark.soak
def test_hundred_kills_lose_no_sample(folder, names, local_set):
    settings = {"seed": 3, "shuffle": True, "collate_fn": collate}
    expected = [list(DataLoader(local_set, **settings))][0]
    with closing_store(
        remote_images(folder / "set", names, folder / "kills", window=4, cache_budget=5 * 4096)
    ) as store:
        dataset = remote_set(store, folder / "elsewhere", names)
        num_kills = 0
        with DataLoader(dataset, num_workers=2, **settings) as loader:
            while num_kills < 100:
                loader.set_epoch(0)
                for number, batch in enumerate(loader):
                    assert batch == expected[number]
                    if number % 5 == 0:
                        os.kill(store.stats()["pid"], signal.SIGKILL)
                        num_kills += 1
