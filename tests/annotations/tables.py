"""A table that uses every column, and what it is to be the same table."""

from __future__ import annotations

import numpy as np

from lit_loader.annotations import AnnotationTable, Attribute, Problem, ReadReport

COLUMNS = ("widths", "heights", "offsets", "boxes", "labels", "difficult", "truncated", "occluded", "crowd")


def full_table(root="/data", **changes):
    """A table that uses everything: 3 images with 2, 0 and 1 objects."""
    report = ReadReport()
    report.add(Problem(kind="swapped", action="fix", file="a.xml", message="m"))
    arguments = {
        "root": root,
        "image_paths": ["images/a.jpg", "images/b.png", "images/ä c.jpg"],
        "image_ids": ["a", "b", "ä c"],
        "class_names": ("cat", "dog", "owl"),
        "widths": [100, 0, 50],
        "heights": [80, 0, 60],
        "offsets": [0, 2, 2, 3],
        "boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8], [0, 0, 9, 9]],
        "labels": [1, 0, 1],
        "difficult": [True, False, False],
        "truncated": [False, True, False],
        "occluded": [False, False, True],
        "crowd": [True, True, False],
        "keypoints": np.arange(12).reshape(3, 2, 2),
        "visibility": [[0, 1], [2, 2], [1, 0]],
        "keypoint_names": ("left", "right"),
        "flip_pairs": ((0, 1),),
        "interocular": (1, 0),
        "attributes": {"pose": Attribute(ids=np.array([0, -1, 1]), names=("front", "side"))},
        "split": "train",
        "report": report,
    }
    return AnnotationTable(**(arguments | changes))


def assert_same(a, b):
    assert (a.root, a.class_names, a.split, a.report) == (b.root, b.class_names, b.split, b.report)
    assert a.keypoint_schema == b.keypoint_schema
    assert list(a.image_paths) == list(b.image_paths)
    assert list(a.image_ids) == list(b.image_ids)
    for name in (*COLUMNS, "keypoints", "visibility"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert a.attributes.keys() == b.attributes.keys()
    for name in a.attributes:
        assert a.attributes[name].names == b.attributes[name].names
        np.testing.assert_array_equal(a.attributes[name].ids, b.attributes[name].ids)
