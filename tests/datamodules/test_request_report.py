"""The requests an image of a packed set in a store are stated before training, for any sampler."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import RandomSampler as TorchRandomSampler

from lit_loader.datamodules import DetectionDataModule
from lit_loader.datamodules.request_report import epoch_requests, request_line
from lit_loader.datasets import TableSource
from lit_loader.images import ImageReading
from lit_loader.samplers import RandomSampler, SequentialSampler
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import StoredSamples
from lit_loader.storage.settings import StorageSettings
from tests.support.any_table import small_table

NUM_SHARDS = 60
NUM_IMAGES = 100 * NUM_SHARDS
BYTES = 65_536


class Stored(ImageReading):
    """Reads a packed set of 60 shards from a store that is never opened."""

    def stored_samples(self, table):
        catalog = Catalog(
            root="s3://bucket/set",
            objects=[f"{shard}.tar" for shard in range(NUM_SHARDS)],
            versions=[""] * NUM_SHARDS,
            object_of=np.repeat(np.arange(NUM_SHARDS, dtype=np.int32), 100),
            starts=np.tile(np.arange(100) * BYTES, NUM_SHARDS).astype(np.int64),
            lengths=np.full(NUM_IMAGES, BYTES - 1024, dtype=np.int64),
            path_hashes=Catalog.hash_paths(table.image_paths),
        )
        # With it, neighbours within 1000 samples share a request.
        settings = StorageSettings(url=catalog.root, cache_budget=2000 * BYTES, window=16)
        store = SimpleNamespace(catalog=catalog, settings=settings)
        return [StoredSamples(0, catalog.slots(table.image_paths), store)]


class Packed(TableSource):
    """A source of one packed training set."""

    def prepare(self):
        """Do nothing."""

    def tables(self, stage):
        return [packed_table()] if stage == "train" else []

    def image_reading(self, reading):
        return Stored()


def packed_table(**columns):
    defaults = {
        "image_paths": [f"{i}.jpg" for i in range(NUM_IMAGES)],
        "shards": np.repeat(np.arange(NUM_SHARDS), 100),
        "widths": [9] * NUM_IMAGES,
        "heights": [9] * NUM_IMAGES,
        "offsets": np.arange(NUM_IMAGES + 1),
        "boxes": np.tile(np.array([[1, 2, 3, 4]], dtype=np.float32), (NUM_IMAGES, 1)),
        "labels": [0] * NUM_IMAGES,
    }
    return small_table(**(defaults | columns))


def test_random_order_is_told_the_requests_of_block_order():
    (line,) = request_line("train", packed_table(), RandomSampler(NUM_IMAGES), Stored())
    start, remedy = line.split("; ")
    assert 0.5 < float(start.removeprefix("train: about ").split()[0]) <= 1
    assert start.endswith("requests an image with RandomSampler")
    assert remedy == "sampler=block_shuffle needs 0.02"


def test_order_of_few_requests_is_told_nothing_else():
    lines = list(request_line("train", packed_table(), SequentialSampler(NUM_IMAGES), Stored()))
    assert lines == ["train: about 0.02 requests an image with SequentialSampler"]


@pytest.mark.parametrize(
    ("table", "sampler", "reading"),
    [
        (packed_table(shards=None), RandomSampler(NUM_IMAGES), Stored()),
        (packed_table(), RandomSampler(NUM_IMAGES), ImageReading()),
        (packed_table(), TorchRandomSampler(range(NUM_IMAGES)), Stored()),
    ],
    ids=["single objects", "files of this host", "order of torch"],
)
def test_unknown_or_trivial_requests_are_not_stated(table, sampler, reading):
    assert list(request_line("train", table, sampler, reading)) == []


def test_requests_are_those_of_the_samplers_order():
    table = packed_table()
    assert epoch_requests(table, SequentialSampler(NUM_IMAGES), Stored()) == pytest.approx(0.02)
    assert epoch_requests(table.select([]), SequentialSampler(0), Stored()) is None


def test_summary_of_a_data_module_states_requests():
    summary = DetectionDataModule(Packed(), batch_size=4, num_workers=0).summary()
    assert "requests an image with RandomSampler; sampler=block_shuffle needs 0.02" in summary
