"""Tables of every kind, their comparison, and the values of their attributes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema

COLUMNS = ("widths", "heights", "offsets", "boxes", "labels", "difficult", "truncated", "occluded", "crowd")
NAMES = st.text(st.sampled_from("abz09 <&\"'é語"), min_size=1, max_size=6).filter(lambda n: n == n.strip())
COORDINATE = st.floats(-1e6, 1e6, width=32)


def attribute_values(table: AnnotationTable, name: str) -> list[str | None]:
    """Return the value of an attribute for each object, None where it has none."""
    attribute = table.attributes[name]
    return [attribute.names[i] if i >= 0 else None for i in attribute.ids.tolist()]


def small_table(**columns) -> AnnotationTable:
    """Return a table of one image with one object, unless columns say otherwise."""
    defaults = {
        "root": "/",
        "image_paths": ["a.jpg"],
        "class_names": ["x"],
        "offsets": [0, 1],
        "boxes": np.array([[1, 2, 3, 4]], dtype=np.float32),
        "labels": [0],
        "widths": [9],
        "heights": [9],
    }
    return AnnotationTable(**(defaults | columns))


def assert_same_table(table: AnnotationTable, expected: AnnotationTable) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(table, name), getattr(expected, name), err_msg=name)
    for name in ("class_names", "split", "keypoint_schema"):
        assert getattr(table, name) == getattr(expected, name), name
    assert list(table.image_ids) == list(expected.image_ids)
    assert (table.keypoints is None) == (expected.keypoints is None)
    if expected.keypoints is not None:
        np.testing.assert_array_equal(table.keypoints, expected.keypoints)
        np.testing.assert_array_equal(table.visibility, expected.visibility)
    assert list(table.attributes) == list(expected.attributes)
    for name, attribute in expected.attributes.items():
        assert table.attributes[name].names == attribute.names
        np.testing.assert_array_equal(table.attributes[name].ids, attribute.ids)


@st.composite
def schemas(draw) -> KeypointSchema:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    order = draw(st.permutations(range(len(names))))
    pairs = [tuple(order[i : i + 2]) for i in range(0, len(order) - 1, 2)]
    scale = tuple(order[:2]) if len(order) > 1 and draw(st.booleans()) else None
    flips = tuple(pairs[: draw(st.integers(0, len(pairs)))])
    sigmas = [draw(st.floats(1e-3, 9.0)) for _ in names] if draw(st.booleans()) else []
    skeleton = tuple(pairwise(order)) if draw(st.booleans()) else ()
    return KeypointSchema(
        names=tuple(names), flip_pairs=flips, normalization_pair=scale, sigmas=tuple(sigmas), skeleton=skeleton
    )


@st.composite
def tables(draw, *, exact: bool = False) -> AnnotationTable:
    """Draw a table; under ``exact`` its boxes are multiples of a quarter, so that their sums are exact."""
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    total = sum(counts)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    class_names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    corners = np.array([draw(st.tuples(*[COORDINATE] * 4)) for _ in range(total)], dtype=np.float32).reshape(-1, 2, 2)
    corners = np.round(corners * 4) / 4 + np.float32(0) if exact else corners
    columns = {name: rng.random(total) < 0.5 for name in ("difficult", "truncated", "occluded", "crowd")}
    schema = draw(st.none() | schemas() | st.sampled_from([*KEYPOINT_SCHEMAS.values()]))
    if schema is not None:
        visibility = rng.integers(0, 3, (total, len(schema.names))).astype(np.uint8)
        points = rng.normal(50, 40, (total, len(schema.names), 2)).astype(np.float32)
        columns |= {"keypoints": np.where(visibility[..., None] > 0, points, np.float32(0)), "visibility": visibility}
        columns |= schema.columns()
    attributes = {}
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        values = tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
        attributes[name] = Attribute(ids=rng.integers(-1, len(values), total), names=values)
    return AnnotationTable(
        root="/",
        image_paths=[f"JPEGImages/{i}.jpg" for i in range(len(counts))],
        image_ids=[str(i) for i in range(len(counts))],
        class_names=class_names,
        widths=rng.integers(1, 999, len(counts)),
        heights=rng.integers(1, 999, len(counts)),
        offsets=np.cumsum([0, *counts]),
        boxes=np.hstack([corners.min(axis=1), corners.max(axis=1)]),
        labels=rng.integers(0, len(class_names), total),
        attributes=attributes,
        split=draw(st.sampled_from([None, "train"])),
        **columns,
    )
