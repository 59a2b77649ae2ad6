"""Guarantee: a mirror shows the objects of a store as files, follows their changes, and trusts no key."""

from __future__ import annotations

import os
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats.folder import is_image_name
from lit_loader.annotations.formats.image_sizes import read_image_sizes
from lit_loader.errors import ImageError, SettingError, StorageError
from lit_loader.images import ImageReading
from lit_loader.storage import listing as listings
from lit_loader.storage import mirror as mirrors
from lit_loader.storage.listing import Listing
from lit_loader.storage.mirror import fill_headers, open_mirror
from lit_loader.storage.settings import storage_settings

# Not by importorskip, because obstore must not be imported where tests fork.
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")


class FakeStore:
    """Objects in memory, which replace the jobs of a store.

    Attributes:
        objects: Bytes of each key.
        jobs: Name of each job with the keys that it fetched.
        last_key: Key after which jobs fail.
        properties: Size and time of some keys, which are listed instead.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.jobs: list[tuple[str, list[str]]] = []
        self.last_key = ""
        self.properties: dict[str, tuple[int, int]] = {}

    def run_job(self, name, settings, request, *, progress):
        if name == "list":
            self.jobs.append((name, []))
            keys = list(self.objects)
            self.listing(keys).save(Path(request["path"]))
            return {}
        listing = Listing.load(Path(request["listing"]))
        self.jobs.append((name, list(listing.keys)))
        for key, time in zip(listing.keys, listing.times.tolist(), strict=True):
            path = Path(request["folder"], key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.objects[key])
            os.utime(path, ns=(time, time))
            if key == self.last_key:
                raise StorageError("the store cannot be reached")
        return {}

    def listing(self, keys):
        contents = [self.objects[key] for key in keys]
        properties = [self.properties.get(key, (len(self.objects[key]), 10**18)) for key in keys]
        return Listing(
            keys=keys,
            sizes=np.array([size for size, _ in properties], dtype=np.int64),
            times=np.array([time for _, time in properties], dtype=np.int64),
            versions=[f'"{hash(data)}"' for data in contents],
        )


@pytest.fixture
def store(monkeypatch, tmp_path):
    """A function that replaces the objects of a store, and returns the store; `open_set` reads it."""
    fake = FakeStore({})
    monkeypatch.setattr(mirrors, "run_job", fake.run_job)
    monkeypatch.setattr(mirrors, "_open_mirrors", {})
    return fake


@pytest.fixture
def open_set(tmp_path):
    def open_again(*, refresh=True, **storage):
        settings = storage_settings("s3://bucket/set", storage, cache_dir=tmp_path)
        return open_mirror(settings, is_image=is_image_name, refresh=refresh, progress=False)

    return open_again


def files_of(mirror):
    return sorted(str(path.relative_to(mirror.folder)) for path in mirror.folder.rglob("*") if path.is_file())


def test_annotations_are_downloaded_and_images_are_placeholders(store, open_set):
    store.objects = {"a/1.jpg": b"x" * 5000, "train.json": b"{}", "model.ckpt": b"y"}
    mirror = open_set()
    assert files_of(mirror) == ["a/1.jpg", "model.ckpt", "train.json"]
    assert store.jobs[1:] == [("download", ["train.json"])]
    assert (mirror.folder / "train.json").read_bytes() == b"{}"
    state = (mirror.folder / "a/1.jpg").stat()
    assert (state.st_size, state.st_mtime_ns // 10**9, state.st_blocks) == (5000, 10**9, 0)
    assert (mirror.catalog.root, mirror.catalog.objects) == ("s3://bucket/set", ["a/1.jpg"])
    assert mirror.catalog.versions == [f'"{hash(b"x" * 5000)}"']
    assert mirror.folder.stat().st_mode & 0o077 == 0


def test_reopened_mirror_is_not_listed_again(store, open_set):
    store.objects = {"a.jpg": b"x", "b.txt": b"y"}
    first = open_set(refresh=False)
    second = open_set(refresh=False)
    assert [name for name, _ in store.jobs] == ["list", "download"]
    assert second.catalog.key == first.catalog.key


def test_refresh_updates_what_has_changed(store, open_set):
    store.objects = {"a.jpg": b"x", "old/b.jpg": b"x", "c.txt": b"1", "d.txt": b"1"}
    first = open_set()
    fill_headers(first.folder, ["a.jpg", "old/b.jpg"], progress=False)
    store.jobs.clear()
    # One file is the same, one has the same size, one is new, and a folder has vanished.
    store.objects = {"a.jpg": b"x", "c.txt": b"2", "d.txt": b"1", "new/e.jpg": b"x"}
    second = open_set()
    assert store.jobs == [("list", []), ("download", ["c.txt"])]
    assert files_of(second) == ["a.jpg", "c.txt", "d.txt", "new/e.jpg"]
    assert not (second.folder / "old").exists()
    assert (second.folder / "c.txt").read_bytes() == b"2"
    assert second.catalog.key != first.catalog.key
    # The header that was fetched before is still there.
    fill_headers(second.folder, ["a.jpg", "new/e.jpg"], progress=False)
    assert store.jobs[2:] == [("headers", ["new/e.jpg"])]


def test_update_that_was_broken_off_is_completed(store, open_set, monkeypatch):
    store.objects = {"a.jpg": b"x", "b.txt": b"1"}
    open_set()
    store.objects = {"a.jpg": b"x", "b.txt": b"2", "c.jpg": b"x"}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Listing, "save", broken_off(Listing.save))
        open_set()
    store.objects = {"a.jpg": b"x", "b.txt": b"1"}
    mirror = open_set()
    assert files_of(mirror) == ["a.jpg", "b.txt"]
    assert (mirror.folder / "b.txt").read_bytes() == b"1"


def broken_off(save):
    def save_others(listing, path):
        if path.name == "listing.arrow":
            raise KeyboardInterrupt
        save(listing, path)

    return save_others


def test_failed_update_leaves_the_mirror_and_is_continued(store, open_set):
    old = {"a.txt": b"1", "b.txt": b"1", "c.jpg": b"x"}
    store.objects = dict(old)
    open_set()
    store.objects = {"a.txt": b"2", "b.txt": b"2", "d/e.jpg": b"x"}
    store.last_key = "a.txt"
    with pytest.raises(StorageError):
        open_set()
    mirror = open_set(refresh=False)
    assert {key: (mirror.folder / key).read_bytes().strip(b"\0") for key in ("a.txt", "b.txt")} == {
        "a.txt": b"1",
        "b.txt": b"1",
    }
    assert files_of(mirror) == sorted(old)
    store.last_key = ""
    store.jobs.clear()
    mirror = open_set()
    assert store.jobs == [("list", []), ("download", ["b.txt"])]
    assert files_of(mirror) == sorted(store.objects)
    assert (mirror.folder / "a.txt").read_bytes() == b"2"


def test_object_of_equal_size_and_time_has_another_time_in_the_mirror(store, open_set):
    """Cached tables compare sizes and times."""
    stamps = []
    for data in (b"1", b"2", b"1"):
        store.objects = {"a.txt": data, "b.jpg": data}
        mirror = open_set()
        stamps.append([(mirror.folder / name).stat().st_mtime_ns for name in ("a.txt", "b.jpg")])
    assert stamps[0] == stamps[2]
    assert stamps[0] != stamps[1]


def test_placeholder_that_becomes_an_annotation_is_downloaded(store, open_set, tmp_path):
    store.objects = {"a.dat": b"DATA"}
    settings = storage_settings("s3://bucket/set", {}, cache_dir=tmp_path)
    mirror = open_mirror(settings, is_image=lambda name: True, refresh=True, progress=False)
    fill_headers(mirror.folder, ["a.dat"], progress=False)
    store.jobs.clear()
    for _ in range(2):
        open_set()
    assert store.jobs == [("list", []), ("download", ["a.dat"]), ("list", [])]
    assert (mirror.folder / "a.dat").read_bytes() == b"DATA"


def test_headers_are_fetched_after_another_process_has_listed_as_many_objects(store, open_set, monkeypatch):
    store.objects = {"a.jpg": b"AAAA", "b.jpg": b"BBBB"}
    old_mirror = open_set()
    store.objects = {"0.jpg": b"0000", "a.jpg": b"AAAA"}
    fill_headers(open_set().folder, ["0.jpg"], progress=False)
    monkeypatch.setattr(mirrors, "_open_mirrors", {str(old_mirror.folder): old_mirror})
    store.jobs.clear()
    fill_headers(old_mirror.folder, ["a.jpg"], progress=False)
    assert store.jobs == [("headers", ["a.jpg"])]


def test_placeholder_is_never_read_as_an_image(store, open_set, monkeypatch):
    store.objects = {"a.jpg": b"x"}
    mirror = open_set()
    # Also in a worker that has not opened the mirror.
    monkeypatch.setattr(mirrors, "_open_mirrors", {})
    with pytest.raises(ImageError, match=r"a\.jpg is a placeholder of an image in a store"):
        ImageReading().open(mirror.folder / "a.jpg")


@pytest.mark.parametrize(
    "name", ["endpoint", "aws_endpoint", "endpoint_url", "AWS_ENDPOINT_URL", "Endpoint", "variable"]
)
def test_two_addresses_have_two_mirrors(name, store, tmp_path, monkeypatch):
    folders = set()
    for address in ("http://a", "http://b", "http://b/"):
        store.objects = {"a.jpg": address.encode()}
        monkeypatch.setenv("AWS_ENDPOINT_URL", address if name == "variable" else "http://c")
        options = {} if name == "variable" else {name: address}
        # A copy in another process must not read another store.
        settings = pickle.loads(pickle.dumps(storage_settings("s3://bucket/set", options, cache_dir=tmp_path)))
        folders.add(open_mirror(settings, is_image=is_image_name, refresh=False, progress=False).folder)
    assert len(folders) == 2


HOSTILE_KEYS = {
    "../up.jpg": "has a part '.' or '..'",
    "a/../../up.jpg": "has a part '.' or '..'",
    "/absolute.jpg": "has an empty part",
    "a//b.jpg": "has an empty part",
    "line\nbreak.jpg": "has a backslash or a control character",
    "back\\slash.jpg": "has a backslash or a control character",
    "both": "is also a folder",
    f"{'long' * 70}.jpg": "is too long for a path",
    f"{'d/' * 200}deep.jpg": "has more than 100 folders",
}


def test_hostile_keys_are_left_out_and_named(store, open_set, tmp_path):
    store.objects = dict.fromkeys(HOSTILE_KEYS, b"x") | {"both/a.jpg": b"x", "fine.jpg": b"x", "marker": b""}
    # A console creates an object for a folder; tools have hidden folders.
    store.objects |= {"marker/b.jpg": b"x", ".git/c.jpg": b"x", "huge.jpg": b"x", "future.jpg": b"x", "past.jpg": b"x"}
    store.properties = {"huge.jpg": (2**62, 0), "future.jpg": (1, 2**63 - 1), "past.jpg": (1, -1)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mirror = open_set()
    assert files_of(mirror) == ["both/a.jpg", "fine.jpg", "marker/b.jpg"]
    text = "\n".join(str(warning.message) for warning in caught)
    assert "s3://bucket/set: 2 objects are left out, because their key has a part '.' or '..': '../up.jpg'" in text
    assert all(reason in text for reason in HOSTILE_KEYS.values())
    assert "1 objects are left out, because their size is more than 15 TiB: 'huge.jpg'" in text
    assert "because their time is not between 1970 and 2200: 'future.jpg', 'past.jpg'" in text
    assert "line\\nbreak" in text.replace("\\\\", "\\")
    assert not (tmp_path / "mirrors" / "up.jpg").exists()


def test_large_files_are_refused_with_the_setting_to_raise(store, open_set, monkeypatch):
    store.objects = {"videos.bin": b"x" * 9000, "a.json": b"y" * 1000, "b.jpg": b"z" * 10**6}
    with pytest.raises(SettingError) as raised:
        open_set(annotation_budget=8000)
    assert "9.8 KiB of 2 files that are not images in s3://bucket/set, such as videos.bin (8.8 KiB)" in str(
        raised.value
    )
    assert raised.value.settings == {"storage.annotation_budget": "12.2 KiB"}
    # As int64 the sum is negative.
    store.properties = dict.fromkeys(store.objects, (2**62, 0))
    with monkeypatch.context() as patch, pytest.raises(SettingError):
        patch.setattr(listings, "_MAX_SIZE", 2**62)
        open_set(annotation_budget=8000)
    store.properties = {}
    assert files_of(open_set(annotation_budget="12.2 KiB")) == ["a.json", "b.jpg", "videos.bin"]


def test_empty_url_is_an_error(store, open_set):
    with pytest.raises(StorageError, match="s3://bucket/set holds no objects"):
        open_set()


def test_folder_in_a_mirror_is_not_listed_again(store, open_set, tmp_path):
    store.objects = {"sub/a.jpg": b"x", "sub/b.txt": b"y", "other.jpg": b"x"}
    parent = open_set()
    part = parent.below("sub")
    assert [name for name, _ in store.jobs] == ["list", "download"]
    assert part.folder == parent.folder / "sub"
    assert (part.catalog.root, part.catalog.objects) == ("s3://bucket/set/sub", ["a.jpg"])
    with pytest.raises(StorageError, match="s3://bucket/set/none holds no objects"):
        parent.below("none")
    # A source that is independent has its own settings.
    settings = storage_settings("s3://bucket/set/sub", {"window": 7}, cache_dir=tmp_path / "other")
    mirror = open_mirror(settings, is_image=is_image_name, refresh=False, progress=False)
    assert (mirror.settings, mirror.folder.is_relative_to(tmp_path / "other")) == (settings, True)


def write_images(folder: Path) -> None:
    """Write images whose headers are at the start, at the end, and behind 64 KiB."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (200, 150, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    turned = image.getexif()
    turned[0x0112] = 6
    image.save(folder / "plain.png")
    image.save(folder / "plain.jpg", quality=100, subsampling=0)
    image.save(folder / "turned.jpg", quality=100, subsampling=0, exif=turned)
    image.save(folder / "turned.webp", lossless=True, exif=turned)
    image.save(folder / "plain.tif")
    image.save(folder / "plain.gif")
    image.save(folder / "plain.bmp")
    data = (folder / "turned.jpg").read_bytes()
    comment = b"\xff\xfe" + (65_002).to_bytes(2, "big") + bytes(65_000)
    # Segments before the size need more than the first request.
    (folder / "late.jpg").write_bytes(data[:2] + 2 * comment + data[2:])
    image.save(folder / "turned.png", exif=turned)
    data = (folder / "turned.png").read_bytes()
    start = data.index(b"eXIf") - 4
    stop = start + 12 + int.from_bytes(data[start : start + 4], "big")
    # Other tools write EXIF behind the pixels.
    (folder / "turned.png").write_bytes(data[:start] + data[stop:-12] + data[start:stop] + data[-12:])


@needs_obstore
def test_sizes_of_placeholders_are_those_of_the_files(tmp_path):
    write_images(tmp_path / "set")
    settings = storage_settings((tmp_path / "set").as_uri(), {}, cache_dir=tmp_path / "cache")
    mirror = open_mirror(settings, is_image=is_image_name, refresh=True, progress=False)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    stamps = [(mirror.folder / name).stat().st_mtime_ns for name in names]
    sizes, reasons = read_image_sizes(mirror.folder, names, num_workers=0, progress=False)
    expected, _ = read_image_sizes(tmp_path / "set", names, num_workers=0, progress=False)
    assert not reasons
    assert sizes.tolist() == expected.tolist()
    assert sizes[names.index("turned.png")].tolist() == [200, 150]
    # Cached tables compare the times.
    assert [(mirror.folder / name).stat().st_mtime_ns for name in names] == stamps
    # Only the start of a JPEG is fetched.
    assert (mirror.folder / "plain.jpg").read_bytes()[65_536:].strip(b"\0") == b""
    assert (mirror.folder / "late.jpg").read_bytes() == (tmp_path / "set" / "late.jpg").read_bytes()
