"""Guarantee: sets are listed, downloaded, read and uploaded with signatures that an independent server checks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from lit_loader import DataLoader, RandomSampler
from lit_loader.annotations.fingerprint import table_digests
from lit_loader.annotations.packing import pack_tables, verify_packed
from lit_loader.collate import DetectionCollate
from lit_loader.datasets import DetectionDataset, FormatSource, PackedSource
from lit_loader.errors import StorageError
from lit_loader.images import ImageReading
from lit_loader.storage.pack_target import StoreTarget
from lit_loader.storage.settings import storage_settings
from tests.support.made_sets import make_yolo, split_in_two
from tests.support.remote_sets import digest, end_stores

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")


@pytest.fixture
def url(rclone_server, tmp_path):
    """URL of an empty folder of the bucket."""
    yield f"s3://{rclone_server.folder.name}/{tmp_path.name}"
    end_stores()


def digests(source):
    """Return the digests of the training batches of a source, and of its table."""
    (table,) = source.tables("train")
    reading = source.image_reading(ImageReading())
    dataset = DetectionDataset(table, reading=reading)
    sampler = RandomSampler(len(dataset))
    with DataLoader(dataset, 2, sampler=sampler, seed=1, collate_fn=DetectionCollate()) as loader:
        batches = [digest(batch) for batch in loader]
    for store in getattr(reading, "stores", {}).values():
        store.close()
    return batches, table_digests(table)


def test_raw_set_is_listed_downloaded_and_read_with_signatures(url, rclone_server, tmp_path):
    folder = rclone_server.folder / tmp_path.name
    make_yolo(folder, split_in_two(tmp_path))
    settings = {"train": "train", "cache_dir": str(tmp_path / "cache"), "progress": False, "num_workers": 0}
    local = FormatSource("yolo", folder, **settings)
    remote = FormatSource("yolo", url, **settings, storage=rclone_server.options)
    for source in (local, remote):
        source.prepare()
    assert digests(remote) == digests(local)


def test_wrong_signature_is_an_error_without_the_secret(url, rclone_server, tmp_path):
    options = rclone_server.options | {"secret_access_key": "a-wrong-secret"}
    source = FormatSource("yolo", url, train="train", storage=options, cache_dir=str(tmp_path), progress=False)
    with pytest.raises(StorageError, match="403") as raised:
        source.prepare()
    assert "a-wrong-secret" not in str(raised.value)


def test_packed_set_is_uploaded_verified_and_read_with_signatures(url, rclone_server, tmp_path):
    # A job of the store takes a file of the set at a time, so there are few.
    table = split_in_two(tmp_path)["train"]
    cache_dir = tmp_path / "cache"
    target = StoreTarget(storage_settings(url, rclone_server.options, cache_dir=cache_dir))
    pack_tables({"train": table}, target, shard_bytes=20480)
    assert verify_packed(target, progress=False) == []
    source = PackedSource(
        url, val=None, test=None, storage=rclone_server.options, cache_dir=str(cache_dir), progress=False
    )
    source.prepare()
    dataset = DetectionDataset(table)
    sampler = RandomSampler(len(dataset))
    loader = DataLoader(dataset, 2, sampler=sampler, seed=1, collate_fn=DetectionCollate())
    assert digests(source)[0] == [digest(batch) for batch in loader]
