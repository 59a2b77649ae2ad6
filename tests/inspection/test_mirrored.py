"""Objects next to their mirror images: points by name and side, as a flip in training exchanges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lit_loader.annotations import AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.inspection import draw_mirrored, drawing, show_mirrored
from lit_loader.inspection.show import mirrored_objects
from tests.support.any_table import small_table

BLUE = (67, 99, 216)  # first points of pairs
ORANGE = (245, 130, 49)
WHITE = (255, 255, 255)
GREY = (100, 100, 100)
NAMES = ("left", "right", "nose", "ear")
SIZE = 100
# Twice the margin of a fifth of the box is inside the image, so that the region is 84 pixels and twice as large.
BOX = (20.0, 20.0, 80.0, 80.0)
REGION = 84
CORNER = 8
SIDE = 168
POINTS = ((60.0, 40), (30, 40), (45, 65), (70, 70))


@pytest.fixture
def table(tmp_path: Path) -> AnnotationTable:
    """A grey image with an object whose ear is absent, and an object without points."""
    Image.new("RGB", (SIZE, SIZE), GREY).save(tmp_path / "a.png")
    return table_in(tmp_path)


def table_in(folder: Path, **columns: Any) -> AnnotationTable:
    points = np.zeros((2, 4, 2), dtype=np.float32)
    points[1] = POINTS
    defaults = {
        "root": folder,
        "image_paths": ["a.png"],
        "widths": [SIZE],
        "heights": [SIZE],
        "class_names": ["face"],
        "offsets": [0, 2],
        "boxes": np.array([[0, 0, 9, 9], BOX], dtype=np.float32),
        "labels": [0, 0],
        "keypoints": points,
        "visibility": np.array([[0, 0, 0, 0], [2, 1, 2, 0]], dtype=np.uint8),
        "keypoint_names": NAMES,
        "flip_pairs": [(0, 1)],
        "skeleton": [(0, 2), (2, 3)],
    }
    return small_table(**(defaults | columns))


def halves_of(picture: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves without the line above them and the gap between them."""
    top = picture.shape[1] - SIDE
    return picture[:, top:, :SIDE], picture[:, top:, -SIDE:]


def pixel(half: Tensor, x: float, y: float) -> tuple[int, ...]:
    """Return the colour at a position in the image, or in its mirror image."""
    return tuple(half[:, int((y - CORNER) * 2), int((x - CORNER) * 2)].tolist())


def test_mirrored_points_have_the_sides_that_training_gives_them(table: AnnotationTable) -> None:
    annotated, mirrored = halves_of(draw_mirrored(table, 1, longer_side=SIDE))
    assert [pixel(annotated, *point) for point in POINTS] == [BLUE, ORANGE, WHITE, GREY]
    # The region is in the middle, so x becomes SIZE - x, and the pair is exchanged.
    expected = [ORANGE, BLUE, WHITE, GREY]
    assert [pixel(mirrored, SIZE - x, y) for x, y in POINTS] == expected


def test_a_missing_pair_leaves_points_on_the_wrong_side(table: AnnotationTable) -> None:
    _, mirrored = halves_of(draw_mirrored(table, 1, flip_pairs=[(1, 2)], longer_side=SIDE))
    # The left point has no pair, and the right one has become the nose.
    assert [pixel(mirrored, SIZE - x, y) for x, y in POINTS] == [WHITE, ORANGE, BLUE, GREY]


def test_limbs_are_mirrored_and_not_drawn_to_absent_points(table: AnnotationTable) -> None:
    annotated, mirrored = halves_of(draw_mirrored(table, 1, longer_side=SIDE))
    assert pixel(annotated, 52.5, 52.5) == WHITE
    assert pixel(annotated, 57.5, 67.5) == GREY
    # The mirrored left point is the former right one.
    assert pixel(mirrored, SIZE - 37.5, 52.5) == WHITE


