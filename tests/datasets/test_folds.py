"""Folds and split files of a source: each image validates once, and a file that does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lit_loader.annotations.split_file import SplitFile
from lit_loader.datasets import AutoSource, FormatSource
from lit_loader.errors import AnnotationError, SettingError
from tests.support.face_lists import OPTIONS, write_faces

STAGES = ("train", "val", "test")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds") / "faces"
    write_faces(folder, "train.txt", 40, rare_every=4)
    write_faces(folder, "val.txt", 10, start=40, rare_every=4)
    write_faces(folder, "test.txt", 4, start=60, folder="exam")
    return folder


def source(root, **arguments):
    settings = {"format": "keypoints_txt", "root": str(root), "train": "train.txt", "options": OPTIONS}
    settings |= {"cache_dir": str(root.parent / "cache"), "progress": False}
    return FormatSource(**settings | arguments)


def paths(source, stage):
    return [path for table in source.tables(stage) for path in table.image_paths]


def write_split(path, images, *, parts=("train", "val"), is_folds=False):
    SplitFile(parts=parts, is_folds=is_folds, part_by_image=images).write(path, {})
    return str(path)


def test_every_image_of_train_and_val_validates_in_one_fold(root):
    faces = [source(root, val="val.txt", test="test.txt", folds=5, fold=fold) for fold in range(5)]
    pool = sorted(paths(source(root), "train") + paths(source(root, train="val.txt"), "train"))
    assert sorted(path for fold in faces for path in paths(fold, "val")) == pool
    for fold in faces:
        assert sorted(paths(fold, "train") + paths(fold, "val")) == pool
        assert len(paths(fold, "val")) == 10
        train, val = (fold.tables(stage)[0] for stage in ("train", "val"))
        assert np.abs(train.class_counts() / 40 - val.class_counts() / 10).max() <= 0.15
        assert paths(fold, "test") == paths(source(root, test="test.txt"), "test")


def test_folds_have_whole_groups(root):
    for fold in range(3):
        faces = source(root, folds=3, fold=fold, group_pattern=r"(person\d+)_")
        persons = [{path.split("_")[0] for path in paths(faces, stage)} for stage in ("train", "val")]
        assert not persons[0] & persons[1]


def test_fold_without_a_test_set_tests_on_the_validation_fold(root):
    for faces in (source(root, folds=4, fold=1), source(root, val="val.txt", test="val.txt", folds=4, fold=1)):
        assert paths(faces, "test") == paths(faces, "predict") == paths(faces, "val")


def test_folds_of_a_found_layout_hold_nothing_out(tmp_path):
    for name in ("cat", "dog"):
        write_faces(tmp_path / "set" / name, "list.txt", 10, folder=".")
        (tmp_path / "set" / name / "list.txt").unlink()
    source = AutoSource(tmp_path / "set", folds=2, fold=0, cache_dir=str(tmp_path / "cache"), progress=False)
    assert [len(paths(source, stage)) for stage in STAGES] == [10, 10, 10]


def test_folds_with_too_few_groups_are_refused(root):
    with pytest.raises(AnnotationError, match=r"1 groups of '\(images\)/' are too few for 2 folds"):
        source(root, folds=2, fold=0, group_pattern="(images)/").tables("train")
    with pytest.raises(AnnotationError, match="40 images are too few for 1000 folds"):
        source(root, folds=1000, fold=0).tables("train")


def test_test_images_never_become_training_images(root):
    lines = (root / "val.txt").read_text().splitlines(keepends=True)
    (root / "some.txt").write_text("".join(lines[:5]))
    (root / "mixed.txt").write_text("".join(lines[:5]) + (root / "test.txt").read_text())
    (root / "renamed.txt").write_text("".join(lines).replace(" ", ","))
    other_options = {"test": {"separator": ","}}
    for arguments in ({"test": "some.txt"}, {"test": "renamed.txt", "stage_options": other_options}):
        faces = source(root, val="val.txt", folds=5, fold=0, **arguments)
        assert paths(faces, "test") == paths(faces, "val")
    with pytest.raises(AnnotationError, match=r"4 images are in train and in test after the split.*test=None"):
        source(root, val="val.txt", test="mixed.txt", folds=5, fold=0).tables("train")


def test_prediction_on_a_split_set_is_on_the_validation_fold(root):
    faces = source(root, val="val.txt", predict="val.txt", folds=5, fold=0)
    assert paths(faces, "predict") == paths(faces, "val")
    faces = source(root, val="val.txt", predict="test.txt", folds=5, fold=0)
    assert paths(faces, "predict") == paths(source(root, test="test.txt"), "test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 5}, r"fold=None is not set, with folds=5"),
        ({"fold": 0}, r"fold=0 needs the number of folds"),
        ({"folds": 5, "fold": 5}, r"fold=5 must be one of the folds 0 to 4"),
        ({"folds": 5, "fold": -1}, r"fold=-1 must be one of"),
        ({"folds": 1, "fold": 0}, r"folds=1 must be a whole number from 2 to 1000"),
        ({"folds": 10**6, "fold": 0}, r"folds=1000000 must be a whole number from 2 to 1000"),
        ({"folds": 2.5, "fold": 0}, r"folds=2.5 must be a whole number"),
        ({"folds": 5, "fold": 0.5}, r"fold=0.5 must be one of the folds 0 to 4"),
        ({"folds": 5, "fold": 0, "split_file": "a.json"}, r"folds=5 contradicts split_file"),
        ({"folds": 5, "fold": 0, "val_fraction": 0.1}, r"val_fraction=0.1 contradicts split_file and folds"),
        ({"folds": 5, "fold": 0, "train": None, "val": "val.txt"}, r"train=None leaves no images"),
    ],
)
def test_contradicting_settings_are_refused(root, arguments, message):
    with pytest.raises(SettingError, match=message):
        source(root, **arguments)


def test_split_file_divides_the_sets_that_it_names(root, tmp_path):
    images = paths(source(root), "train") + paths(source(root, train="val.txt"), "train")
    file = write_split(tmp_path / "split.json", {image: int(i % 5 == 0) for i, image in enumerate(images)})
    faces = source(root, val="val.txt", test="test.txt", split_file=file)
    assert sorted(paths(faces, "val")) == sorted(images[::5])
    assert sorted(paths(faces, "train")) == sorted(set(images) - set(images[::5]))
    assert [path.split("/")[0] for path in paths(faces, "test")] == ["exam"] * 4
    # The images of a set that the file does not name stay in their stage.
    of_train = write_split(tmp_path / "train.json", dict.fromkeys(paths(source(root), "train"), 0), parts=("train",))
    assert len(paths(source(root, val="val.txt", split_file=of_train), "val")) == 10


def test_file_of_folds_gives_the_fold(root, tmp_path):
    images = paths(source(root), "train")
    folds = {image: i % 3 for i, image in enumerate(images)}
    file = write_split(tmp_path / "folds.json", folds, parts=("0", "1", "2"), is_folds=True)
    assert paths(source(root, split_file=file, fold=2), "val") == images[2::3]
    with pytest.raises(SettingError, match=r"fold=None is not set, and .* has 3 folds"):
        source(root, split_file=file).tables("train")
    with pytest.raises(SettingError, match="fold=3 must be one of the folds 0 to 2"):
        source(root, split_file=file, fold=3).tables("train")


def test_changed_split_file_changes_the_tables(root, tmp_path):
    images = paths(source(root), "train")
    file = write_split(tmp_path / "split.json", {image: int(i % 5 == 0) for i, image in enumerate(images)})
    faces = source(root, split_file=file)
    faces.prepare()
    table = faces.tables("val")[0]
    key = faces.fingerprint()
    faces.prepare()
    assert faces.tables("val")[0] is table
    write_split(tmp_path / "split.json", {image: int(i % 5 == 1) for i, image in enumerate(images)})
    faces.prepare()
    assert faces.fingerprint() != key
    assert paths(faces, "val") == images[1::5]


def test_split_file_of_other_images_is_refused_by_name(root, tmp_path):
    images = dict.fromkeys(paths(source(root), "train"), 0)
    first = next(iter(images))
    del images[first]
    file = write_split(tmp_path / "split.json", {**images, "images/gone.png": 1})
    message = f"1 images of the data set are not in it, such as '{first}'; 1 of its images do not exist, .*gone.png"
    with pytest.raises(AnnotationError, match=message):
        source(root, split_file=file).tables("train")
    file = write_split(tmp_path / "other.json", {"other/a.png": 0})
    with pytest.raises(AnnotationError, match=r"names none of the training images, but 'other/a\.png'"):
        source(root, split_file=file).tables("train")


def test_split_file_with_other_splits_is_refused(root, tmp_path):
    images = paths(source(root), "train")
    file = write_split(tmp_path / "a.json", dict.fromkeys(images, 0), parts=("train", "val"))
    with pytest.raises(AnnotationError, match="has a split 'val', and the set of val is another one; pass val=None"):
        source(root, val="val.txt", split_file=file).tables("train")
    with pytest.raises(SettingError, match="fold=0 needs a file of folds"):
        source(root, split_file=file, fold=0).tables("train")
    with pytest.raises(AnnotationError, match="no image is in 'val'"):
        source(root, split_file=file).tables("train")
    file = write_split(tmp_path / "fold.json", dict.fromkeys(images, 0), parts=("0",), is_folds=True)
    with pytest.raises(AnnotationError, match="a single fold leaves no training images"):
        source(root, split_file=file, fold=0).tables("train")
    file = write_split(tmp_path / "folds.json", dict.fromkeys(images, 0), parts=("0", "1"), is_folds=True)
    with pytest.raises(AnnotationError, match="no image is in '1'"):
        source(root, split_file=file, fold=0).tables("train")
    file = write_split(tmp_path / "b.json", dict.fromkeys(images, 0), parts=("train", "dev"))
    with pytest.raises(AnnotationError, match="its splits are 'train', 'dev'; expected train"):
        source(root, split_file=file).tables("train")


VALID = {"lit_loader_split": 1, "folds": False, "parts": ["train", "val"], "images": [["images/person0_0.png", 0]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lit_loader_split": 2}, "expected a split file with 'lit_loader_split': 1, got 2"),
        ({"lit_loader_split": True}, "got True"),
        ({"folds": "no"}, "'folds' must be true or false"),
        ({"folds": [True]}, r"'folds' must not be a list, got \[True\]"),
        ({"lit_loader_split": [1]}, "'lit_loader_split' must not be a list"),
        ({"parts": "ab"}, "'parts' must be a list, got 'ab'"),
        ({"parts": ["train", "train"]}, "'parts' must be different names"),
        ({"parts": ["train", 3]}, "'parts' must be different names"),
        ({"parts": []}, "'parts' must be different names"),
        ({"parts": [str(i) for i in range(1001)]}, "more than 1000 parts"),
        ({"images": [["a.png", 2]]}, "an image is in part 2, but there are only 2 parts"),
        ({"images": [["a.png", -1]]}, r"images\[0\] is in part -1"),
        ({"images": [["a.png", 10**12]]}, r"is in part 1000000000000"),
        ({"images": [["a.png", True]]}, r"images\[0\] must be \[path, position"),
        ({"images": [["a.png", 0], ["a.png", 1]]}, r"images\[1\] repeats the image 'a.png'"),
        ({"images": [{"a.png": 0}]}, r"must be \[path, position of its part\], got \{'a.png': 0\}"),
        ({"images": "a.png"}, "'images' must be a list, got 'a.png'"),
        ({"images": [["../a.png", 0]]}, "contains '..'"),
        ({"images": [["/etc/passwd", 0]]}, "is absolute"),
        ({"images": [[f"{i}.png", 0] for i in range(1200)]}, "names more than the 1080 images"),
        ({"more": [[[]] * 9] * 9}, "names none of the training images"),
    ],
)
def test_hostile_split_file_is_refused(root, tmp_path, change, message):
    file = tmp_path / "split.json"
    file.write_text(json.dumps({**VALID, "images": [["x.png", 0]], **change}))
    with pytest.raises(AnnotationError, match=message):
        source(root, split_file=str(file)).tables("train")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"images": [["a", 0]], "images": []}', "\x80PNG", "[" * 99])
def test_file_that_is_no_split_file_is_refused(root, tmp_path, text):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(AnnotationError, match=r"split\.json"):
        source(root, split_file=str(tmp_path / "split.json")).tables("train")
    with pytest.raises(AnnotationError, match=r"none\.json"):
        source(root, split_file=str(tmp_path / "none.json")).tables("train")


def test_split_file_is_the_same_for_any_order(tmp_path):
    images = {f"é/{i}.png": i % 2 for i in range(9)}
    files = [
        SplitFile(parts=("train", "val"), is_folds=False, part_by_image=dict(items))
        for items in (images.items(), reversed(images.items()))
    ]
    for number, file in enumerate(files):
        file.write(tmp_path / f"{number}.json", {"seed": 0})
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    assert files[0].key == files[1].key == SplitFile.read(tmp_path / "0.json", max_images=9).key
    assert replace(files[0], part_by_image={**images, "é/0.png": 1}).key != files[0].key
    # A fold is selected by its position, so the same names in another order are other folds.
    renamed = replace(files[0], parts=("val", "train"), part_by_image={image: 1 - images[image] for image in images})
    assert renamed.key != files[0].key
    with pytest.raises(ValueError, match=r"the image '\\udcff\.png' is not Unicode"):
        replace(files[0], part_by_image={"\udcff.png": 0}).write(tmp_path / "x.json", {})
    assert not (tmp_path / "x.json").exists()
