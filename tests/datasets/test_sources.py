"""Sources: the same classes in every split, prepared once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lit_loader.annotations import class_weights, image_weights
from lit_loader.datasets import ShapesSource, VocSource
from lit_loader.errors import AnnotationError
from lit_loader.formats import write_voc_xml


@pytest.fixture
def root(tmp_path):
    """Two splits that lack each other's class."""
    folder = tmp_path / "voc"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, (split, label) in enumerate(
        [("train", "zebra"), ("val", "ant"), ("test", "zebra"), ("val2", "ant")]
    ):
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
    with pytest.raises(TypeError, match="nonsense"):
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


def test_the_embedded_set_is_drawn_once(tmp_path):
    small = {"num_images": {"train": 30, "val": 20, "test": 20}, "image_size": 32, "progress": False}
    source = ShapesSource(
        cache_dir=str(tmp_path), objects_per_image=(1, 2), class_shares=(0.5, 0.3, 0.2), **small
    )
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
    found, given = voc(root), voc(root, class_names=["ant", "zebra"])
    for stage in ("train", "val"):
        (a,), (b,) = found.tables(stage), given.tables(stage)
        assert a.class_names == b.class_names
        assert a.labels.tolist() == b.labels.tolist()


def test_a_missing_split_is_told_with_its_stage(root):
    with pytest.raises(AnnotationError, match=r"test='exam'; give test=None .* test, train, val, val2"):
        voc(root, test="exam").tables("train")


def test_sets_without_any_object_need_class_names(root):
    for path in (root / "Annotations").iterdir():
        path.write_text("<annotation><size><width>20</width><height>20</height></size></annotation>")
    with pytest.raises(AnnotationError, match=r"no object in any of the splits .* give class_names"):
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
