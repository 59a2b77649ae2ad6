"""Packing to a store, and batches of packed sets there; other tests of packing use folders."""

from __future__ import annotations

import pytest
import torch

from lit_loader.annotations.fingerprint import table_digests
from lit_loader.annotations.packing import pack_tables, verify_packed
from lit_loader.datamodules import DetectionDataModule, WorkerSettings
from lit_loader.datasets import PackedSource
from lit_loader.images import ImageReading
from lit_loader.storage.pack_target import StoreTarget
from lit_loader.storage.settings import storage_settings
from tests.support.drawn_set import DrawnSource, draw_set
from tests.support.packed_sets import contents, flip_byte, pack
from tests.support.stored_sets import end_fetch_processes

pytestmark = pytest.mark.soak


def test_packed_set_in_a_store_has_the_files_and_the_batches_of_a_local_one(tmp_path, object_server):
    table = draw_set(tmp_path / "files", num_images=20)
    tables = {"train": table.select(range(14)), "val": table.select(range(14, 20)), "test": table.select([19])}
    settings = {"storage": object_server.options, "cache_dir": str(tmp_path / "cache")}
    target = StoreTarget(storage_settings(object_server.url("set"), settings["storage"], cache_dir=tmp_path / "cache"))
    pack_tables({"train": tables["train"].select(range(8))}, target, shard_bytes=20480)
    pack_tables(tables, target, shard_bytes=20480, append=True)
    assert verify_packed(target, progress=False) == []
    pack({"train": tables["train"].select(range(8))}, tmp_path / "packed")
    pack(tables, tmp_path / "packed", append=True)
    assert contents(object_server.folder / "set") == contents(tmp_path / "packed")
    packed = PackedSource(object_server.url("set"), progress=False, **settings)
    batches = []
    for source in (DrawnSource(**tables), packed):
        datamodule = DetectionDataModule(source, batch_size=3, seed=5, workers=WorkerSettings(num_workers=1))
        datamodule.prepare_data()
        datamodule.setup("fit")
        batches.append(list(datamodule.train_dataloader()))
    for store in packed.image_reading(ImageReading()).stores.values():
        store.close()
    end_fetch_processes()
    for (local_images, _), (images, _) in zip(*batches, strict=True):
        assert all(map(torch.equal, local_images, images))
    tars = PackedSource(object_server.url("set"), train="shards/*.tar", val=None, test=None, progress=False, **settings)
    assert len(tars.tables("train")[0]) == 20
    assert table_digests(packed.tables("val")[0]) == table_digests(tables["val"])
    flip_byte(object_server.folder / "set/shards/val-000000.tar", 520)
    assert verify_packed(target, progress=False) == ["shards/val-000000.tar: the image '14.png' differs"]
