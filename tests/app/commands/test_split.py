"""``lit-loader split`` divides sets by class and group, and training reads the result."""

from __future__ import annotations

import json
import random
import shlex
from functools import partial

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.split_file import SplitFile
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.datasets import draw_shapes
from lit_loader.errors import DataChangedError
from tests.support.documents import PAGES, commands
from tests.support.drawn_set import draw_set
from tests.support.face_lists import OPTIONS, READ, write_faces
from tests.support.made_sets import MAKERS, WITHOUT_POINTS

PERSONS = ["--group-pattern", r"(person\d+)_"]
QUIET = {"use_cache": False, "progress": False}
INLINE = ["workers=inline", "dataset.progress=false"]

# The command prints its warnings, which are errors in other tests.
pytestmark = pytest.mark.filterwarnings(
    "default:.* names that differ only in a trailing number:UserWarning",
    "default:.* occur in fewer:UserWarning",
    "ignore:The '.*_dataloader' does not have many workers",
)


@pytest.fixture
def split(command, faces):
    """Split lists of faces; the words begin with the names of the lists."""

    def run(*words, code=0):
        return command("split", "keypoints_txt", "faces", *words, *READ, code=code)

    return run


def parts_of(path):
    file = SplitFile.read(path, max_images=1000)
    return {
        part: {image for image, position in file.part_by_image.items() if position == number}
        for number, part in enumerate(file.parts)
    }


def command_words(out):
    (line,) = (line for line in out.splitlines() if line.startswith("  lit-loader train "))
    return shlex.split(line)[2:]


def images(datamodule, stage):
    return {path for table in datamodule.tables(stage) for path in table.image_paths}


def test_printed_command_trains_on_the_shares_of_the_split_file(split, tmp_path):
    out = split("train.txt", "val.txt", "--share", "train=0.7", "--share", "val=0.3", *PERSONS, "--out", "split.json")
    parts = parts_of(tmp_path / "split.json")
    persons = [{path.split("_")[0] for path in part} for part in parts.values()]
    assert [len(part) for part in parts.values()] == [18, 8]
    assert not persons[0] & persons[1]
    datamodule = build_datamodule(compose_config(overrides=[*command_words(out), *INLINE]))
    datamodule.prepare_data()
    assert {stage: images(datamodule, stage) for stage in ("train", "val", "test")} == {**parts, "test": parts["val"]}


def test_each_fold_of_the_config_validates_on_its_images(split, tmp_path):
    out = split("train.txt", "val.txt", "--folds", "3", *PERSONS)
    assert "all folds: the same with --multirun dataset.fold=0,1,2\n" in out
    split("train.txt", "val.txt", "--folds", "3", *PERSONS, "--out", "folds.json")
    parts = parts_of(tmp_path / "folds.json")
    assert len(set().union(*parts.values())) == sum(map(len, parts.values())) == 26
    for fold, part in parts.items():
        words = [f"dataset.fold={fold}", *INLINE]
        cfg = compose_config(overrides=[*command_words(out), *words])
        datamodule = build_datamodule(cfg)
        datamodule.prepare_data()
        datamodule.setup("fit")
        assert images(datamodule, "val") == part
        assert not images(datamodule, "train") & part
        assert sum(len(batch[0]) for batch in datamodule.val_dataloader()) == len(part)


def test_checkpoint_of_another_fold_is_other_data(split):
    words = command_words(split("train.txt", "--folds", "2", *PERSONS))
    states = []
    for fold in (0, 1):
        overrides = [*words, f"dataset.fold={fold}", "datamodule.strict_data=true", *INLINE]
        datamodule = build_datamodule(compose_config(overrides=overrides))
        datamodule.prepare_data()
        datamodule.setup("fit")
        datamodule.train_dataloader()
        states.append(datamodule.state_dict())
    datamodule.load_state_dict(states[1])
    with pytest.raises(DataChangedError, match="train: other image paths"):
        datamodule.load_state_dict(states[0])


