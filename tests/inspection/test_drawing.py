"""Pictures of rows of a table: positions, colours, highlights, whole-image labels, unreadable and hostile input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.annotations import Attribute, Tiling, tile_table
from lit_loader.annotations.masks import Masks
from lit_loader.datamodules.pictures import class_colours
from lit_loader.images import DecodedImage
from lit_loader.images.reading import ImageReading
from lit_loader.inspection import draw_image
from tests.support.any_table import small_table

GREY = (100, 100, 100)
PALE = (180, 180, 180)
TILE = (208, 208, 208)
LIME = (0, 255, 0)
ORANGE = (255, 165, 0)
WHITE = (255, 255, 255)
RED = (230, 25, 75)  # class 0
GREEN = (60, 180, 75)  # class 1
WIDTH = 800
HEIGHT = 400
SIDE = 400  # of the result, so that it is half as large


@pytest.fixture
def table(tmp_path):
    """Return a function that makes a table of a grey image with two boxes, the first one large."""

    def make(**columns):
        Image.new("RGB", (WIDTH, HEIGHT), GREY).save(tmp_path / "a.png")
        boxes = columns.pop("boxes", [[100, 100, 400, 300], [500, 50, 700, 150]])
        defaults = {
            "root": tmp_path,
            "image_paths": ["a.png"],
            "class_names": ["cell", "dot"],
            "offsets": [0, len(boxes)],
            "boxes": np.array(boxes, dtype=np.float32),
            "labels": [i % 2 for i in range(len(boxes))],
            "widths": [WIDTH],
            "heights": [HEIGHT],
        }
        return small_table(**(defaults | columns))

    return make


def pixel(picture, x, y):
    """Return the colour of a picture of half size at a position in the image."""
    return tuple(picture[:, y // 2, x // 2].tolist())


def test_boxes_are_drawn_where_they_are_in_the_colour_of_their_class(table):
    picture = draw_image(table(), 0, longer_side=SIDE)
    assert picture.shape == (3, 200, 400)
    assert picture.dtype == torch.uint8
    assert pixel(picture, 102, 200) == RED
    assert pixel(picture, 600, 146) == GREEN
    assert pixel(picture, 250, 200) == GREY


def test_objects_that_are_not_highlighted_are_pale_and_have_no_text(table):
    boxes = table()
    picture = draw_image(boxes, 0, longer_side=SIDE, highlighted=[1])
    assert pixel(picture, 102, 200) == PALE
    assert pixel(picture, 600, 146) == GREEN
    above_the_first = picture[:, 30:48, 50:200]
    assert (above_the_first == GREY[0]).all()
    assert not (draw_image(boxes, 0, longer_side=SIDE)[:, 30:48, 50:200] == GREY[0]).all()


def test_masks_tint_their_pixels_at_the_size_of_the_picture(table):
    triangle = np.array([[100, 300], [400, 300], [400, 100]])
    picture = draw_image(table(masks=Masks.from_rows([[triangle], None])), 0, longer_side=SIDE)
    assert pixel(picture, 380, 250) != GREY
    assert pixel(picture, 130, 150) == GREY
    assert pixel(picture, 600, 100) == GREY


def test_points_show_their_visibility_and_lines_join_mirror_pairs(table):
    points = np.zeros((2, 3, 2), dtype=np.float32)
    points[0] = [[150, 200], [350, 200], [250, 250]]
    states = np.array([[2, 1, 0], [0, 0, 0]], dtype=np.uint8)
    columns = {"keypoints": points, "visibility": states, "keypoint_names": ("left", "right", "nose")}
    picture = draw_image(table(**columns, flip_pairs=[(0, 1)]), 0, longer_side=SIDE)
    assert pixel(picture, 150, 200) == LIME
    assert pixel(picture, 350, 200) == ORANGE
    assert pixel(picture, 250, 250) == GREY
    assert pixel(picture, 250, 200) == WHITE
    assert pixel(draw_image(table(**columns), 0, longer_side=SIDE), 250, 200) == GREY


def test_limbs_join_present_points_of_the_skeleton_instead_of_mirror_pairs(table):
    points = np.zeros((2, 3, 2), dtype=np.float32)
    points[0] = [[150, 200], [350, 280], [150, 280]]
    columns = {"keypoints": points, "keypoint_names": ("left", "right", "nose"), "flip_pairs": [(0, 1)]}
    skeleton = [(0, 2), (1, 2)]
    states = np.array([[2, 1, 2], [0, 0, 0]], dtype=np.uint8)
    picture = draw_image(table(**columns, visibility=states, skeleton=skeleton), 0, longer_side=SIDE)
    assert pixel(picture, 150, 240) == WHITE
    assert pixel(picture, 250, 280) == WHITE
    assert pixel(picture, 250, 240) == GREY
    states[0, 1] = 0
    picture = draw_image(table(**columns, visibility=states, skeleton=skeleton), 0, longer_side=SIDE)
    assert pixel(picture, 150, 240) == WHITE
    assert pixel(picture, 250, 280) == GREY


def test_objects_of_the_whole_image_become_labels_above_it(table):
    picture = draw_image(table(boxes=[[0, 0, WIDTH, HEIGHT]]), 0, longer_side=SIDE)
    assert picture.shape[1] > 200
    assert (picture[:, -200:] == GREY[0]).all()
    assert len(picture[:, :-200].flatten(1).unique(dim=1).T) > 2  # strip, colour of the class, text


def test_an_image_that_cannot_be_read_is_a_grey_tile_with_the_reason(table, tmp_path):
    broken = table()
    (tmp_path / "a.png").write_bytes(b"no image")
    picture = draw_image(broken, 0, longer_side=SIDE)
    assert picture.shape == (3, 300, 400)
    assert tuple(picture[:, -1, -1].tolist()) == TILE
    assert (picture < 100).all(dim=0).sum() > 100  # letters


def test_a_row_that_is_a_region_shows_the_region(table, tmp_path):
    tiles = tile_table(table(), Tiling(size=400, overlap=0))
    pixels = np.full((HEIGHT, WIDTH, 3), 100, dtype=np.uint8)
    pixels[:, 400:] = 30
    Image.fromarray(pixels).save(tmp_path / "a.png")
    tile_pictures = [draw_image(tiles, row, longer_side=400) for row in range(2)]
    assert tuple(tile_pictures[0][:, 350, 390].tolist()) == GREY
    assert tuple(tile_pictures[1][:, 350, 390].tolist()) == (30, 30, 30)
    assert tuple(tile_pictures[0][:, 200, 102].tolist()) == RED


def test_a_region_outside_of_its_file_is_a_tile_with_the_reason(table):
    outside = table(regions=np.array([[700, 0, 1100, 400]], dtype=np.int32))
    assert tuple(draw_image(outside, 0, longer_side=SIDE)[:, -1, -1].tolist()) == TILE


class ShrunkImage(DecodedImage):
    """An image that refuses to be read at full size."""

    zooms = ()

    def read(self):
        raise AssertionError("the whole image was decoded")

    def read_region(self, region, *, zoom):
        type(self).zooms += (zoom,)
        return super().read_region(region, zoom=zoom)


@dataclass(frozen=True, kw_only=True)
class ShrunkReading(ImageReading):
    def open(self, path):
        return ShrunkImage(super().open(path).read())


def test_large_images_are_shrunk_while_they_are_decoded(table):
    ShrunkImage.zooms = ()
    draw_image(table(), 0, longer_side=SIDE, reading=ShrunkReading())
    assert ShrunkImage.zooms == (0.5,)


@pytest.mark.parametrize(
    "columns",
    [
        {"boxes": [[400, 300, 100, 100], [7, 7, 7, 7]]},
        {"boxes": [[-1e30, -1e30, 1e30, 1e30], [1e30, 1e30, 1e30, 1e30]]},
        {
            "boxes": [[1, 1, 3e38, 3e38], [7, 7, 7, 7]],
            "keypoints": np.full((2, 1, 2), 3e38, dtype=np.float32),
            "visibility": np.full((2, 1), 2, dtype=np.uint8),
            "keypoint_names": ("a",),
            "widths": [80],
            "heights": [40],
        },
        {"class_names": ["a\nb\x1b[31m\u202e", "x" * 5000]},
        {"widths": [1], "heights": [100_000]},
        {
            "keypoints": np.full((2, 2, 2), 1e30, dtype=np.float32),
            "visibility": np.full((2, 2), 2, dtype=np.uint8),
            "keypoint_names": ("a", "b"),
            "flip_pairs": [(0, 1)],
        },
        {"masks": Masks.from_rows([[np.array([[-1e30, 0], [1e30, 0], [0, 1e30]])], []])},
    ],
    ids=["inverted", "huge", "overflow", "names", "size", "points", "masks"],
)
def test_hostile_annotations_are_drawn_on_a_picture_of_the_same_size(table, columns):
    assert draw_image(table(**columns), 0, longer_side=SIDE).shape == (3, 200, 400)


def test_the_largest_of_very_many_objects_are_drawn(table, monkeypatch):
    monkeypatch.setattr("lit_loader.inspection.drawing._MAX_OBJECTS", 3)
    corners = np.linspace(0, 300, 50)
    boxes = [[x, x, x + 4, x + 4] for x in corners] + [[100, 100, 400, 300]]
    many = table(boxes=boxes, labels=[1] * 50 + [0])
    picture = draw_image(many, 0, longer_side=SIDE)
    assert pixel(picture, 102, 200) == RED
    # A highlighted object is drawn although others are larger.
    assert pixel(draw_image(many, 0, longer_side=SIDE, highlighted=[0]), 2, 2) == GREEN


def test_masks_of_many_objects_take_bounded_memory(table, monkeypatch):
    monkeypatch.setattr("lit_loader.inspection.drawing._MAX_MASK_BYTES", 2 * 200 * 400)
    square = np.array([[0, 0], [50, 0], [50, 50], [0, 50]])
    boxes = [[700, 300, 702, 302], [710, 300, 714, 304], [0, 0, 50, 50]]
    polygons = [[square + np.array([700, 300])], [square + np.array([600, 200])], [square]]
    picture = draw_image(table(boxes=boxes, labels=[0, 0, 0], masks=Masks.from_rows(polygons)), 0, longer_side=SIDE)
    assert pixel(picture, 24, 24) != GREY
    assert pixel(picture, 740, 340) == GREY  # the mask of the smallest


def test_numbers_and_attributes_are_in_the_texts(table, monkeypatch):
    texts = []
    monkeypatch.setattr(
        "lit_loader.inspection.drawing.draw_fitted_objects",
        lambda canvas, fields, **drawing: texts.extend(drawing["texts"]),
    )
    finish = Attribute(ids=np.array([1, -1]), names=("plain", "dotted"))
    draw_image(table(attributes={"finish": finish}, difficult=[False, True]), 0, numbered=True)
    assert texts == ["0 cell, dotted", "1 dot, difficult"]


def test_colours_follow_the_class(table):
    assert class_colours(torch.tensor([0, 1, 10])) == ["#e6194b", "#3cb44b", "#e6194b"]
