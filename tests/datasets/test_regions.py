"""Samples of a table with regions: drawn marks land in every tile, with the bits of the whole image."""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from lit_loader import DataLoader, DetectionCollate
from lit_loader.annotations import AnnotationTable, Masks, Tiling, tile_table
from lit_loader.annotations.masks import run_lengths
from lit_loader.datasets import ClassificationDataset, DetectionDataset
from lit_loader.errors import CacheError, ImageError, SettingError
from lit_loader.images import CacheSettings, EncodedImage, ImageReading, decode_image
from lit_loader.transforms import DecodeAwareCompose, RandomHorizontalFlip, SanitizeObjects, detection_transforms
from tests.support.jpeg_decoders import DECODERS, UNNAMED, only, with_sampling
from tests.support.photo_like import jpeg, photo_like

CELL = 24


@st.composite
def drawings(draw):
    """Rectangles and triangles of bright colours, at most one in each cell of an image, as (corners, is_triangle)."""
    columns, rows = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    objects = []
    for cell in draw(st.sets(st.tuples(st.integers(0, columns - 1), st.integers(0, rows - 1)), max_size=6)):
        x, y = (CELL * index + draw(st.integers(0, 8)) for index in cell)
        width, height = draw(st.tuples(st.integers(2, 14), st.integers(2, 14)))
        objects.append(((x, y, x + width, y + height), draw(st.booleans())))
    return (CELL * columns, CELL * rows), objects


def draw_image(folder, size, objects):
    """Draw objects with a dot at a corner pixel, and return their table."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    rows = []
    points = []
    for number, ((x0, y0, x1, y1), is_triangle) in enumerate(objects):
        polygon = [[x0, y0], [x1, y0], [x0, y1]] if is_triangle else [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
        mask = Masks.from_rows([[polygon]]).rasterize(0, height, width)
        pixels[mask > 0] = (100 + number, 200, 0)
        # The first pixel of a triangle or rectangle is always inside.
        pixels[y0, x0] = (100 + number, 250, 0)
        rows.append(run_lengths(mask) if number % 2 else [polygon])
        points.append([[x0 + 0.5, y0 + 0.5]])
    Image.fromarray(pixels).save(folder / "image.png")
    number = len(objects)
    return AnnotationTable(
        root=folder,
        image_paths=["image.png"],
        class_names=["mark"],
        widths=[width],
        heights=[height],
        offsets=[0, number],
        boxes=[corners for corners, _ in objects],
        labels=np.zeros(number, int),
        object_ids=np.arange(number),
        masks=rows,
        keypoints=np.float32(points).reshape(number, 1, 2),
        visibility=np.full((number, 1), 2),
        keypoint_names=["dot"],
    )


@settings(deadline=None)
@given(
    drawing=drawings(),
    size=st.tuples(st.integers(5, 60), st.integers(5, 60)),
    overlap=st.floats(0, 0.6),
    keep=st.floats(0.05, 1),
)
def test_drawn_marks_land_in_every_tile(drawing, size, overlap, keep):
    image_size, objects = drawing
    with tempfile.TemporaryDirectory() as folder:
        table = draw_image(Path(folder), image_size, objects)
        tiles = tile_table(table, Tiling(size, overlap=overlap, keep=keep))
        dataset = DetectionDataset(tiles, keypoints=True, masks=True)
        for tile in range(len(dataset)):
            image, target = dataset[tile]
            red, green, _ = image
            numbers = tiles.object_ids[tiles.objects(tile)].tolist()
            for number, (corners, _) in enumerate(objects):
                marked = (red == 100 + number) & (green > 0)
                expected = visible_box(corners, tiles.regions[tile])
                area = (corners[2] - corners[0]) * (corners[3] - corners[1])
                share = 0 if expected is None else np.prod(expected[2:] - expected[:2]) / area
                if number not in numbers:
                    assert share < keep
                    continue
                assert share >= keep or share == max(shares(corners, tiles.regions))
                row = numbers.index(number)
                assert target["boxes"][row].tolist() == expected.tolist()
                assert torch.equal(target["masks"][row] > 0, marked)
                dot = (red == 100 + number) & (green == 250)
                assert int(target["visibility"][row, 0]) == (2 if dot.any() else 0)
                if dot.any():
                    x, y = target["keypoints"][row, 0].int().tolist()
                    assert dot[y, x]


def shares(corners, regions):
    """The visible shares of a box in regions."""
    area = (corners[2] - corners[0]) * (corners[3] - corners[1])
    boxes = [visible_box(corners, region) for region in regions]
    return [0 if box is None else np.prod(box[2:] - box[:2]) / area for box in boxes]


def visible_box(corners, region):
    """The part of a box in a region, relative to it, or None."""
    x0, y0, x1, y1 = region.tolist()
    box = np.clip(corners, [x0, y0, x0, y0], [x1, y1, x1, y1]) - np.array([x0, y0, x0, y0])
    return box if (box[2:] > box[:2]).all() else None


KINDS = {
    "4:2:0.jpg": lambda image: with_sampling(image, "22"),
    "4:4:4.jpg": lambda image: with_sampling(image, "11"),
    "progressive.jpg": lambda image: with_sampling(image, "22", progressive=True),
    "refused by decoders.jpg": lambda image: with_sampling(image, UNNAMED),
    "grey.jpg": lambda image: jpeg(image.convert("L")),
    "turned.jpg": lambda image: jpeg(image, exif=orientation(6)),
    "mirrored.jpg": lambda image: jpeg(image, exif=orientation(4)),
}


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A table of one photograph in several formats, 150 x 130 pixels as stored."""
    root = tmp_path_factory.mktemp("photos")
    image = photo_like(130, 150)
    for name, encode in KINDS.items():
        (root / name).write_bytes(encode(image))
    image.save(root / "photo.png")
    names = [*KINDS, "photo.png"]
    return AnnotationTable(
        root=root,
        image_paths=names,
        class_names=["thing"],
        offsets=np.arange(len(names) + 1),
        boxes=[[20, 20, 90, 90]] * len(names),
        labels=[0] * len(names),
    )


