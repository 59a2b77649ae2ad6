"""The mapping of a decoded cache: one copy for all workers, which no transform can change."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torchvision.transforms import v2

from lit_loader import DataLoader
from lit_loader.collate import detection_collate
from lit_loader.datasets import DetectionDataset
from lit_loader.errors import CacheError
from lit_loader.images import decode_image
from lit_loader.images.decoded_cache import CachedReader
from lit_loader.images.reading import ImageReading
from lit_loader.transforms import DecodeAwareCompose, classification_transforms, detection_transforms
from tests.support.decoded_images import assert_whole
from tests.support.drawn_set import SIZE

WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "forkserver"},  # unpickles as spawn does, and starts sooner
]


def blacken(image, target):
    image.zero_()
    if "boxes" in target:
        target["boxes"].zero_()
    return image, target


@pytest.mark.parametrize(
    "transforms",
    [
        blacken,
        DecodeAwareCompose([blacken]),
        DecodeAwareCompose([v2.Resize(SIZE[::-1]), blacken]),
        DecodeAwareCompose([v2.RandomResizedCrop((40, 40), scale=(1, 1), ratio=(1, 1)), blacken]),
        DecodeAwareCompose([v2.RandomCrop((40, 40)), blacken]),
        DecodeAwareCompose([v2.RandomPhotometricDistort(p=0), blacken]),
        classification_transforms(False, size=SIZE[::-1], resize="stretch", to_float=False),
        None,
    ],
)
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_a_transform_that_edits_in_place_damages_neither_the_file_nor_later_samples(table, cached, transforms, decode):
    expected = DetectionDataset(table)
    edited = DetectionDataset(table, transforms=transforms, cache=cached(), reading=ImageReading(decode=decode))
    for position in range(table.num_images):
        image, _ = edited[position]
        image.zero_()
        assert torch.equal(edited.cache.open(position)[0].read(), expected[position][0])
    assert torch.equal(DetectionDataset(table, cache=cached())[4][0], expected[4][0])


def test_a_view_that_is_written_to_changes_no_other_process_and_not_the_file(table, cached):
    reader = CachedReader(table, ImageReading(), cached())
    (path,) = cached().folder.glob("*.pixels")
    file_bytes = path.read_bytes()
    view = reader.open(4)[0].read_region((0, 0, *SIZE), zoom=0.5).pixels
    assert view.untyped_storage().nbytes() == len(file_bytes)  # no copy
    edited_pixels = view.clone()
    view.zero_()
    assert path.read_bytes() == file_bytes
    unpickled = pickle.loads(pickle.dumps(reader))
    assert torch.equal(unpickled.open(4)[0].read(), edited_pixels)


def test_a_region_lies_where_it_says(table, cached):
    reader = CachedReader(table, ImageReading(), cached())
    for zoom in (0.3, 1.0, 1.7):
        region = reader.open(5)[0].read_region((3, 7, 29, 30), zoom=zoom)
        pixels = decode_image(table.image_path(5))
        assert region.zoom == 1
        part = region.pixels[:, 7 - region.top : 30 - region.top, 3 - region.left : 29 - region.left]
        assert torch.equal(part, pixels[:, 7:30, 3:29])


def test_a_reader_pickles_small_and_reopens_its_file_or_names_the_remedy(table, cached):
    reader = CachedReader(table, ImageReading(), cached())
    packed = pickle.dumps(reader)
    assert len(packed) < len(pickle.dumps(table)) + 1000
    unpickled = pickle.loads(packed)
    assert_whole(unpickled, table)
    shutil.rmtree(cached().folder)  # as another run does, whose images differ
    assert torch.equal(unpickled.open(3)[0].read(), decode_image(table.image_path(3)))
    with pytest.raises(CacheError, match=r"or was deleted\); create the dataset again"):
        pickle.loads(packed)


def own_kib(path):
    """How many KiB of a file that this process maps are its own copies."""
    own_sizes = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_file = words[-1] == str(path)
        elif is_file and words[0] == "Anonymous:":
            own_sizes.append(int(words[1]))
    return own_sizes


class Mapped(torch.utils.data.Dataset):
    """Reads an image, and says how much of the cache is this process's own, and which process that is."""

    def __init__(self, table, cache):
        self.reader = CachedReader(table, ImageReading(), cache)
        (self.path,) = cache.folder.glob("*.pixels")

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.reader.open(index)[0].read_region((0, 0, *SIZE), zoom=0.5).pixels.sum()
        return f"{own_kib(self.path)} {os.getpid()}"


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_map_the_same_file_and_hold_no_copy_of_it(table, cached, context):
    dataset = Mapped(table, cached())
    with DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context=context) as loader:
        reports = [text.rsplit(" ", 1) for (text,) in loader]
    assert {own_kib_text for own_kib_text, _ in reports} == {"[0]"}
    assert len({pid for _, pid in reports} - {str(os.getpid())}) == 2


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_the_same_bits_with_any_workers(table, cached, workers):
    transforms = detection_transforms(train=True, size=(24, 32), photometric=1.0)

    def batches(cache, **arguments):
        dataset = DetectionDataset(table, transforms=transforms, cache=cache)
        loader = DataLoader(dataset, batch_size=4, shuffle=True, seed=3, collate_fn=detection_collate, **arguments)
        with loader:
            return [([image.clone() for image in images], [t["boxes"].clone() for t in targets])
                    for images, targets in loader]  # fmt: skip

    expected = batches(False, num_workers=0)
    cached_batches = batches(cached(), **workers)
    assert len(cached_batches) == len(expected) == 3
    for (images, boxes), (other_images, other_boxes) in zip(expected, cached_batches, strict=True):
        assert all(map(torch.equal, images, other_images))
        assert all(map(torch.equal, boxes, other_boxes))
