"""Guarantee: ranges of local files are read exactly, in any process, with few open files."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lit_loader.errors import ImageError
from lit_loader.storage import images
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import LocalImages
from tests.support.forks import exit_code_of_fork


def shards_of(root, num_shards=3, objects=None):
    """Return a store of four images in each of some files, and their bytes by path."""
    rng = np.random.default_rng(0)
    data = [rng.bytes(int(length)) for length in rng.integers(1, 99, 4 * num_shards)]
    for shard in range(num_shards):
        (root / f"{shard}.tar").write_bytes(b"head" + b"".join(data[4 * shard : 4 * shard + 4]))
    lengths = np.array([len(image) for image in data], dtype=np.int64)
    ends = np.cumsum(lengths.reshape(num_shards, 4), axis=1)
    paths = [f"images/{number}.jpg" for number in range(len(data))]
    catalog = Catalog(
        root=str(root),
        objects=[f"{shard}.tar" for shard in range(num_shards)] if objects is None else objects,
        versions=[""] * num_shards,
        object_of=np.repeat(np.arange(num_shards, dtype=np.int32), 4),
        starts=4 + ends.reshape(-1) - lengths,
        lengths=lengths,
        path_hashes=Catalog.hash_paths(paths),
    )
    return LocalImages(catalog), dict(zip(paths, data, strict=True))


def reads_all(store, data_by_path):
    return all(store.read(path) == data for path, data in data_by_path.items())


def open_files(root):
    # The folder of descriptors is one of them, and closed afterwards.
    links = list(Path("/proc/self/fd").iterdir())
    return [link for link in links if link.exists() and str(link.readlink()).startswith(str(root))]


def test_images_are_ranges_of_files(tmp_path):
    store, data_by_path = shards_of(tmp_path)
    assert {path: store.read(path) for path in data_by_path} == data_by_path
    assert store.peek("images/3.jpg") == data_by_path["images/3.jpg"]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read("images/7.jpg") == data_by_path["images/7.jpg"]


def test_threads_and_forked_processes_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "_MAX_OPEN_FILES", 2)
    store, data_by_path = shards_of(tmp_path, num_shards=6)
    paths = list(data_by_path) * 30
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.read, paths)) == [data_by_path[path] for path in paths]
    assert len(open_files(tmp_path)) == 2
    assert exit_code_of_fork(partial(reads_all, store, data_by_path)) == 0
    del store
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_file_outside_of_the_root_is_refused(name, tmp_path):
    store, _ = shards_of(tmp_path, num_shards=1, objects=[name])
    with pytest.raises(ImageError, match="leads out of the folder"):
        store.read("images/0.jpg")


def test_short_and_missing_files_are_named(tmp_path):
    store, data_by_path = shards_of(tmp_path)
    os.truncate(tmp_path / "1.tar", 10)
    with pytest.raises(ImageError, match=r"1\.tar, bytes \d+ to \d+: the file ends after \d+ of \d+ bytes"):
        store.read("images/7.jpg")
    (tmp_path / "2.tar").unlink()
    with pytest.raises(ImageError, match=r"2\.tar, bytes .* cannot be read: No such file"):
        store.read("images/8.jpg")
    assert store.peek("images/8.jpg") is None
    # The first file is unharmed.
    assert store.read("images/0.jpg") == data_by_path["images/0.jpg"]


@pytest.mark.parametrize(("start", "length"), [(0, 2**62), (2**62, 2**62), (0, 1 << 44)])
def test_range_beyond_a_file_allocates_nothing(tmp_path, start, length):
    store, _ = shards_of(tmp_path)
    store.catalog.starts[0] = start
    store.catalog.lengths[0] = length
    with pytest.raises(ImageError, match=r"the file ends after \d+ of \d+ bytes of the image"):
        store.read("images/0.jpg")


def test_copies_have_equal_keys(tmp_path):
    store, data_by_path = shards_of(tmp_path)
    keys = {path: store.copy_key(path) for path in data_by_path}
    assert len(set(keys.values())) == len(set(data_by_path.values()))


def test_path_without_an_image_is_an_error(tmp_path):
    store, _ = shards_of(tmp_path)
    with pytest.raises(ImageError, match="is not in the catalog"):
        store.read("images/99.jpg")
    assert store.catalog.slot("images/99.jpg") == -1
    assert store.catalog.slots(["images/99.jpg", "images/5.jpg"]).tolist() == [-1, 5]
    assert store.catalog.slot("images/5.jpg") == 5