def assert_crops(dataset, tiles):
    """Compare every sample with the crop of its whole image."""
    for tile, (x0, y0, x1, y1) in enumerate(tiles.regions.tolist()):
        image = dataset[tile][0]
        assert torch.equal(image, decode_image(tiles.image_path(tile))[:, y0:y1, x0:x1]), tiles.image_path(tile)
        # The channels of a pixel are adjacent, and the rest of the image is not kept in memory.
        assert image.permute(1, 2, 0).is_contiguous()
        assert image.untyped_storage().nbytes() == image.numel()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", [40, 47, (130, 16), 400])
def test_exact_tiles_have_the_bits_of_the_whole_image(photos, size, decoder):
    tiles = tile_table(photos, Tiling(size))
    with only(decoder):
        assert_crops(DetectionDataset(tiles), tiles)
        lazy = DecodeAwareCompose([SanitizeObjects()])
        assert_crops(DetectionDataset(tiles, transforms=lazy, reading=ImageReading(decode="fast")), tiles)


def test_tiles_from_a_cache_have_the_bits_of_the_whole_image(photos, tmp_path):
    tiles = tile_table(photos, Tiling(47))
    settings = CacheSettings(cache_dir=tmp_path)
    dataset = DetectionDataset(tiles, cache=settings)
    assert_crops(dataset, tiles)
    assert_crops(pickle.loads(pickle.dumps(dataset)), tiles)
    # Each file is in the cache once, and tables of whole images share it.
    image_dataset = DetectionDataset(photos, cache=settings)
    assert image_dataset.cache.key == dataset.cache.key
    assert len(list(tmp_path.rglob("*.pixels"))) == 1
    num_pixels = sum(decode_image(photos.image_path(row)).numel() for row in range(len(photos)))
    assert dataset.cache.num_bytes < num_pixels + 4096


def test_the_budget_of_a_cache_counts_whole_images_before_any_is_decoded(photos, tmp_path):
    tiles = tile_table(photos, Tiling(47))
    budget = 3 * 150 * 130 * (len(photos) - 1)
    with pytest.raises(CacheError, match="according to their annotated sizes"):
        DetectionDataset(tiles, cache=CacheSettings(cache_dir=tmp_path, cache_budget=budget))