def test_points_have_their_names_and_of_many_points_their_positions(
    table: AnnotationTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[list[str]] = []

    def draw_texts(canvas: Tensor, _: Tensor | None, names: list[str], __: list[str], **___: int) -> Tensor:
        texts.append(list(names))
        return canvas

    monkeypatch.setattr(drawing, "draw_texts", draw_texts)
    draw_mirrored(table, 1)
    names = ["left", "right", "nose"]
    assert texts == [names, ["as annotated"], names, ["mirrored"]]
    texts.clear()
    many = np.zeros((2, 30, 2), dtype=np.float32) + 50
    columns = {"visibility": np.full((2, 30), 2, dtype=np.uint8), "keypoint_names": [f"p{i}" for i in range(30)]}
    large = draw_mirrored(table_in(tmp_path, keypoints=many, **columns), 1)
    assert large.shape[2] > 1.5 * draw_mirrored(table, 1).shape[2]
    assert texts[0] == [str(position) for position in range(30)]
    assert texts[2][:3] == ["0", "1", "2"]


def test_random_numbers_of_training_stay_the_same(table: AnnotationTable) -> None:
    state = torch.get_rng_state()
    draw_mirrored(table, 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_objects_and_tables_without_points_are_refused(table: AnnotationTable, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match=r"object_row=2 must be in \[0, 2\)"):
        draw_mirrored(table, 2)
    bare = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": (), "skeleton": ()}
    with pytest.raises(ValueError, match="no points"):
        draw_mirrored(table_in(tmp_path, **bare), 0)
    with pytest.raises(ValueError, match="no points; read it with a schema"):
        show_mirrored(table_in(tmp_path, **bare))
    with pytest.raises(ValueError, match="no mirror pairs of its points"):
        show_mirrored(table_in(tmp_path, flip_pairs=()))


def test_hostile_points_and_boxes_are_drawn(tmp_path: Path) -> None:
    Image.new("RGB", (SIZE, SIZE), GREY).save(tmp_path / "a.png")
    for place in (-1e30, 3e38):
        points = np.full((2, 4, 2), place, dtype=np.float32)
        points[0, 0] = 0
        boxes = np.full((2, 4), place, dtype=np.float32)
        visibility = np.full((2, 4), 2, dtype=np.uint8)
        table = table_in(tmp_path, keypoints=points, boxes=boxes, visibility=visibility)
        assert draw_mirrored(table, 1, longer_side=SIDE).shape[0] == 3


def test_an_image_that_cannot_be_read_is_a_tile(table: AnnotationTable) -> None:
    table.image_path(0).unlink()
    assert tuple(draw_mirrored(table, 1, longer_side=SIDE)[:, -1, -1].tolist()) == (208, 208, 208)


def test_each_image_shows_the_object_with_the_most_complete_pairs(tmp_path: Path) -> None:
    pairs = [(0, 1), (2, 3)]
    visibility = [[2, 2, 0, 2], [2, 2, 1, 1], [2, 0, 2, 0], [0, 0, 2, 2]]
    columns: dict[str, Any] = {
        "image_paths": ["a.png", "b.png", "c.png"],
        "widths": [SIZE] * 3,
        "heights": [SIZE] * 3,
        "offsets": [0, 2, 3, 4],
        "boxes": np.array([BOX] * 4, dtype=np.float32),
        "labels": [0, 1, 0, 1],
        "class_names": ["face", "body"],
        "keypoints": np.zeros((4, 4, 2), dtype=np.float32) + 50,
        "visibility": np.array(visibility, dtype=np.uint8),
        "flip_pairs": pairs,
    }
    table = table_in(tmp_path, **columns)
    assert mirrored_objects(table, pairs, num_images=9) == [1, 3]
    assert mirrored_objects(table, pairs[:1], num_images=9) == [0]
    gallery = show_mirrored(table, classes=["face"], heading="train")
    assert [caption for _, caption in gallery.pictures] == ["a.png (object 0)"]
    assert gallery.sections[0].texts == ["1 images with face; the names must fit both halves"]
    with pytest.raises(ValueError, match="position of 4 or more; there are 4 points"):
        mirrored_objects(table, [(0, 4)], num_images=1)
    with pytest.raises(SettingError, match="num_images=0 must be at least 1"):
        show_mirrored(table, num_images=0)
