"""Locations of the files of a YOLO set, and its data file."""

from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import write_image

ROW = "1 0.5 0.5 0.2 0.4\n"
NAMES = "names: [cat, dog]\n"


def read(root, name="train", **options):
    return read_annotations("yolo", root, name, use_cache=False, **options)


def make(root, **files):
    """Write files by path: an image for the name of an image, a text file for any other."""
    for path, text in files.items():
        if path.endswith((".jpg", ".png")):
            write_image(root / path)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return root


def pair(images, labels, stem="a"):
    return {f"{images}/{stem}.jpg": "", f"{labels}/{stem}.txt": ROW}


ULTRALYTICS = pair("images/train", "labels/train") | pair("images/val", "labels/val", "b")
ROBOFLOW = pair("train/images", "train/labels") | pair("valid/images", "valid/labels", "b")
COCO8 = pair("coco8/images/train", "coco8/labels/train") | {"coco8/list.txt": "./images/train/a.jpg\n"}
BESIDE = pair("img", "img")


AB = ["images/train/a.jpg", "images/val/b.jpg"]
DEEP = pair("a/images/b/images/c", "a/images/b/labels/c")
CLASSES = "cat\ndog\n"


@pytest.mark.parametrize(
    ("files", "data", "name", "paths", "split"),
    [
        (ULTRALYTICS, "path: ../x\ntrain: images/train\nval: images/val\n", "val", AB[1:], "val"),
        (ULTRALYTICS, "train: [images/train, images/val]\n", "train", AB, "train"),
        (ULTRALYTICS, "train: images\nval:\n", "val", AB[1:], "val"),
        (ULTRALYTICS, "fold3: images/val\n", "fold3", AB[1:], "fold3"),
        (ROBOFLOW, "train: ../train/images\nval: ../valid/images\nnc: 2\n", "val", ["valid/images/b.jpg"], "val"),
        (ROBOFLOW, "train: ../train/images\nval: ../valid/images\n", "valid", ["valid/images/b.jpg"], "valid"),
        (COCO8, "path: coco8\ntrain: images/train\n", "train", ["coco8/images/train/a.jpg"], "train"),
        (COCO8, "path: C:\\\\data\\coco8\ntrain: list.txt\n", "train", ["coco8/images/train/a.jpg"], "train"),
        (DEEP, "test: a\n", "test", ["a/images/b/images/c/a.jpg"], "test"),
        (pair("images/train", "images/train"), "", "train", AB[:1], "train"),
        (ULTRALYTICS | {"classes.txt": CLASSES}, None, "train", AB[:1], "train"),
        (ULTRALYTICS | {"classes.txt": f"{CLASSES}\n\n"}, None, ".", AB, None),
        (ULTRALYTICS | {"classes.txt": CLASSES.strip()}, None, "images/val", AB[1:], None),
        (ROBOFLOW | {"train/labels/_darknet.labels": CLASSES}, None, "train", ["train/images/a.jpg"], "train"),
        (BESIDE | {"img/classes.txt": CLASSES}, None, "img", ["img/a.jpg"], None),
        (BESIDE | {"obj.names": CLASSES}, None, ".", ["img/a.jpg"], None),
        (BESIDE | {"obj.names": CLASSES, "train.txt": "img/a.jpg\n"}, None, "train", ["img/a.jpg"], "train"),
        (BESIDE | {"obj.names": CLASSES, "b/c.txt": "img/a.jpg"}, None, "b/c.txt", ["img/a.jpg"], None),
    ],
)
def test_usual_layouts_are_found(tmp_path, files, data, name, paths, split):
    table = read(make(tmp_path, **files, **({} if data is None else {"data.yaml": data + NAMES})), name)
    assert (list(table.image_paths), table.split) == (paths, split)
    assert (table.class_names, table.num_objects) == (("cat", "dog"), len(paths))


