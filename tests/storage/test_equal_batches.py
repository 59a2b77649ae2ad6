"""Guarantee: stored images and local files give the same batches for every sampler, resumed, on any rank."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest

from lit_loader import DataLoader
from lit_loader.collate import DetectionCollate
from lit_loader.datasets import DetectionDataset
from lit_loader.images import ImageReading
from tests.support.drawn_set import draw_set
from tests.support.object_server import ObjectServer
from tests.support.remote_sets import digest, end_stores, packed_catalog, raw_catalog, remote_reading
from tests.support.sampler_families import FAMILIES

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

CATALOGS = {"raw": raw_catalog, "packed": partial(packed_catalog, images_per_shard=5)}


def make_readings(server, table, folder):
    """Return the readings of a table: local files, raw objects, and members of shards."""
    readings = {"local": ImageReading()}
    for name, make in CATALOGS.items():
        readings[name] = remote_reading(server, table, make(server, table), folder / name, window=8)
    return readings


@pytest.fixture(scope="module")
def small_sets(tmp_path_factory):
    """A table of 12 images, and its readings."""
    folder = tmp_path_factory.mktemp("equal")
    with ObjectServer(folder / "buckets") as server:
        table = draw_set(server.folder / "set", num_images=12, objects=2)
        readings = make_readings(server, table, folder)
        stores = [store for name in CATALOGS for store in readings[name].stores.values()]
        # Threads and sockets last longer than a test, so they are made before the first one.
        for store in stores:
            store.read(table.image_paths[0])
        yield table, readings
        end_stores()


def batches(table, reading, sampler, *, rank, world_size, resume_at=None, num_epochs=1, **arguments):
    """Return the digests of some epochs of a rank, interrupted and resumed at a batch of the first one."""

    def make():
        arguments_of_rank = {"rank": rank, "world_size": world_size, "seed": 5, **arguments}
        dataset = DetectionDataset(table, reading=reading)
        return DataLoader(dataset, 2, sampler=sampler, collate_fn=DetectionCollate(), **arguments_of_rank)

    digests = []
    loader = make()
    if resume_at is not None:
        with loader:
            iterator = iter(loader)
            digests += [digest(next(iterator)) for _ in range(resume_at)]
            state = loader.state_dict()
        loader = make()
        loader.load_state_dict(state)
    with loader:
        for _ in range(num_epochs):
            digests += [digest(batch) for batch in loader]
    return digests


@pytest.mark.parametrize("name", FAMILIES)
def test_every_sampler_has_the_batches_of_local_files(name, small_sets):
    table, readings = small_sets
    sampler = FAMILIES[name](table.num_images, None)
    for world_size in (1, 2):
        for rank in range(world_size):
            place = {"rank": rank, "world_size": world_size}
            expected = batches(table, readings["local"], sampler, **place)
            for kind in CATALOGS:
                # The first rank is resumed, because every batch after it must be the same as well.
                actual = batches(table, readings[kind], sampler, **place, resume_at=1 if rank == 0 else None)
                assert actual == expected, (kind, place)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CATALOGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_sampler_has_the_batches_of_local_files_with_a_small_cache(name, kind, object_server, tmp_path):
    table = draw_set(object_server.folder / "set", num_images=60, objects=2)
    catalog = CATALOGS[kind](object_server, table)
    sampler = FAMILIES[name](table.num_images, None)
    settings = {"cache_budget": 4096 * table.num_images // 4, "window": 8}
    reading = remote_reading(object_server, table, catalog, tmp_path, **settings)
    try:
        for rank in range(2):
            arguments = {"rank": rank, "world_size": 2, "num_epochs": 3}
            expected = batches(table, ImageReading(), sampler, **arguments)
            for resume_at in (None, 7):
                actual = batches(table, reading, sampler, **arguments, resume_at=resume_at, num_workers=2)
                assert actual == expected, (rank, resume_at)
    finally:
        end_stores()
