from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.formats.coco import read_coco
from lit_loader.formats.coco_writer import write_coco
from lit_loader.formats.not_kept import what_is_lost
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.voc_writer import write_voc
from tests.formats.any_table import assert_same_table, tables


def table_of(**columns):
    arguments = {
        "root": "/",
        "image_paths": ["a.jpg"],
        "class_names": ["x"],
        "offsets": [0, 1],
        "boxes": np.array([[1, 2, 3, 4]], dtype=np.float32),
        "labels": [0],
        "widths": [9],
        "heights": [9],
    }
    return AnnotationTable(**(arguments | columns))


POINTS = {
    "keypoints": np.array([[[1, 2], [3, 4]]], dtype=np.float32),
    "keypoint_names": ["p", "q"],
    "flip_pairs": [(0, 1)],
}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
def test_nothing_of_what_readers_give_is_lost_by_voc(table):
    assert what_is_lost(table, "voc") == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
def test_coco_loses_something_exactly_when_it_is_said(tmp_path_factory, table):
    root = tmp_path_factory.mktemp("set")
    lost = write_coco(table, root / "a.json", allow_loss=True, progress=False)
    assert lost == what_is_lost(table, "coco")
    policy = ReadPolicy(missing_image="keep", degenerate="keep")
    again = read_coco(root, "a.json", policy=policy, use_cache=False, progress=False)
    if lost:
        with pytest.raises(AssertionError):
            assert_same_table(again, table)
    else:
        assert_same_table(again, table)


@pytest.mark.parametrize("format", ["voc", "coco"])
def test_full_tables_are_kept(format):
    pose = {"pose": Attribute(ids=np.array([1]), names=("z", "a"))}
    flags = {name: [True] for name in ("difficult", "truncated", "occluded", "crowd")}
    table = table_of(
        **POINTS, **flags, attributes=pose, visibility=[[1, 2]], split="s", class_names=["x", "a"]
    )
    assert what_is_lost(table, format) == []


@pytest.mark.parametrize(
    ("format", "columns", "words"),
    [
        ("voc", {**POINTS, "visibility": [[0, 2]]}, "places of 1 absent points"),
        ("coco", {**POINTS, "visibility": [[0, 2]]}, "places of 1 absent points"),
        ("voc", {"heights": [0]}, "1 widths or heights"),
        ("coco", {"heights": [0]}, "1 widths or heights"),
        ("coco", {"boxes": [[-1e30, 0, 1, 1]]}, "1 boxes exactly"),
        (
            "coco",
            {"image_paths": ["a.jpg"] * 2, "offsets": [0, 1, 1], "widths": [9] * 2, "heights": [9] * 2},
            "1 images that have the same file",
        ),
        (
            "voc",
            {"image_paths": [], "offsets": [0], "boxes": [], "labels": [], "widths": [], "heights": []},
            "names of classes",
        ),
    ],
)
def test_each_loss_is_said_in_words_and_refused_unless_allowed(tmp_path, format, columns, words):
    table = table_of(**columns)
    (lost,) = what_is_lost(table, format)
    assert words in lost
    write = {"voc": write_voc, "coco": lambda table, root, **o: write_coco(table, root / "a.json", **o)}[
        format
    ]
    with pytest.raises(ValueError, match=f"cannot hold {words}.*allow_loss=True"):
        write(table, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert write(table, tmp_path / "set", allow_loss=True) == [lost]


def test_what_a_list_loses_depends_on_its_columns():
    table = table_of(**POINTS, visibility=[[2, 2]])
    assert what_is_lost(table, "points_list", columns="path class points box") == []
    assert what_is_lost(table, "points_list", columns="path class box") == ["points"]


def test_unknown_formats_and_options_are_refused():
    with pytest.raises(ValueError, match="format='pts' is not written; formats: voc, coco, points_list"):
        what_is_lost(table_of(), "pts")
    with pytest.raises(TypeError):
        what_is_lost(table_of(), "points_list")
    with pytest.raises(TypeError):
        what_is_lost(table_of(), "voc", columns="path")