def test_darknets_paths_may_start_with_their_own_folder(tmp_path):
    files = pair("obj_train", "obj_train") | {
        "obj.data": "classes = 2\ntrain = data/train.txt\nvalid = data/train.txt\nnames = data/obj.names # x\nbackup=b",
        "obj.names": "cat\ndog",
        "train.txt": "data/obj_train/a.jpg\n\ndata/obj_train/gone.jpg\n",
    }
    make(tmp_path / "data", **files)
    for root, options in ((tmp_path / "data", {}), (tmp_path, {"data_file": "data/obj.data"})):
        table = read(root, "val", policy={"missing_image": "drop"}, **options)
        assert [path.removeprefix("data/") for path in table.image_paths] == ["obj_train/a.jpg"]
        assert (table.class_names, table.num_objects) == (("cat", "dog"), 1)
        assert table.report.count("backup of the data file", "not read") == 1
        assert "obj.data: key 'backup' is not read [not read]" in str(table.report)
        assert [problem.line for problem in table.report if problem.kind == "missing_image"] == [3]


def test_paths_of_lists_are_relative_to_the_list_or_the_root(tmp_path):
    files = pair("sub/images", "sub/labels") | {"data.yaml": f"train: sub/list.txt\n{NAMES}"}
    for text in ("./images/a.jpg\n", "sub/images/a.jpg\n", ".\\images\\a.jpg\r\n"):
        table = read(make(tmp_path, **files, **{"sub/list.txt": text}))
        assert (list(table.image_paths), table.num_objects) == (["sub/images/a.jpg"], 1)


def test_other_names_of_folders_and_files_are_options(tmp_path):
    files = pair("x/Images", "x/Annotations") | {
        "my.yaml": "names: [cat, dog]\ntrain: x/Images\n",
        "my.names": "a\nb\n",
    }
    make(tmp_path, **files)
    dirs = {"image_dir": "Images", "label_dir": "Annotations"}
    assert read(tmp_path, data_file="my.yaml", **dirs).num_objects == 1
    assert read(tmp_path, "x", class_file="my.names", **dirs).class_names == ("a", "b")
    assert read(tmp_path, "x", class_names=["c", "d"], **dirs).class_names == ("c", "d")


def test_files_without_image_are_counted_by_extension(tmp_path):
    more = {
        "labels/train/README.txt": "x",
        "labels/train/c.txt": ROW,
        "labels/train/x.cache": "",
        "images/train/v.mp4": "",
    }
    table = read(make(tmp_path, **ULTRALYTICS, **more, **{"data.yaml": f"path: /x\ndownload: y\n{NAMES}"}))
    assert table.report.counts == {
        ("files *.txt", "not read"): 2,
        ("files *.mp4", "not read"): 1,
        ("path of the data file", "not read"): 1,
        ("download of the data file", "not read"): 1,
    }
    assert {problem.file for problem in table.report} >= {"labels/train/c.txt", "images/train/v.mp4"}


