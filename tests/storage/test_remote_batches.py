"""Guarantee: images in a store give the batches of local files under workers, other loaders, and single reads.

`test_equal_batches` compares all samplers, ranks and resumed epochs, and `test_faults` kills processes.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.datasets import DetectionDataset
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


def batches(dataset, num_epochs=2, **arguments):
    settings = {"shuffle": True, "seed": 3, "batch_size": 4, "collate_fn": collate}
    with DataLoader(dataset, **(settings | arguments)) as loader:
        return [list(loader) for _ in range(num_epochs)]


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
