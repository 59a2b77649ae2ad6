"""A table that uses every column, and comparison of tables."""

from __future__ import annotations

import numpy as np

from lit_loader.annotations import AnnotationTable, Attribute, Masks, Problem, ReadReport, RunLengths
from lit_loader.annotations.places import Place, Places
from lit_loader.annotations.table import COLUMNS

SQUARE = [[1, 1], [5, 1], [5, 4], [1, 4]]
TRIANGLE = [0, 0, 9, 0, 0, 9]


def full_table(root="/data", **changes):
    """A table that uses everything: 3 images with 2, 0 and 1 objects."""
    report = ReadReport()
    report.add(Problem(kind="swapped", action="fix", file="a.xml", message="m"))
    arguments = {
        "root": root,
        "image_paths": ["images/a.jpg", "images/b.png", "images/ä c.jpg"],
        "image_ids": ["a", "b", "ä c"],
        "source_ids": [139, -1, 2**40],
        "image_stamps": [7, 0, -1],
        "image_places": [Place(file="a.xml"), Place(file="lists/b.txt", line=2), None],
        "class_names": ("cat", "dog", "owl"),
        "category_ids": [17, 18, 90],
        "widths": [100, 0, 50],
        "heights": [80, 0, 60],
        "regions": [[0, 0, 100, 80], [0, 0, 0, 0], [10, 20, 60, 80]],
        "file_sizes": [[120, 80], [0, 0], [64, 90]],
        "shards": [0, -1, 3],
        "offsets": [0, 2, 2, 3],
        "boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8], [0, 0, 9, 9]],
        "corners": [[[1, 2], [3, 2], [3, 4], [1, 3.5]], *[[[np.nan] * 2] * 4] * 2],
        "rotated_boxes": [*[[np.nan] * 5] * 2, [4.5, 4.5, 9, 9, 90]],
        "labels": [1, 0, 1],
        "difficult": [True, False, False],
        "truncated": [False, True, False],
        "occluded": [False, False, True],
        "crowd": [True, True, False],
        "object_ids": [900100, 7, -1],
        "areas": [12.5, np.nan, 0],
        "object_places": [
            Place(file="a.xml", line=31),
            Place(file="a.xml", line=45),
            Place(file="ä.json", entry="shapes[0]"),
        ],
        "masks": Masks.from_rows([[SQUARE, TRIANGLE], RunLengths([3, 2, 7], 4, 3), None]),
        "keypoints": np.arange(12).reshape(3, 2, 2),
        "visibility": [[0, 1], [2, 2], [1, 0]],
        "keypoint_names": ("left", "right"),
        "flip_pairs": ((0, 1),),
        "normalization_pair": (1, 0),
        "attributes": {"pose": Attribute(ids=np.array([0, -1, 1]), names=("front", "side"))},
        "unlabelled_classes": ("owl",),
        "split": "train",
        "report": report,
    }
    return AnnotationTable(**(arguments | changes))


def places_of(table):
    """The place of each image, and of each object."""
    objects = [table.place_of_object(row) for row in range(table.num_objects)]
    return [table.place_of_image(row) for row in range(len(table))], objects


def assert_same(a, b):
    for name in (
        "root",
        "class_names",
        "unlabelled_classes",
        "split",
        "report",
        "keypoint_names",
        "flip_pairs",
        "normalization_pair",
    ):
        assert getattr(a, name) == getattr(b, name), name
    np.testing.assert_array_equal(a.offsets, b.offsets)
    assert places_of(a) == places_of(b)
    for name, spec in COLUMNS.items():
        # The order of the files in a column of places has no meaning.
        if spec.kind is Places:
            continue
        x, y = (spec.to_arrays(name, getattr(table, name)) for table in (a, b))
        assert x.keys() == y.keys(), name
        for part in x:
            assert x[part].dtype == y[part].dtype
            np.testing.assert_array_equal(x[part], y[part], err_msg=part)
    assert a.attributes.keys() == b.attributes.keys()
    for name in a.attributes:
        assert a.attributes[name].names == b.attributes[name].names
        np.testing.assert_array_equal(a.attributes[name].ids, b.attributes[name].ids)
