"""Guarantee: images of stores are read with the settings, limits and checks of files."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.annotations.splitting import equal_files
from lit_loader.datasets import ClassificationDataset, DetectionDataset, JoinedDataset, LandmarkDataset
from lit_loader.errors import ImageError
from lit_loader.images import CacheSettings, ImageReading
from lit_loader.images.row_images import RowImages, RowReading
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.images import LocalImages
from tests.support.drawn_set import draw_set
from tests.support.stored_sets import catalog_of_files, draw_images, remote_set, table_of


class CountingImages(LocalImages):
    """Local files that record reads; some files count as absent from this host."""

    def __init__(self, catalog, absent=()):
        super().__init__(catalog)
        self.absent = set(absent)
        self.reads = []
        self.starts = 0

    def start(self):
        self.starts += 1

    def read(self, path):
        self.reads.append(path)
        return super().read(path)

    def peek(self, path):
        return None if path in self.absent else super().read(path)


@pytest.fixture
def names(tmp_path):
    return draw_images(tmp_path / "set", 6)


@pytest.fixture
def store(tmp_path, names):
    return CountingImages(catalog_of_files(tmp_path / "set", names, root=str(tmp_path / "set")))


def reading_of(tmp_path, store, **settings):
    return StoredReading.extending(ImageReading(**settings), {str(tmp_path / "elsewhere"): store})


def test_samples_equal_those_of_files(tmp_path, store, names):
    local = DetectionDataset(table_of(tmp_path / "set", names))
    stored = remote_set(store, tmp_path / "elsewhere", names)
    for index in range(len(names)):
        assert torch.equal(stored[index][0], local[index][0])
    assert store.starts == 1


def test_images_of_other_folders_are_files(tmp_path, store, names):
    reading = reading_of(tmp_path, store)
    assert torch.equal(reading.read(tmp_path / "set" / names[1]), reading.read(tmp_path / "elsewhere" / names[1]))
    assert store.reads == [names[1]]
    # A folder whose name begins with the root's.
    with pytest.raises(ImageError, match="elsewhere2"):
        reading.read(f"{tmp_path}/elsewhere2/{names[1]}")


def test_limits_of_files_hold(tmp_path, store, names):
    with pytest.raises(ImageError, match=r"set/000\.png: .* max_pixels=19"):
        reading_of(tmp_path, store, max_pixels=19).read(tmp_path / "elsewhere/000.png")
    (tmp_path / "set/001.png").write_bytes(b"not an image")
    store = LocalImages(catalog_of_files(tmp_path / "set", names, root=str(tmp_path / "set")))
    with pytest.raises(ImageError, match=r"set/001\.png"):
        reading_of(tmp_path, store).read(tmp_path / "elsewhere/001.png")


@pytest.mark.parametrize("exif_orientation", [True, False])
def test_sizes_are_those_of_files(tmp_path, exif_orientation):
    image = Image.fromarray(np.zeros((4, 5, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    store = LocalImages(catalog_of_files(tmp_path, ["turned.jpg"], root=str(tmp_path)))
    reading = reading_of(tmp_path, store, exif_orientation=exif_orientation)
    expected = (5, 4) if exif_orientation else (4, 5)
    assert reading.size(tmp_path / "elsewhere/turned.jpg") == expected
    assert reading.size(tmp_path / "turned.jpg") == expected
    assert reading.open(tmp_path / "elsewhere/turned.jpg").size == expected


def test_turned_image_with_a_stored_size_is_refused(tmp_path):
    image = Image.fromarray(np.zeros((4, 5, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "000.jpg", exif=exif)
    store = LocalImages(catalog_of_files(tmp_path, ["000.jpg"], root=str(tmp_path)))
    with pytest.raises(ImageError, match="EXIF turns the image from 5x4 to 4x5"):
        remote_set(store, tmp_path / "elsewhere", ["000.jpg"])[0]


def test_only_images_on_this_host_are_inspected_for_sixteen_bits(tmp_path, store, names):
    Image.fromarray(np.full((4, 5), 4000, dtype=np.uint16)).save(tmp_path / "set" / names[2])
    store = CountingImages(catalog_of_files(tmp_path / "set", names, root=str(tmp_path / "set")), absent=names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remote_set(store, tmp_path / "elsewhere", names)
    store.absent.clear()
    with pytest.warns(UserWarning, match="16-bit"):
        remote_set(store, tmp_path / "elsewhere", names)
    assert store.reads == []


def test_samples_name_the_slots_of_their_images(tmp_path, store):
    table = draw_set(tmp_path / "drawn", num_images=6)
    names = list(table.image_paths)
    store = LocalImages(catalog_of_files(tmp_path / "drawn", names, root=str(tmp_path / "drawn")))
    reading = StoredReading(stores={str(tmp_path / "drawn"): store})
    rows = [4, 1, 3]
    detection = DetectionDataset(table.select(rows), reading=reading)
    (samples,) = detection.stored_samples()
    assert (samples.first, samples.slots.tolist()) == (0, rows)
    landmarks = LandmarkDataset(table, reading=reading)
    slots = landmarks.stored_samples()[0].slots.tolist()
    assert [names[slot] for slot in slots] == [landmarks.sample_path(i).name for i in range(len(landmarks))]
    classification = ClassificationDataset(table, sample_unit="object", reading=reading)
    slots = classification.stored_samples()[0].slots.tolist()
    assert [names[slot] for slot in slots] == [classification.sample_path(i).name for i in range(len(classification))]
    joined = JoinedDataset([detection, landmarks])
    assert [part.first for part in joined.stored_samples()] == [0, 3]
    assert DetectionDataset(table).stored_samples() == []


def test_root_above_the_store_has_the_slots_of_its_part(tmp_path, store, names):
    table = table_of(tmp_path, ["other/x.png", f"elsewhere/{names[3]}", f"elsewhere/{names[0]}"])
    (samples,) = reading_of(tmp_path, store).for_table(table).stored_samples(table)
    assert samples.slots.tolist() == [-1, 3, 0]
    assert reading_of(tmp_path, store).for_table(table_of(tmp_path / "other", names)).stores == {}


def test_decoded_cache_reads_the_store_in_order_and_then_no_more(tmp_path, store, names):
    calls = []

    class Stream:
        def begin(self, blocks):
            calls.append([slot for block in blocks for slot in block.tolist()])

        def delivered(self, total):
            calls.append(total)

        def close(self):
            calls.append("closed")

    store.open_stream = Stream
    settings = CacheSettings(cache_dir=tmp_path / "cache", progress=False)
    (tmp_path / "elsewhere").mkdir()
    for name in names:
        (tmp_path / "elsewhere" / name).touch()
    dataset = remote_set(store, tmp_path / "elsewhere", names, cache=settings)
    assert calls[0] == list(range(6))
    assert calls[-1] == "closed"
    assert sorted(store.reads) == names
    assert dataset.stored_samples() == []
    assert int(dataset[5][0][0, 0, 0]) == 5
    assert sorted(store.reads) == names


def test_other_objects_make_another_decoded_cache(tmp_path, store, names):
    settings = CacheSettings(cache_dir=tmp_path / "cache", progress=False)
    (tmp_path / "elsewhere").mkdir()
    for name in names:
        (tmp_path / "elsewhere" / name).touch()
    first = remote_set(store, tmp_path / "elsewhere", names, cache=settings)
    Image.fromarray(np.full((4, 5, 3), 99, dtype=np.uint8)).resize((50, 40)).save(tmp_path / "set" / names[0])
    store = LocalImages(catalog_of_files(tmp_path / "set", names, root=str(tmp_path / "set")))
    second = remote_set(store, tmp_path / "elsewhere", names, cache=settings)
    assert first.cache.key != second.cache.key
    assert int(second[0][0][0, 0, 0]) == 99


def test_copies_are_compared_without_files(tmp_path, store, names):
    (tmp_path / "set" / names[4]).write_bytes((tmp_path / "set" / names[1]).read_bytes())
    store = LocalImages(catalog_of_files(tmp_path / "set", names, root=str(tmp_path / "set")))
    paths = [f"{tmp_path}/elsewhere/{name}" for name in names]
    assert equal_files(paths, reading_of(tmp_path, store).copy_traits) == [[1, 4]]


def test_rows_and_stores_are_read_side_by_side(tmp_path, store, names):
    rows = [{"image": np.full((2, 2, 3), 7, dtype=np.uint8)}]
    images = {"rows": RowImages("rows", rows, "image", None)}
    for reading in (
        RowReading.extending(reading_of(tmp_path, store), images),
        StoredReading.extending(RowReading.extending(ImageReading(), images), {str(tmp_path / "elsewhere"): store}),
    ):
        assert reading.read("rows/0").unique().tolist() == [7]
        assert reading.read(tmp_path / "elsewhere" / names[3]).unique().tolist() == [3]
