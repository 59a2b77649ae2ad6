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


@pytest.fixture
def root(tmp_path):
    """Two splits that lack each other's class."""
    folder = tmp_path / "voc"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, (split, label) in enumerate([("train", "zebra"), ("val", "ant"), ("test", "zebra"), ("val2", "ant")]):
        (folder / "JPEGImages" / f"{number}.jpg").touch()
        write_voc_xml(
            folder / "Annotations" / f"{number}.xml",
            filename=f"{number}.jpg",
            width=20,
            height=20,
            names=[label],
            boxes=[(2, 2, 9, 9)],
        )
        (folder / "ImageSets/Main" / f"{split}.txt").write_text(f"{number}\n")
    return folder


def voc(root, **arguments):
    return VocSource(root=str(root), cache_dir=str(root.parent / "cache"), progress=False, **arguments)


def test_all_splits_number_the_same_classes(root):
    source = voc(root)
    tables = [source.tables(stage)[0] for stage in ("train", "val", "test", "predict")]
    assert {table.class_names for table in tables} == {("ant", "zebra")}
    assert [table.labels.tolist() for table in tables] == [[1], [0], [1], [1]]


def test_classes_may_be_given(root):
    source = voc(root, class_names=["zebra", "ant", "bee"])
    assert source.tables("train")[0].labels.tolist() == [0]
    with pytest.raises(AnnotationError, match="zebra"):
        voc(root, class_names=["ant"]).tables("train")


def test_a_stage_has_one_several_or_no_tables(root):
    source = voc(root, val=["val", "val2"], test=None, predict="train")
    assert [len(source.tables(stage)) for stage in ("train", "val", "test", "predict")] == [1, 2, 0, 1]


def test_settings_reach_the_reader(root):
    table = voc(root, one_based=True).tables("train")[0]
    assert table.boxes.tolist() == [[1, 1, 8, 8]]
    with pytest.raises(ValueError, match="the policy has no 'nonsense'"):
        voc(root, policy={"nonsense": "drop"}).tables("train")
    (root / "JPEGImages" / "0.jpg").unlink()
    with pytest.raises(AnnotationError, match="0"):
        voc(root).tables("train")
    assert voc(root, policy={"missing_image": "drop"}).tables("train")[0].num_images == 0
    (root / "JPEGImages" / "0.jpg").touch()
    (root / "JPEGImages").rename(root / "elsewhere")
    (root / "Annotations").rename(root / "xml")
    moved = voc(root, image_dir="elsewhere", annotation_dir="xml").tables("val")[0]
    assert moved.image_path(0).name == "1.jpg"


POINTS = {"names": ["left", "right"], "flip_pairs": [["left", "right"]]}


@pytest.fixture
def faces(tmp_path):
    """Two splits whose objects have points in another order and another attribute value each."""
    folder = tmp_path / "faces"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, (split, pose) in enumerate([("train", "up"), ("val", "down")]):
        (folder / "JPEGImages" / f"{number}.jpg").touch()
        write_voc_xml(
            folder / "Annotations" / f"{number}.xml",
            filename=f"{number}.jpg",
            width=20,
            height=20,
            names=["face"],
            boxes=[(2, 2, 9, 9)],
            keypoints=[[(3, 4), (7, 4)]],
            schema=POINTS,
            attributes={"pose": [pose]},
        )
        (folder / "ImageSets/Main" / f"{split}.txt").write_text(f"{number}\n")
    return folder


@pytest.mark.parametrize("class_names", [None, ["face"]])
def test_all_splits_number_the_same_attribute_values(faces, class_names):
    source = voc(faces, test=None, class_names=class_names)
    train, val = (source.tables(stage)[0].attributes["pose"] for stage in ("train", "val"))
    assert train.names == val.names == ("down", "up")
    assert (train.ids.tolist(), val.ids.tolist()) == ([1], [0])


def test_a_schema_says_what_the_points_are(faces):
    assert voc(faces, test=None).tables("train")[0].keypoint_names == ("left", "right")
    turned = {"names": ["right", "left"], "flip_pairs": [["left", "right"]]}
    table = voc(faces, test=None, schema=turned).tables("train")[0]
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


def test_renumbered_tables_are_those_read_with_the_names(root):
    default_source = voc(root)
    named_source = voc(root, class_names=["ant", "zebra"])
    for stage in ("train", "val"):
        (a,) = default_source.tables(stage)
        (b,) = named_source.tables(stage)
        assert a.class_names == b.class_names
        assert a.labels.tolist() == b.labels.tolist()


def test_a_missing_split_is_told_with_its_stage(root):
    with pytest.raises(
        AnnotationError,
        match=r"test='exam' does not exist; give one of the existing splits: test, train, val, val2, or pass test=None",
    ):
        voc(root, test="exam").tables("train")


def test_sets_without_any_object_need_class_names(root):
    for path in (root / "Annotations").iterdir():
        path.write_text("<annotation><size><width>20</width><height>20</height></size></annotation>")
    with pytest.raises(AnnotationError, match=r"no object in any of the lists.* pass class_names"):
        voc(root).tables("train")
    assert voc(root, class_names=["ant"]).tables("train")[0].num_images == 1


def test_the_embedded_set_needs_no_test_split(tmp_path):
    source = ShapesSource(
        num_images={"train": 30, "val": 20},
        class_shares=(0.5, 0.3, 0.2),
        image_size=32,
        cache_dir=str(tmp_path),
        progress=False,
    )
    source.prepare()
    assert [len(source.tables(stage)) for stage in ("train", "val", "test", "predict")] == [1, 1, 0, 0]
    with pytest.raises(ValueError, match=r"names \['trian'\]"):
        ShapesSource(num_images={"trian": 30})