@pytest.mark.parametrize("size", [208, 149, (170, 200)])
@pytest.mark.parametrize("cut", [False, True])
def test_fast_tiles_stay_within_the_bound(tmp_path, size, cut):
    (tmp_path / "large.jpg").write_bytes(jpeg(photo_like(410, 530)))
    table = AnnotationTable(
        root=tmp_path, image_paths=["large.jpg"], class_names=["a"], offsets=[0, 1], boxes=[[9, 9, 200, 99]], labels=[0]
    )
    tiles = tile_table(table, Tiling(size, overlap=0.25))
    # These sizes need a half or less of the pixels of the larger tiles.
    steps = [v2.RandomResizedCrop([24, 24], scale=(0.5, 1))] if cut else [v2.Resize([40, 40])]
    exact, fast = (
        DetectionDataset(
            tiles, transforms=DecodeAwareCompose([RandomHorizontalFlip(), *steps]), reading=ImageReading(decode=decode)
        )
        for decode in ("exact", "fast")
    )
    num_different = 0
    for tile in range(len(tiles)):
        torch.manual_seed(tile)
        image, target = exact[tile]
        torch.manual_seed(tile)
        fast_image, fast_target = fast[tile]
        assert torch.equal(target["boxes"], fast_target["boxes"])
        difference = (image.float() - fast_image.float()).abs()
        assert 10 * torch.log10(255**2 / difference.square().mean().clamp(min=1e-9)) > 33
        assert difference.max() <= 96
        num_different += bool(difference.any())
    # A tile whose sides are odd is decoded at full size.
    assert (num_different > 0) == (size != 149)


def test_only_the_tile_is_decoded(photos, monkeypatch):
    regions = []
    read_region = EncodedImage.read_region

    def recording(image, region, *, zoom):
        regions.append((region, read_region(image, region, zoom=zoom).zoom))
        return read_region(image, region, zoom=zoom)

    monkeypatch.setattr(EncodedImage, "read_region", recording)
    tiles = tile_table(photos.select([0]), Tiling(64, overlap=0.25)).select([1])
    DetectionDataset(tiles)[0]
    transforms = DecodeAwareCompose([v2.Resize([8, 8])])
    DetectionDataset(tiles, transforms=transforms, reading=ImageReading(decode="fast"))[0]
    assert regions == [((48, 0, 112, 64), 1), ((48, 0, 112, 64), 1 / 2)]


def test_a_tile_is_padded_with_fill_and_not_with_its_neighbours(photos):
    tiles = tile_table(photos.select([0]), Tiling(64, overlap=0.25))
    transforms = detection_transforms(False, size=(40, 80), letterbox=True, fill=7, to_float=False)
    for decode in ("exact", "fast"):
        image, _ = DetectionDataset(tiles, transforms=transforms, reading=ImageReading(decode=decode))[1]
        assert (image[:, :, :18] == 7).all()
        assert (image[:, :, -18:] == 7).all()


def test_a_region_outside_of_the_image_is_refused_by_name(photos):
    table = dataclasses.replace(photos.select([0]), widths=[300], heights=[130])
    tiles = tile_table(table, Tiling(130, overlap=0))
    with pytest.warns(UserWarning, match="the image is 150x130, its annotation and its tiles are for 300x130"):
        assert DetectionDataset(tiles)[0][0].shape == (3, 130, 130)
    words = (
        r"4:2:0\.jpg: the region 130, 0, 260, 130 \(left.*inside the image, which is 150x130; correct the image's size"
    )
    with pytest.raises(ImageError, match=words):
        DetectionDataset(tiles)[1]


def test_a_file_larger_than_its_annotation_is_reported_once_or_refused(photos):
    tiles = tile_table(dataclasses.replace(photos.select([0]), widths=[100], heights=[130]), Tiling(50, overlap=0))
    dataset = DetectionDataset(tiles)
    with pytest.warns(UserWarning, match=r"4:2:0\.jpg: the image is 150x130.*for 100x130, so they do not") as warned:
        widths = [image.shape[2] for image, _ in map(dataset.__getitem__, range(len(dataset)))]
    assert widths == [50] * len(dataset)
    assert len(warned) == 1
    # A part of the tiles knows the size of the file as well.
    dataset = DetectionDataset(tiles.select([1]), reading=ImageReading(size_mismatch="raise"))
    with pytest.raises(ImageError, match="the image is 150x130, its annotation says 100x130"):
        dataset[0]
    part = tile_table(photos.select([0]), Tiling(50)).select([1])
    assert DetectionDataset(part, reading=ImageReading(size_mismatch="raise"))[0][0].shape == (3, 50, 50)


