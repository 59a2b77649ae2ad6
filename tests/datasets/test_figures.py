"""The drawn figures: their points fit the picture, left is left, and settings decide the content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.keypoints import names_without_mirror
from lit_loader.datasets import FiguresSource, draw_figures
from lit_loader.datasets.figures import FIGURE_NAMES, FIGURE_POINTS

SMALL: dict[str, Any] = {"num_images": {"train": 12}, "image_size": 96, "objects_per_image": (2, 5), "progress": False}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> AnnotationTable:
    (table,) = FiguresSource(**SMALL, cache_dir=str(tmp_path_factory.mktemp("cache"))).tables("train")
    return table


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_table_has_both_classes_and_the_schema_with_sigmas_and_skeleton(table: AnnotationTable) -> None:
    assert (table.num_images, table.class_names, table.keypoint_schema) == (12, FIGURE_NAMES, FIGURE_POINTS)
    assert table.class_counts().min() > 0
    assert len(FIGURE_POINTS.sigmas) == len(FIGURE_POINTS.names) == 13
    assert {point for edge in FIGURE_POINTS.skeleton for point in edge} == set(range(13))
    assert not table.report.problems


def test_present_points_are_inside_image_and_box_and_some_are_absent_or_hidden(table: AnnotationTable) -> None:
    present = table.visibility > 0
    assert ((table.keypoints >= 0) & (table.keypoints < 96)).all()
    assert (table.keypoints[~present] == 0).all()
    boxes = table.boxes[:, None]
    is_inside = (table.keypoints >= boxes[..., :2]) & (table.keypoints <= boxes[..., 2:])
    assert is_inside.all(axis=2)[present].all()
    assert set(np.unique(table.visibility)) == {0, 1, 2}


def test_visible_joints_have_the_colour_of_their_figure(table: AnnotationTable) -> None:
    distances = []
    for row in range(table.num_images):
        pixels = np.asarray(Image.open(table.image_path(row)).convert("RGB"), dtype=float)
        for number in range(table.num_objects)[table.objects(row)]:
            points = table.keypoints[number][table.visibility[number] == 2].astype(int)
            colours = pixels[points[:, 1], points[:, 0]]
            distances.append(np.abs(colours - np.median(colours, axis=0)).mean())
    # Noise is up to 25 per channel; points of the background would differ by about 60.
    assert np.median(distances) < 25


def test_left_is_the_right_side_of_the_image_and_a_mirrored_figure_has_exchanged_names(table: AnnotationTable) -> None:
    present = (table.visibility > 0).all(axis=1)
    shoulders = table.keypoints[:, 1] - table.keypoints[:, 2]
    assert (shoulders[present, 0] > 0).all()
    assert present.sum() > 5


def test_a_mirrored_figure_is_a_figure_by_its_pairs_and_limbs(table: AnnotationTable) -> None:
    assert names_without_mirror(FIGURE_POINTS) == ()
    mirror = dict((*FIGURE_POINTS.flip_pairs, *(pair[::-1] for pair in FIGURE_POINTS.flip_pairs)))
    limbs = {frozenset(limb) for limb in FIGURE_POINTS.skeleton}
    assert {frozenset(mirror.get(point, point) for point in limb) for limb in limbs} == limbs
    # Shoulders and hips of the mirror image, with exchanged names, are on the sides where the figures have them.
    order = [mirror.get(point, point) for point in range(13)]
    exchanged = 96 - table.keypoints[:, order, 0]
    for position in (1, 7):
        seen = (table.visibility[:, position : position + 2] > 0).all(axis=1)
        assert (exchanged[seen, position] > exchanged[seen, position + 1]).all()
        assert seen.sum() > 10


def test_limbs_have_the_colour_of_their_figure_and_end_at_its_points(table: AnnotationTable) -> None:
    distances = []
    for row in range(table.num_images):
        pixels = np.asarray(Image.open(table.image_path(row)).convert("RGB"), dtype=float)
        # The last figure of an image is in front of all others.
        number = table.objects(row).stop - 1
        is_seen = table.visibility[number] == 2
        limbs = [limb for limb in FIGURE_POINTS.skeleton if is_seen[list(limb)].all()]
        middles = table.keypoints[number][np.array(limbs).reshape(-1, 2)].mean(axis=1).astype(int)
        colours = pixels[middles[:, 1], middles[:, 0]]
        distances.append(np.abs(colours - np.median(colours, axis=0)).mean())
    assert np.median(distances) < 25


def test_same_settings_give_the_same_bytes_and_other_seeds_other_figures(tmp_path: Path) -> None:
    few = SMALL | {"num_images": {"train": 2}}
    first, second = (draw_figures(tmp_path / name, **few) for name in "ab")
    assert (first.name, content(first)) == (second.name, content(second))
    other = draw_figures(tmp_path / "a", **few, seed=1)
    assert content(other)["Annotations/train_00000.xml"] != content(first)["Annotations/train_00000.xml"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rotation": 90}, "left looks like right"),
        ({"image_size": 63}, "at least 64"),
        ({"class_shares": (0.7, 0.2)}, "2 positive shares of sum 1"),
        ({"objects_per_image": (0, 2)}, "1 <= smallest <= largest"),
        ({"objects_per_image": [1]}, r"objects_per_image=\[1\] must be two numbers"),
        ({"num_images": {"../x": 2}}, "expected a file name"),
        ({"num_images": {"..": 2}}, "expected a file name"),
        ({"num_images": {"a\n": 2}}, "expected a file name"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_figures(tmp_path, **settings)
    with pytest.raises(ValueError, match="the splits are train, val and test"):
        FiguresSource(num_images={"other": 3})


@pytest.mark.parametrize(
    "settings", [{"image_size": 64.7}, {"num_images": {"a": 2.9}}, {"objects_per_image": (1, 2.5)}, {"seed": True}]
)
def test_numbers_that_are_not_whole_are_refused_instead_of_cut_off(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(settings))}.* must be a whole number"):
        draw_figures(tmp_path, **settings)