def test_image_listed_twice_is_read_once(tmp_path):
    root = make(tmp_path, **BESIDE, **{"obj.names": "cat\ndog\n", "train.txt": "img/a.jpg\n./img/a.jpg\n"})
    table = read(root)
    assert (table.num_images, table.num_objects, table.report.count("duplicate_id", "drop")) == (1, 1, 1)
    with pytest.raises(AnnotationError, match=r"train\.txt:2: image 'img/a\.jpg' is listed more than once"):
        read(root, policy={"duplicate_id": "raise"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: [cat, dog, cat]\n", r"data\.yaml: names of classes must be different"),
        ("names: {0: cat, 2: dog}\n", "with ids from 0 on"),
        ("names: [cat, [dog]]\n", "names of classes must be different"),
        ("nc: 3\nnames: [cat, dog]\n", "it has 2 names of classes, but their number as '3'"),
        (f"nc: {'9' * 10_000}\nnames: [cat, dog]\n", r"their number as '9{,600}\.\.\.'?"),
        ("train: nowhere\nnames: [cat]\n", "train names 'nowhere', which is neither a folder nor a file here"),
        ("train: {a: b}\nnames: [cat]\n", "train names .*, which is neither a folder"),
        (f"{NAMES}kpt_shape: [2, 4]\n", r"kpt_shape=\[2, 4\] with 2 names; \[points, 2 or 3\] expected"),
        (f"{NAMES}kpt_shape: [999999999, 3]\n", r"kpt_shape=\[999999999, 3\]"),
        (f"{NAMES}kpt_shape: 17\n", "its points contradict each other"),
        (f"{NAMES}kpt_shape: [2, 3]\nflip_idx: [1, 1]\n", r"flip_idx=\[1, 1\] does not exchange pairs of 2 points"),
        (f"{NAMES}kpt_shape: [3, 3]\nflip_idx: [1, 2, 0]\n", "does not exchange pairs"),
        (f"{NAMES}kpt_shape: [2, 3]\nkpt_names: [a]\n", "with 1 names"),
        (f"{NAMES}kpt_shape: [2, 3]\nkpt_names: ab\n", "contradict each other: expected names as"),
        (f"{NAMES}kpt_shape: [1, 3]\nkpt_names: {{0: [a], 1: [b]}}\n", "points of other names; pass `schema`"),
        ("names: &a [x]\nother: [*a, *a]\n", r"data\.yaml:2: holds an alias"),
        ("[" * 100, "more than 8 nested lists"),
        ("[" * 100_000, "more than 8 nested lists|maximum nesting depth"),  # the latter: PyYAML from 6.0.4
        ("- a\n", "holds no keys"),
        ("a: b: c\n", "is not valid YAML"),
        ("names: [x]\nnames: [y]\n", "has a repeated key"),
        ("names:\n  0: x\n  0: y\n", "has a repeated key"),
        ("names: !!python/object/apply:os.system [x]\n", "class 1 has no name"),
        ("x" * 2**20 + "x", "larger than 1048576 bytes"),
    ],
)  # fmt: skip
def test_contradicting_data_files_are_refused_by_name(tmp_path, text, words):
    with pytest.raises(AnnotationError, match=words):
        read(make(tmp_path, **pair("images/train", "labels/train"), **{"data.yaml": text}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nix", "found no split 'nix': .*'images/nix'.*, and the data file has the splits train, val"),
        ("empty", "found no image in images/empty"),
        ("names", "found no split 'names'"),
    ],
)
def test_name_without_images_is_refused_with_the_existing_splits(tmp_path, name, words):
    make(tmp_path, **ULTRALYTICS, **{"images/empty/x.bin": "", "data.yaml": f"train: images\nval: images/val\n{NAMES}"})
    with pytest.raises(AnnotationError, match=words):
        read(tmp_path, name)


def test_class_without_name_is_refused_with_the_option_to_set(tmp_path):
    with pytest.raises(AnnotationError, match=r"a\.txt:1: class 1 has no name: class_names has 0.*pass class_names"):
        read(make(tmp_path, **ULTRALYTICS))


def test_a_missing_split_folder_is_named(tmp_path):
    files = {
        **pair("train/images", "train/labels"),
        "data.yaml": f"train: ../train/images\nval: ../valid/images\n{NAMES}",
    }
    with pytest.raises(AnnotationError, match=r"data\.yaml: val names '\.\./valid/images', which is"):
        read(make(tmp_path, **files), "val")


@pytest.mark.parametrize("path", ["../../x", "/etc", "images/../../x", "../x/../.."])
def test_no_path_of_a_file_leads_out_of_the_root(tmp_path, path):
    files = pair("images/train", "labels/train")
    with pytest.raises(UnsafePathError, match=r"data\.yaml"):
        read(make(tmp_path / "a", **files, **{"data.yaml": f"train: {path}\n{NAMES}"}))
    with pytest.raises(UnsafePathError, match=r"train\.txt:2"):
        read(make(tmp_path / "b", **BESIDE, **{"train.txt": f"img/a.jpg\n{path}/a.jpg\n"}))
    with pytest.raises(UnsafePathError):
        read(tmp_path / "b", "../a")