def test_tiles_of_upright_images_are_cut_for_the_stored_ones_if_these_are_read(photos):
    # As folders and formats without sizes do, the table has the upright size from the header.
    turned = dataclasses.replace(photos.select([list(KINDS).index("turned.jpg")]), widths=[130], heights=[150])
    tiles = tile_table(turned, Tiling(50), exif_orientation=False)
    assert tiles.regions[-1, 2:].tolist() == tiles.file_sizes[-1].tolist() == [150, 130]
    reading = ImageReading(exif_orientation=False)
    dataset = DetectionDataset(tiles, reading=reading)
    stored = decode_image(tiles.image_path(0), exif_orientation=False)
    assert torch.equal(dataset[len(dataset) - 1][0], stored[:, -50:, -50:])
    with pytest.raises(ImageError, match="reads stored pixels; leave out tiling, or pass exif_orientation=True"):
        DetectionDataset(tile_table(turned, Tiling(50)), reading=reading)[0]


def test_tiles_of_the_stored_size_of_a_turned_image_are_refused(photos):
    turned = photos.select([list(KINDS).index("turned.jpg")])
    tiles = tile_table(dataclasses.replace(turned, widths=[150], heights=[130]), Tiling(50))
    # This tile is inside the upright image, too, but shows other pixels there.
    with pytest.raises(ImageError, match="EXIF turns the image from 150x130 to 130x150"):
        DetectionDataset(tiles)[0]
    dataset = DetectionDataset(tiles, reading=ImageReading(exif_orientation=False))
    stored = decode_image(tiles.image_path(0), exif_orientation=False)
    assert torch.equal(dataset[0][0], stored[:, :50, :50])


def test_tiles_of_images_as_stored_end_at_their_stored_sides(photos):
    turned = photos.select([list(KINDS).index("turned.jpg")])
    for exif_orientation, size in ((True, [130, 150]), (False, [150, 130])):
        tiles = tile_table(turned, Tiling(50), exif_orientation=exif_orientation)
        assert tiles.regions[-1, 2:].tolist() == size
        dataset = DetectionDataset(tiles, reading=ImageReading(exif_orientation=exif_orientation))
        image = decode_image(tiles.image_path(0), exif_orientation=exif_orientation)
        assert torch.equal(dataset[len(dataset) - 1][0], image[:, -50:, -50:])


def test_an_unreadable_image_is_one_sample_that_raises_its_error(tmp_path, photos):
    (tmp_path / "broken.png").write_text("no image")
    table = AnnotationTable(
        root=tmp_path, image_paths=["broken.png"], class_names=[], offsets=[0, 0], boxes=[], labels=[]
    )
    dataset = DetectionDataset(tile_table(table, Tiling(10)))
    assert len(dataset) == 1
    with pytest.raises(ImageError, match=r"broken\.png: cannot be identified"):
        dataset[0]


def test_a_cache_of_shrunk_images_is_refused_for_tiles(photos, tmp_path):
    tiles = tile_table(photos, Tiling(47))
    with pytest.raises(SettingError, match=r"cache_size=64 shrinks whole images.*pass cache_size=None"):
        DetectionDataset(tiles, cache=CacheSettings(cache_dir=tmp_path, cache_size=64))


def test_classification_cuts_objects_out_of_tiles(photos):
    tiles = tile_table(photos.select([0]), Tiling(64, overlap=0))
    dataset = ClassificationDataset(tiles, sample_unit="object")
    assert torch.equal(dataset[0][0], DetectionDataset(tiles)[0][0])


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 1},
        {"num_workers": 2},
        # These take seconds to start; tests/datamodules/test_extra_transforms.py unpickles a data set by spawn.
        pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.soak),
        pytest.param({"num_workers": 2, "multiprocessing_context": "forkserver"}, marks=pytest.mark.soak),
        {"num_workers": 2, "worker_method": "thread"},
    ],
    ids=str,
)
def test_tiles_have_the_same_bits_in_all_workers(photos, workers):
    tiles = tile_table(photos, Tiling(64))
    dataset = DetectionDataset(tiles, transforms=detection_transforms(True, size=(32, 32), hflip=0.5))
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": DetectionCollate(images="stack")}
    expected = list(DataLoader(dataset, **arguments))
    with DataLoader(dataset, **arguments, **workers) as loader:
        batches = list(loader)
    assert len(batches) == len(expected)
    for (images, targets), (expected_images, expected_targets) in zip(batches, expected, strict=True):
        assert torch.equal(images, expected_images)
        assert [target["image_id"] for target in targets] == [target["image_id"] for target in expected_targets]
        assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(targets, expected_targets, strict=True))