def test_order_of_the_lists_does_not_change_the_split_file(split, faces, tmp_path):
    words = ["--folds", "4", *PERSONS, "--seed", "3"]
    split("train.txt", "val.txt", *words, "--out", "a.json")
    lines = (faces / "train.txt").read_text().splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    (faces / "train.txt").write_text("".join(lines))
    split("val.txt", "train.txt", *words, "--out", "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    split("val.txt", "train.txt", *words[:-1], "4", "--out", "c.json")
    assert parts_of(tmp_path / "c.json") != parts_of(tmp_path / "a.json")


def test_copies_stay_together(split, faces, tmp_path):
    copies = [faces / "images" / name for name in ("person0_1.png", "person4_9.png", "person7_15.png")]
    for path in copies[1:]:
        path.write_bytes(copies[0].read_bytes())
    out = split("train.txt", "--folds", "5", "--out", "folds.json")
    assert "3 images are byte-identical copies (1 groups)" in out
    names = {f"images/{path.name}" for path in copies}
    assert [len(names & part) for part in parts_of(tmp_path / "folds.json").values() if names & part] == [3]


def test_frames_stay_together_on_request_and_are_hinted_at(split, command, faces, tmp_path):
    write_faces(faces, "clips.txt", 24, folder="clips")
    (faces / "clips").rename(faces / "shots")
    lines = (faces / "clips.txt").read_text().replace("clips/", "shots/")
    for i in range(24):
        old = f"person{i // 2}_{i}.png"
        new = f"clip{'abcdef'[i // 4]}_{i:04}.png"
        (faces / "shots" / old).rename(faces / "shots" / new)
        lines = lines.replace(old, new)
    (faces / "clips.txt").write_text(lines)
    split("clips.txt", "--folds", "3")
    assert "24 images have names that differ only in a trailing number, such as the 4 of 'shots/clipa'" in command.err
    split("clips.txt", "--folds", "3", "--group-frames", "--out", "folds.json")
    assert "trailing number" not in command.err
    for part in parts_of(tmp_path / "folds.json").values():
        assert len({path.split("_")[0] for path in part}) == 2


def test_attribute_decides_shares_and_groups(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_faces(tmp_path / "set", "list.txt", 24)
    rows = [f"images/person{i // 2}_{i}.png 1 1 9 9 name{i % 6} pose{i % 4 // 3}" for i in range(24)]
    (tmp_path / "set/list.txt").write_text("\n".join(rows))
    read = ["keypoints_txt", "set", "list.txt", "--option", "columns=path box attribute:name attribute:pose"]
    words = ["--folds", "3", "--group-attribute", "name", "--by", "pose", "--out", "folds.json", "--json"]
    figures = json.loads(command("split", *read, *words))
    assert figures["all"]["classes"].keys() == {"pose0", "pose1"}
    names = [{int(path.split("_")[1][:-4]) % 6 for path in part} for part in parts_of("folds.json").values()]
    assert sorted(map(len, names)) == [2, 2, 2]
    assert sorted(name for part in names for name in part) == [0, 1, 2, 3, 4, 5]
    command("split", *read, "--folds", "3", "--by", "mood", code=2)
    assert "expected an attribute, one of ['name', 'pose']" in command.err


def test_json_has_the_shares_of_each_class_and_the_largest_deviation(split):
    figures = json.loads(split("train.txt", "--share", "train=0.5", "--share", "val=0.5", "--json"))
    assert figures["all"]["classes"]["angry"] == {"objects": 4, "percent": 20.0}
    assert [part["images"] for part in figures["parts"].values()] == [10, 10]
    assert figures["largest_deviation"] == {"part": "val", "class": "angry", "points": 0.0}
    assert figures["shares"] == {"train": 0.5, "val": 0.5}


def test_class_in_fewer_groups_than_parts_is_a_warning(split, command):
    out = split("train.txt", "--folds", "5")
    assert "lit-loader: warning: angry (4) occur in fewer images than there are parts (5)" in command.err
    assert "largest deviation: 20.00 percentage points (angry in " in out


def test_set_that_is_kept_is_not_split(split, command, tmp_path):
    out = split("train=train.txt", "test=val.txt", "--keep", "test", "--folds", "2", "--out", "folds.json")
    assert sum(map(len, parts_of(tmp_path / "folds.json").values())) == 20
    datamodule = build_datamodule(compose_config(overrides=[*command_words(out), *INLINE]))
    datamodule.prepare_data()
    assert len(images(datamodule, "test")) == 6
    split("train=all.txt", "test=val.txt", "--keep", "test", "--folds", "2", code=2)
    assert "6 images are in the images to split and in test" in command.err
    words = ["--keep", "test", "--folds", "2", "--group-pattern", r"(person)\d+"]
    split("train=train.txt", "test=val.txt", *words, code=2)
    assert "images to split and in test, such as 'person'; without --keep test, its images" in command.err


def test_lists_of_lines_have_the_objects_of_their_images(split, faces):
    text = (faces / "train.txt").read_text()
    # The last line has no end, and is a second object of the first image.
    (faces / "train.txt").write_text(f"# a heading\n{text}{text.splitlines()[0]}")
    shares = ["--share", "train=0.75", "--share", "val=0.25"]
    out = split("train.txt", *shares, "--lists", "new/{}.txt", "--option", "header=true")
    assert "written: new/train.txt, new/val.txt" in out
    read = partial(read_annotations, "keypoints_txt", faces, **OPTIONS, header=True, **QUIET)
    original = read("train.txt")
    parts = [read(f"new/{part}.txt") for part in ("train", "val")]
    assert sum(part.num_objects for part in parts) == original.num_objects == 21
    assert sorted(path for part in parts for path in part.image_paths) == sorted(original.image_paths)
    for part in parts:
        rows = [list(original.image_paths).index(path) for path in part.image_paths]
        assert np.array_equal(original.select(rows).keypoints, part.keypoints)


def test_image_in_two_files_is_in_one_list(split, faces):
    repeats = (faces / "train.txt").read_text().splitlines(keepends=True)[:10]
    (faces / "val.txt").write_text("".join([*(faces / "val.txt").read_text().splitlines(keepends=True), *repeats]))
    split("train.txt", "val.txt", "--share", "train=0.5", "--share", "val=0.5", "--lists", "new/{}.txt")
    texts = [(faces / f"new/{part}.txt").read_text() for part in ("train", "val")]
    parts = [[line.split()[0] for line in text.splitlines()] for text in texts]
    assert [len(part) for part in parts] == [13, 13]
    assert not set(parts[0]) & set(parts[1])


@pytest.mark.parametrize("format", ["retinaface", "widerface"])
def test_lists_have_whole_blocks_of_an_image(command, faces, format):
    paths = [f"images/person{i // 2}_{i}.png" for i in range(10)]
    first = "# {}\n" if format == "retinaface" else "{}\n1\n"
    face = "1 2 9 9\n" if format == "retinaface" else "1 2 9 9 0 0 0 0 0 0\n"
    # The first image has a second block at the end of the file, next to another image.
    (faces / "faces.txt").write_text("".join(f"{first.format(path)}{face}" for path in [*paths, paths[0]]))
    shares = ["--share", "train=0.5", "--share", "val=0.5", "--no-progress"]
    command("split", format, "faces", "faces.txt", *shares, "--lists", "new/{}.txt")
    parts = [read_annotations(format, faces, f"new/{part}.txt", **QUIET) for part in ("train", "val")]
    assert sorted(path for part in parts for path in part.image_paths) == sorted(paths)
    assert sum(part.num_objects for part in parts) == 11
    assert all(part.num_images == 5 for part in parts)


@pytest.mark.parametrize("link", ["./train.txt", "other.txt", "hard.txt"])
def test_file_that_is_read_is_never_replaced(split, command, faces, link):
    (faces / "other.txt").symlink_to("train.txt")
    (faces / "hard.txt").hardlink_to(faces / "train.txt")
    data = (faces / "train.txt").read_bytes()
    shares = ["--share", "train=0.5", "--share", "val=0.5", "--overwrite"]
    split(link, *shares, "--lists", code=2)
    split(link, *shares, "--lists", "{}.txt", code=2)
    assert "'train.txt' is being read; give other names" in command.err
    split("all.txt", *shares, "--out", f"faces/{link}", code=2)
    assert "is not a split file, so it is not replaced" in command.err
    assert (faces / "train.txt").read_bytes() == data


def test_file_name_that_no_split_file_holds_leaves_no_lists(split, command, faces):
    (faces / "images" / "person\udcff_0.png").write_bytes((faces / "images/person0_0.png").read_bytes())
    text = (faces / "train.txt").read_text().replace("person0_0", "person\udcff_0")
    (faces / "train.txt").write_text(text, errors="surrogateescape")
    shares = ["--share", "train=0.5", "--share", "val=0.5", "--lists", "new/{}.txt"]
    split("train.txt", *shares, "--out", "split.json", code=2)
    assert "is not Unicode" in command.err
    assert not (faces / "new").exists()


@pytest.mark.parametrize("layout", ["voc", "yolo", "coco"])
def test_lists_of_a_format_are_read_back(command, tmp_path, monkeypatch, layout):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = draw_set(tmp_path / "drawn", num_images=12, objects=2, **WITHOUT_POINTS)
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[layout](root, {"all": table})
    data_by_path = {path: path.read_bytes() for path in root.rglob("*.*") if path.suffix in (".xml", ".txt", ".json")}
    name = "annotations/instances_all2017.json" if layout == "coco" else "all"
    words = ["--option", "image_dir=all2017"] if layout == "coco" else []
    share = ["--share", "train=0.75", "--share", "val=0.25", "--lists"]
    out = command("split", layout, "set", name, *words, *share)
    original = read_annotations(layout, root, name, **{"image_dir": "all2017"} if words else {}, **QUIET)
    names = (
        next(line for line in out.splitlines() if line.startswith("written: ")).removeprefix("written: ").split(", ")
    )
    parts = [read_annotations(layout, root, list_name, **QUIET) for list_name in names]
    assert [len(part) for part in parts] == [9, 3]
    assert sorted(path for part in parts for path in part.image_paths) == sorted(original.image_paths)
    assert sum(part.num_objects for part in parts) == original.num_objects
    assert all(path.read_bytes() == data for path, data in data_by_path.items())
    datamodule = build_datamodule(compose_config(overrides=[*command_words(out), *INLINE]))
    datamodule.prepare_data()
    assert [len(images(datamodule, stage)) for stage in ("train", "val")] == [9, 3]
    command("split", layout, "set", name, *words, *share, code=2)
    assert "already exists" in command.err
    command("split", layout, "set", name, *words, *share, "", "--overwrite")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --folds 5, or shares"),
        (["--folds", "2", "--share", "train=1"], "give either"),
        (["--folds", "1"], "--folds 1 must be 2 to 1000"),
        (["--share", "train=0.5"], "their sum 1 instead of 0.5"),
        (["--share", "train=1.5", "--share", "val=-0.5"], "each share must be above 0"),
        (["--share", "train=a"], "'a' is not a number; give e.g. train=0.1"),
        (["--share", "../x=1"], "split '../x' must be letters"),
        (["--folds", "2", "--keep", "test"], "--keep test must leave a set to split; the sets are train.txt"),
        (["--folds", "2", "--group-pattern", "("], "is not a regular expression"),
        (["--folds", "2", "--group-pattern", "(x)y"], "does not match the image path"),
        (["--folds", "2", "--lists", "all.txt"], "must have {} for the part once, e.g. {}.txt"),
        (["--folds", "2", "--lists", "../{}.txt"], "contains '..'"),
        (["--share", "train=0.5", "--share", "val=0.5", "--lists"], "'train.txt' is being read; give other names"),
        (["--folds", "2", "--out", "faces/val.txt"], "already exists; give another file, or --overwrite"),
    ],
)
def test_wrong_words_are_refused_and_nothing_is_written(split, command, faces, words, message):
    lists = sorted(faces.rglob("*.txt"))
    code = 1 if "'..'" in message else 2
    split("train.txt", *words, code=code)
    assert message in command.err
    assert sorted(faces.rglob("*.txt")) == lists


