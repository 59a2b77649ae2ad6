"""Scenes of shapes: points lie where the drawing has its corners, and a finish can be seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lit_loader.datasets.scenes import (
    FINISH_NAMES,
    POINTS,
    SHAPE_NAMES,
    SceneObject,
    box_of,
    draw_objects,
    outline,
    place_objects,
    points_of,
    render_scene,
)

SIDE = 48
SCALE = 8
DISC, SQUARE, STAR = range(3)
PLAIN, DOTTED, HOLLOW = range(3)
ANGLES = st.floats(-25, 25).map(math.radians)
CENTRES = st.tuples(st.floats(17, 31), st.floats(17, 31))


def thing(**changes: Any) -> SceneObject:
    arguments = {"class_id": SQUARE, "finish_id": PLAIN, "centre": (24.0, 20.0), "radius": 12.0}
    return SceneObject(**(arguments | {"rotation": 0.0, "colour": (200, 40, 30)} | changes))


def drawn(*objects: SceneObject) -> np.ndarray:
    """The objects on black, (SIDE * SCALE, SIDE * SCALE, 3)."""
    canvas = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE))
    draw_objects(canvas, objects, scale=SCALE)
    return np.asarray(canvas)


def colour_at(pixels: np.ndarray, point: np.ndarray) -> tuple[int, ...]:
    """The colour of the pixel that holds a point of the scene."""
    x, y = np.floor(np.asarray(point) * SCALE).astype(int)
    return tuple(pixels[y, x].tolist())


def named(scene_object: SceneObject) -> dict[str, np.ndarray]:
    points, visibility = points_of([scene_object])
    return {n: p for n, p, v in zip(POINTS.names, points[0], visibility[0], strict=True) if v}


@pytest.mark.parametrize("class_id", range(len(SHAPE_NAMES)))
def test_a_box_is_the_tight_hull_of_the_outline(class_id: int) -> None:
    scene_object = thing(class_id=class_id, centre=(30.0, 20.0), radius=8.0, rotation=0.3)
    corners = outline(scene_object)
    x0, y0, x1, y1 = box_of(scene_object)
    low = corners.min(axis=0)
    high = corners.max(axis=0)
    assert 0 <= low[0] - x0 < 1
    assert 0 <= low[1] - y0 < 1
    assert 0 <= x1 - high[0] < 1
    assert 0 <= y1 - high[1] < 1
    assert np.hypot(*(corners - (30.0, 20.0)).T).max() == pytest.approx(8.0)


@given(ANGLES)
def test_points_are_where_their_names_say_however_an_object_leans(rotation: float) -> None:
    square, star = (named(thing(class_id=class_id, rotation=rotation)) for class_id in (SQUARE, STAR))
    assert set(square) == set(POINTS.names) - {"top"}
    assert set(star) == set(POINTS.names)
    for points in (square, star):
        assert points["top_left"][0] < points["top_right"][0]
        assert points["bottom_left"][0] < points["bottom_right"][0]
        assert points["top_left"][1] < points["bottom_left"][1]
        assert points["top_right"][1] < points["bottom_right"][1]
    assert all(star["top"][1] < point[1] for name, point in star.items() if name != "top")
    assert named(thing(class_id=DISC, rotation=rotation)) == {}


@given(ANGLES, st.sampled_from([SQUARE, STAR]))
def test_a_mirrored_object_has_the_points_that_the_flip_pairs_say(rotation: float, class_id: int) -> None:
    points, visibility = points_of([thing(class_id=class_id, rotation=rotation)])
    mirrored, as_visible = points_of([thing(class_id=class_id, rotation=-rotation)])
    partner = dict([*POINTS.flip_pairs, *(pair[::-1] for pair in POINTS.flip_pairs)])
    order = [partner.get(point, point) for point in range(len(POINTS.names))]
    np.testing.assert_array_equal(as_visible, visibility[:, order])
    expected = points[:, order] * (-1, 1) + (48.0, 0.0)  # the centre is at 24
    np.testing.assert_allclose(mirrored[visibility[:, order] > 0], expected[visibility[:, order] > 0], atol=1e-4)


@given(CENTRES, ANGLES, st.sampled_from([SQUARE, STAR]), st.sampled_from([PLAIN, DOTTED, HOLLOW]))
def test_points_lie_on_the_tips_of_what_is_drawn(
    centre: tuple[float, float], rotation: float, class_id: int, finish_id: int
) -> None:
    scene_object = thing(centre=centre, rotation=rotation, class_id=class_id, finish_id=finish_id)
    pixels = drawn(scene_object)
    for point in named(scene_object).values():
        outwards = (point - centre) / scene_object.radius
        assert colour_at(pixels, point - 0.3 * outwards) == scene_object.colour
        assert colour_at(pixels, point + 0.3 * outwards) == (0, 0, 0)


@pytest.mark.parametrize("class_id", range(len(SHAPE_NAMES)))
@pytest.mark.parametrize("colour", [(10, 240, 30), (250, 250, 250), (0, 0, 90)])
def test_each_finish_looks_as_its_name_says(class_id: int, colour: tuple[int, int, int]) -> None:
    looks = {
        name: drawn(thing(class_id=class_id, finish_id=i, colour=colour, rotation=0.2))
        for i, name in enumerate(FINISH_NAMES)
    }
    visible_masks = {name: (pixels == colour).all(axis=2) for name, pixels in looks.items()}
    area = visible_masks["plain"].sum()
    dots = visible_masks["plain"] & ~visible_masks["dotted"]
    assert 0.05 < dots.sum() / area < 0.4
    brightness = looks["dotted"][dots].mean(axis=1)
    assert abs(brightness - np.mean(colour)).min() > 90
    assert not (looks["dotted"].any(axis=2) & ~visible_masks["plain"]).any()  # every dot is inside
    inside = visible_masks["plain"] & ~visible_masks["hollow"]
    assert 0.2 < inside.sum() / area < 0.8
    assert not looks["hollow"][inside].any()  # the background is seen
    assert not (visible_masks["hollow"] & ~visible_masks["plain"]).any()


@pytest.mark.parametrize(
    ("finish_id", "centre", "hidden"),
    [
        (PLAIN, (24.0, 20.0), True),  # over the whole square
        (HOLLOW, (24.0, 20.0), False),  # its corners are seen through the ring
        (PLAIN, (45.0, 20.0), False),
    ],
)
def test_points_under_a_later_object_are_hidden_and_under_an_earlier_one_are_not(
    finish_id: int, centre: tuple[float, float], hidden: bool
) -> None:
    square = thing(radius=7.0)
    other = thing(class_id=DISC, finish_id=finish_id, centre=centre, colour=(1, 2, 3))
    points, visibility = points_of([square, other])
    assert visibility[0].tolist() == ([0, 1, 1, 1, 1] if hidden else [0, 2, 2, 2, 2])
    np.testing.assert_array_equal(points[0], points_of([square])[0][0])
    assert not visibility[1].any()
    assert points_of([other, square])[1][1].tolist() == [0, 2, 2, 2, 2]


@given(st.lists(st.tuples(CENTRES, ANGLES, st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=4))
def test_a_point_is_hidden_exactly_where_a_later_object_is_drawn(kinds: list[Any]) -> None:
    objects = [
        thing(centre=c, rotation=r, class_id=k, finish_id=f, radius=9.0, colour=(50 * (i + 1), 9, 9))
        for i, (c, r, k, f) in enumerate(kinds)
    ]
    visibility = points_of(objects)[1]
    for i, earlier_object in enumerate(objects[:-1]):
        # One object at a time: edges are drawn from whole corners, so two objects may leave a seam that no pixel shows.
        later_masks = [drawn(later).any(axis=2) for later in objects[i + 1 :]]
        for name, point in named(earlier_object).items():
            x, y = np.floor(point * SCALE).astype(int)
            neighbourhoods = [mask[y - 2 : y + 3, x - 2 : x + 3] for mask in later_masks]
            hidden = any(pixels.all() for pixels in neighbourhoods)
            if hidden or not any(pixels.any() for pixels in neighbourhoods):
                assert visibility[i, POINTS.names.index(name)] == (1 if hidden else 2)


@pytest.mark.parametrize("max_rotation", [0.0, 10.0, 25.0])
def test_placed_objects_are_what_was_asked_for_and_lie_inside(max_rotation: float) -> None:
    class_ids = [0, 1, 2] * 3
    finish_ids = [2, 1, 0, 0, 0, 1, 1, 2, 2]
    leanings = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        objects = place_objects(class_ids, finish_ids, image_size=96, max_rotation=max_rotation, rng=rng)
        assert [scene_object.class_id for scene_object in objects] == class_ids
        assert [scene_object.finish_id for scene_object in objects] == finish_ids
        boxes = np.array([box_of(scene_object) for scene_object in objects])
        assert boxes.min() >= 0
        assert boxes.max() <= 96
        leanings += [math.degrees(scene_object.rotation) for scene_object in objects]
        assert all(max(abs(channel - 127.5) for channel in scene_object.colour) >= 100 for scene_object in objects)
    assert max(map(abs, leanings)) <= max_rotation
    assert max(leanings) >= 0.8 * max_rotation
    assert min(leanings) <= -0.8 * max_rotation


def test_a_scene_is_drawn_from_its_generator_alone() -> None:
    objects = [thing(), thing(class_id=STAR, finish_id=HOLLOW, centre=(30.0, 30.0))]
    first, repeated, other = (
        render_scene(objects, image_size=SIDE, rng=np.random.default_rng(seed)).tobytes() for seed in (1, 1, 2)
    )
    assert first == repeated != other
