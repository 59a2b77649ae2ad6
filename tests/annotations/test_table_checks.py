from __future__ import annotations

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.columns import TextColumn
from lit_loader.errors import UnsafePathError

VALID = {
    "root": "/data",
    "image_paths": ["a.jpg", "b.jpg"],
    "class_names": ("cat", "dog"),
    "offsets": [0, 1, 2],
    "boxes": np.zeros((2, 4)),
    "labels": [0, 1],
}
KEYPOINTS = {"keypoints": np.zeros((2, 3, 2)), "visibility": np.zeros((2, 3), int), "keypoint_names": ("a", "b", "c")}


def test_base_tables_of_the_invalid_cases_are_accepted():
    assert AnnotationTable(**VALID).num_objects == 2
    assert AnnotationTable(**VALID, **KEYPOINTS).keypoints is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": [0, 2]}, "offsets has shape"),
        ({"offsets": [0, 2, 1]}, "offsets must start at 0, never decrease, and end at 2"),
        ({"offsets": [1, 1, 2]}, "offsets must start at 0"),
        ({"offsets": [0, 3, 2]}, "never decrease"),
        ({"offsets": [0, 1, 3]}, "end at 2"),
        ({"labels": [0, 2]}, r"labels 0\.\.2 are outside the 2 class_names"),
        ({"labels": [-1, 0]}, r"labels -1\.\.0"),
        ({"labels": [0.5, 1]}, "labels of type float64 must be int64"),
        ({"labels": [0]}, "offsets must start at 0"),
        ({"boxes": np.zeros((1, 4))}, "boxes has shape"),
        ({"boxes": np.zeros((2, 5))}, "boxes has shape"),
        ({"boxes": [[0, 0, 1, 1], [0, np.nan, 1, 1]]}, r"boxes\[1\] = .* must be finite"),
        ({"boxes": [[0, 0, 1, 1], [0, 0, 1, 1e39]]}, r"boxes\[1\] = .* must be finite"),
        ({"boxes": [["a"] * 4] * 2}, "boxes of type"),
        ({"widths": [1]}, "widths has shape"),
        ({"heights": [1, -1]}, "heights holds -1"),
        ({"widths": [1, 2**40]}, "do not fit int32"),
        ({"image_ids": ["a"]}, "image_ids has 1 rows"),
        ({"source_ids": [1]}, "source_ids has shape"),
        ({"source_ids": [1.5, 2]}, "source_ids of type float64 must be int64"),
        ({"category_ids": [1]}, "category_ids has shape"),
        ({"object_ids": [1, 2, 3]}, "object_ids has shape"),
        ({"areas": [1, -1]}, "areas holds -1"),
        ({"areas": [1, np.inf]}, "areas holds inf"),
        ({"corners": np.full((2, 4, 2), np.inf)}, "corners holds inf"),
        ({"corners": np.full((2, 8), np.nan)}, "corners has shape"),
        ({"corners": [[[0, 0]] * 4, [[0, np.nan]] * 4]}, r"corners\[1\] = .* must be finite, or all NaN"),
        ({"rotated_boxes": [[0, 0, 1, 1, 0], [0, 0, 1, 1, np.nan]]}, r"rotated_boxes\[1\] = .* must be finite"),
        ({"rotated_boxes": [[0, 0, 1, 1, 0], [0, 0, 1, -1, 0]]}, r"rotated_boxes\[1\] = .* negative width or height"),
        ({"corners": np.zeros((2, 4, 2)), "rotated_boxes": np.zeros((2, 5))}, "object 0 has corners and a rotated box"),
        ({"masks": [None]}, "masks has 1 rows; there are 2 objects"),
        ({"difficult": [True]}, "difficult has shape"),
        ({"crowd": [0, 1]}, "crowd of type int64 must be bool"),
        ({"class_names": ("cat", "cat")}, "class_names has 'cat' twice"),
        ({"class_names": ("cat", "")}, "is empty at position 1"),
        ({"attributes": {"pose": Attribute(ids=np.array([0]), names=("x",))}}, "pose.* has shape"),
        (
            {"attributes": {"pose": Attribute(ids=np.array([0, 1]), names=("x",))}},
            r"pose.* 0\.\.1 are outside the 1 values",
        ),
        ({"attributes": {"pose": Attribute(ids=np.array([0, -2]), names=("x",))}}, "outside"),
        ({"keypoints": np.zeros((2, 3, 2))}, "go together"),
        (KEYPOINTS | {"visibility": None}, "go together"),
        (KEYPOINTS | {"keypoint_names": ()}, "go together"),
        (KEYPOINTS | {"keypoint_names": ("a", "b")}, "keypoints has shape"),
        (KEYPOINTS | {"visibility": np.zeros((2, 2), int)}, "visibility has shape"),
        (KEYPOINTS | {"visibility": np.full((2, 3), 3)}, "visibility holds 3"),
        (KEYPOINTS | {"visibility": np.full((2, 3), -1)}, "do not fit uint8"),
        (KEYPOINTS | {"keypoints": np.full((2, 3, 2), np.inf)}, "keypoints.* finite"),
        (KEYPOINTS | {"flip_pairs": [(0, 3)]}, "flip_pairs has position 3"),
        (KEYPOINTS | {"flip_pairs": [(1, 1)]}, "flip_pairs pairs position 1 with itself"),
        (KEYPOINTS | {"flip_pairs": [(0, 1), (1, 2)]}, "flip_pairs has position 1 twice"),
        (KEYPOINTS | {"normalization_pair": (0, 3)}, "normalization_pair has position 3"),
        (KEYPOINTS | {"keypoint_names": ("a", "b", "a")}, "names has 'a' twice"),
        ({"flip_pairs": [(0, 1)]}, "table has none"),
        ({"normalization_pair": (0, 1)}, "table has none"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        AnnotationTable(**(VALID | change))


@pytest.mark.parametrize("field", [{"flip_pairs": [(0.0, 1)]}, {"normalization_pair": (0, 1.5)}])
def test_positions_of_keypoints_are_integers(field):
    with pytest.raises(TypeError, match="must be int"):
        AnnotationTable(**VALID, **KEYPOINTS, **field)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.jpg", "a/../../x.jpg", "a\\x.jpg", "a\0.jpg", "", "a/.."])
@pytest.mark.parametrize("position", [0, 1])
def test_paths_that_leave_the_root_are_refused_wherever_they_stand(path, position):
    paths = ["a.jpg"]
    paths.insert(position, path)
    with pytest.raises(UnsafePathError):
        AnnotationTable(**(VALID | {"image_paths": paths}))


def test_odd_but_safe_paths_are_accepted():
    paths = TextColumn.from_rows(["a..b.jpg", "...jpg"])
    assert AnnotationTable(**(VALID | {"image_paths": paths})).image_path(1).name == "...jpg"