def test_too_few_groups_write_nothing(split, command, tmp_path):
    split("train.txt", "--folds", "3", "--group-pattern", "(images)", "--out", "folds.json", code=1)
    assert "1 groups of images are too few for 3 parts: 1, 2 would be empty" in command.err
    assert not (tmp_path / "folds.json").exists()


def test_shares_of_real_cells_and_faces_deviate_by_less_than_a_point(command, shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shares = ["--share", "train=0.8", "--share", "val=0.1", "--share", "test=0.1"]
    cells = ["voc", shared_data / "bccd/BCCD", "train", "val", "test", "--policy", "degenerate=drop"]
    for words in (shares, ["--folds", "5"]):
        figures = json.loads(command("split", *cells, *words, "--json"))
        assert figures["largest_deviation"]["points"] < 1
    names = [f"{split}={folder}_frames_keypoints.csv" for split, folder in (("train", "training"), ("test", "test"))]
    options = ["schema=face_68", "train:image_dir=training", "test:image_dir=test"]
    read = [*names, *(word for option in options for word in ("--option", option))]
    pattern = r"/([A-Za-z_.-]+?)_\d+\.jpg"
    faces = ["keypoints_csv", shared_data / "udacity_faces", *read, "--group-pattern", pattern]
    command("split", *faces, "--folds", "5", "--out", "faces.json")
    parts = parts_of(tmp_path / "faces.json")
    assert [len(part) for part in parts.values()] == [19] * 5
    persons = [{path.rpartition("/")[2].rpartition("_")[0] for path in part} for part in parts.values()]
    assert sum(map(len, persons)) == len(set().union(*persons)) == 41


def test_documented_commands_split_and_train(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = draw_shapes(num_images={"train": 30, "val": 10, "test": 5}, class_shares=(0.6, 0.3, 0.1), progress=False)
    (tmp_path / "shapes-xml").symlink_to(root)
    for words in commands(PAGES["data/splits"], "lit-loader split"):
        assert "largest deviation: " in command("split", *words)
    sizes = []
    for words in commands(PAGES["data/splits"], "lit-loader train"):
        datamodule = build_datamodule(compose_config(overrides=[*words, *INLINE]))
        datamodule.prepare_data()
        sizes.append([len(images(datamodule, stage)) for stage in ("train", "val", "test")])
    assert sizes == [[35, 5, 5], [32, 8, 5]]
