"""Sources: the same classes in every split, prepared once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations import class_weights, image_weights
from lit_loader.datasets import ShapesSource, VocSource
from lit_loader.errors import AnnotationError
from tests.support.voc_set import write_voc_xml


def write_splits(folder, objects, **columns):
    """Write a folder in VOC layout whose splits have one image with one object each; ``objects`` by split."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, (split, label) in enumerate(objects.items()):
        (folder / f"JPEGImages/{number}.jpg").touch()
        (folder / f"ImageSets/Main/{split}.txt").write_text(f"{number}\n")
        size = {"filename": f"{number}.jpg", "width": 20, "height": 20}
        path = folder / f"Annotations/{number}.xml"
        write_voc_xml(path, **size, names=[label], boxes=[(2, 2, 9, 9)], **columns)
    return folder


@pytest.fixture
def root(tmp_path):
    """Two splits that lack each other's class."""
    return write_splits(tmp_path / "voc", {"train": "zebra", "val": "ant", "test": "zebra", "val2": "ant"})


def voc(root, **arguments):
    return VocSource(root=str(root), cache_dir=str(root.parent / "cache"), progress=False, **arguments)


def test_settings_reach_the_reader(root):
    table = voc(root, one_based=True).tables("train")[0]
    assert table.boxes.tolist() == [[1, 1, 8, 8]]
    (root / "JPEGImages").rename(root / "elsewhere")
    (root / "Annotations").rename(root / "xml")
    moved = voc(root, image_dir="elsewhere", annotation_dir="xml").tables("val")[0]
    assert moved.image_path(0).name == "1.jpg"


def test_a_schema_overrides_the_order_of_points_in_files(tmp_path):
    schema = {"names": ["left", "right"], "flip_pairs": [["left", "right"]]}
    splits = {"train": "face", "val": "face"}
    faces = write_splits(tmp_path / "faces", splits, keypoints=[[(3, 4), (7, 4)]], schema=schema)
    assert voc(faces, test=None).tables("train")[0].keypoint_names == ("left", "right")
    reversed_schema = {"names": ["right", "left"], "flip_pairs": [["left", "right"]]}
    table = voc(faces, test=None, schema=reversed_schema).tables("train")[0]
    assert table.keypoint_names == ("right", "left")
    assert table.keypoints.tolist() == [[[7, 4], [3, 4]]]


def test_the_embedded_set_is_drawn_with_the_settings_given(tmp_path):
    settings = {
        "num_images": {"train": 20},
        "image_size": 64,
        "objects_per_image": (2, 3),
        "class_shares": (0.4, 0.3, 0.3),
        "finish_shares": (0.2, 0.3, 0.5),
        "max_rotation": 1.0,
        "seed": 3,
    }
    (table,) = ShapesSource(cache_dir=str(tmp_path), progress=False, **settings).tables("train")
    assert np.unique(table.widths).tolist() == [64]
    assert set(np.diff(table.offsets).tolist()) == {2, 3}
    shares = table.class_counts() / table.num_objects
    np.testing.assert_allclose(shares[[table.class_names.index("disc")]], 0.4, atol=0.03)
    finish = table.attributes["finish"]
    counts = dict(zip(finish.names, np.bincount(finish.ids) / table.num_objects, strict=True))
    assert counts["hollow"] == pytest.approx(0.5, abs=0.03)
    squares = table.labels == table.class_names.index("square")
    left, right = (table.keypoint_names.index(name) for name in ("top_left", "top_right"))
    tilt = table.keypoints[squares, right, 1] - table.keypoints[squares, left, 1]
    assert np.abs(tilt).max() < 2  # hardly rotated
    defaults = ShapesSource(cache_dir=str(tmp_path), progress=False, num_images={"train": 60})
    assert np.unique(defaults.tables("train")[0].widths).tolist() == [96]


def test_the_embedded_set_is_drawn_once(tmp_path):
    small = {"num_images": {"train": 30, "val": 20, "test": 20}, "image_size": 32, "progress": False}
    source = ShapesSource(cache_dir=str(tmp_path), objects_per_image=(1, 2), class_shares=(0.5, 0.3, 0.2), **small)
    source.prepare()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    source.prepare()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == files
    assert source.tables("train")[0].num_images == 30
    assert source.tables("train")[0].class_names == ("disc", "square", "star")


@pytest.fixture(scope="module")
def opened_files():
    """Every file that is opened while the list is there (an audit hook cannot be removed)."""
    opened: list[str] = []
    sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
    return opened


def test_warm_weights_open_no_annotation_and_no_image(shared_data, tmp_path, opened_files):
    source = VocSource(root=str(shared_data / "bccd" / "BCCD"), cache_dir=str(tmp_path), progress=False)

    def weights():
        (table,) = source.tables("train")
        return image_weights(table, class_weights(table.class_counts()))

    opened_files.clear()
    cold = weights()
    assert sum(name.endswith(".xml") for name in opened_files) >= 205
    opened_files.clear()
    source = replace(source)  # holds no tables
    warm = weights()
    assert [name for name in opened_files if name.lower().endswith((".xml", ".jpg"))] == []
    assert opened_files  # the hook does see the cache file
    assert (cold == warm).all()


@pytest.mark.parametrize("stage", ["train", "val"])
def test_an_annotation_is_parsed_once_cold_and_never_warm(root, opened_files, stage):
    def opened_xml():
        return sorted(Path(name).stem for name in opened_files if name.endswith(".xml"))

    source = voc(root, val=["val", "val2"], predict="train", num_workers=0)
    opened_files.clear()
    source.prepare()
    assert opened_xml() == ["0", "1", "2", "3"]
    opened_files.clear()
    (table, *_) = source.tables(stage)
    assert table.class_names == ("ant", "zebra")
    assert opened_xml() == []
    without = replace(source, cache_dir=str(root.parent / "other"))
    opened_files.clear()
    without.tables(stage)
    assert opened_xml() == ["0", "1", "2", "3"]


def test_a_missing_split_is_told_with_its_stage(root):
    remedy = "give one of the existing splits: test, train, val, val2, or pass test=None"
    with pytest.raises(AnnotationError, match=f"test='exam' does not exist; {remedy}"):
        voc(root, test="exam").tables("train")


def test_the_embedded_set_needs_no_test_split(tmp_path):
    small = {"class_shares": (0.5, 0.3, 0.2), "image_size": 32, "progress": False}
    source = ShapesSource(num_images={"train": 30, "val": 20}, cache_dir=str(tmp_path), **small)
    source.prepare()
    assert [len(source.tables(stage)) for stage in ("train", "val", "test", "predict")] == [1, 1, 0, 0]
    with pytest.raises(ValueError, match=r"names \['trian'\]"):
        ShapesSource(num_images={"trian": 30})
