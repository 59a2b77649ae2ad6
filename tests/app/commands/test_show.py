"""``lit-loader show``: the files that it writes, the images that it chooses, and the options that it refuses."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image

from lit_loader.inspection import Finding, Findings
from tests.support.coco_set import CocoSet

OPTIONS = ("--option", "columns=path points class", "--option", "schema=face_5", "--no-progress")


@pytest.fixture
def show(command, faces):
    def run(*words, code=0):
        return command("show", "keypoints_txt", faces, "train=train.txt", "val=val.txt", *OPTIONS, *words, code=code)

    return run


def captions(path):
    return re.findall(r"<figcaption[^>]*>([^<]*)</figcaption>", path.read_text())


def test_each_set_is_shown_in_one_page(show, tmp_path):
    assert show() == "22 pictures in show.html\n"
    text = (tmp_path / "show.html").read_text()
    assert text.count("<img ") == 16 + 6
    assert re.findall("<h2>(.*?)</h2>", text) == ["train", "val"]


def test_the_same_seed_shows_the_same_images(show, tmp_path):
    captions_by_seed = []
    for seed in (0, 0, 5):
        show("--seed", seed, "--num", 4, "--out", "a.html")
        captions_by_seed.append(captions(tmp_path / "a.html"))
    assert captions_by_seed[0] == captions_by_seed[1] != captions_by_seed[2]


def test_a_split_is_shown_alone_as_a_picture(show, tmp_path):
    assert show("--split", "val", "--out", "val.png") == "6 pictures in val.png\n"
    with Image.open(tmp_path / "val.png") as image:
        assert image.format == "PNG"


def test_images_of_a_class_are_shown(show, tmp_path, faces):
    words = {line.split()[-1] for line in (faces / "train.txt").read_text().splitlines()}
    name = sorted(words)[0]
    show("--class", name, "--split", "train", "--out", "a.html")
    lines = (faces / "train.txt").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.split()[-1] == name]
    assert {caption.partition(" ")[0] for caption in captions(tmp_path / "a.html")} <= set(paths)


def test_a_folder_alone_is_searched(command, tmp_path, faces):
    for name in ("cat", "dog"):
        (tmp_path / "animals" / name).mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "animals" / name / "a.png")
    out = command("show", "animals", "--no-progress")
    assert out.splitlines()[-1] == "2 pictures in show.html"
    assert "lit-loader show image_folder animals" in out


def test_one_image_is_shown_large_with_a_table_of_its_objects(show, tmp_path, faces):
    path = (faces / "val.txt").read_text().split()[0]
    stem = path.removesuffix(".png")
    for name in (path, str(faces / path), path.rpartition("/")[2], stem, stem.rpartition("/")[2]):
        assert show("--image", name, "--out", "one.html") == "1 picture in one.html\n"
        text = (tmp_path / "one.html").read_text()
        assert f"<h1>{path}</h1>" in text
        assert ">number</th>" in text
        assert "val.txt:1</td>" in text


def test_one_image_is_shown_by_the_id_that_its_annotations_have(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    coco_set = CocoSet(tmp_path)
    coco_set.category()
    coco_set.image(7, "a.jpg")
    coco_set.add((1, 2, 3, 4), image_id=7)
    coco_set.write()
    words = ["coco", ".", "a.json", "--option", "image_dir=img", "--cache-dir", "cache", "--no-progress"]
    assert "1 picture" in command("show", *words, "--image", "7")


def test_a_picture_of_one_image_says_that_it_lacks_the_table(show, faces):
    path = (faces / "val.txt").read_text().split()[0]
    assert "the table of the objects is only in a page: --out show.html" in show("--image", path, "--out", "one.png")


def test_objects_are_shown_next_to_their_mirror_images(show, tmp_path):
    assert show("--mirrored", "--num", 3, "--split", "train") == "3 pictures in show.html\n"
    names = captions(tmp_path / "show.html")
    assert all(name.endswith(" (object 0)") for name in names)
    assert "3 images; the names must fit both halves" in (tmp_path / "show.html").read_text()


def test_mirror_images_need_points_and_their_pairs(command, tmp_path, faces):
    for schema, message in (
        ("5", "--mirrored needs mirror pairs of points, and the sets train have none; give a schema with flip_pairs"),
        (None, "--mirrored needs points, and the sets train have none"),
    ):
        columns = "path points class" if schema else f"path {'skip ' * 10} class"
        options = ["--option", f"columns={columns}", *(["--option", f"schema={schema}"] if schema else [])]
        command("show", "keypoints_txt", faces, "train=train.txt", *options, "--mirrored", "--no-progress", code=2)
        assert message in command.err
    assert not list(tmp_path.glob("*.html"))


def test_findings_are_shown(show, tmp_path, faces):
    findings = Findings()
    path = (faces / "train.txt").read_text().split()[0]
    text = {"kind": "odd_box", "severity": "warning", "message": "box <b> of 1 px", "remedy": "draw it again"}
    findings.add(Finding(**text, split="train", image=path))
    (tmp_path / "findings.json").write_text(json.dumps(findings.to_dict()))
    assert show("--worst", "findings.json") == "1 picture in show.html\n"
    assert captions(tmp_path / "show.html") == [f"train: {path}: box &lt;b&gt; of 1 px"]


def test_findings_of_a_check_are_shown_though_training_stops_at_them(show, command, tmp_path, faces):
    path = (faces / "train.txt").read_text().split()[0]
    (faces / path).unlink()
    report = command("check", "keypoints_txt", faces, "train=train.txt", *OPTIONS, "--json", "--no-decode", code=1)
    (tmp_path / "findings.json").write_text(report)
    show("--worst", "findings.json")
    assert any(caption.startswith(f"train: {path}: ") for caption in captions(tmp_path / "show.html"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.pdf"], "must end in .html or .png"),
        (["--num", "0"], "--num 0 must be at least 1"),
        (["--split", "test"], "--split 'test' is not one of the sets train, val"),
        (["--image", "no.jpg"], "--image 'no.jpg' is in none of the sets train, val"),
        (["--class", "Calm"], "--class Calm is unknown; the data has angry, calm; did you mean 'calm'?"),
        (["--attribute", "pose"], "--attribute 'pose' must be NAME=VALUE"),
        (["--epoch", "3"], "--epoch needs --batches"),
        (["--stage", "val"], "--stage needs --batches"),
        (["--image", "a.jpg", "--class", "x"], "--class has no effect on --image"),
        (["--image", "a.jpg", "--num", "3"], "--num has no effect on --image"),
        (["--worst", "no.json", "--image", "a.jpg"], "--image has no effect on --worst"),
        (["--image", "a.jpg", "--mirrored"], "--mirrored has no effect on --image"),
        (["--worst", "no.json", "--mirrored"], "--mirrored has no effect on --worst"),
        (["--batches", "a=1", "--mirrored"], "--mirrored has no effect on --batches"),
        (["--attribute", "a=x", "--attribute", "a=y"], "--attribute 'a=y': 'a' has a value already"),
        (["--batches", "a=1", "--seed", "3"], "--seed has no effect on --batches"),
        (["--batches", "a=1"], "--option has no effect on --batches"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(show, command, tmp_path, words, message):
    show(*words, code=2)
    assert message in command.err
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    "words",
    [["--layout", "voc"], ["--policy", "a=b"], ["--class-names", "a"], ["--cache-dir", "x"], ["--num-workers", "0"]],
)
def test_options_of_reading_are_refused_for_batches(command, words):
    command("show", "--batches", *words, code=2)
    assert f"{words[0]} has no effect on --batches; give overrides of the config" in command.err


def test_without_data_the_choices_are_named(command):
    command("show", code=2)
    assert "give DATA: a folder, or FORMAT, ROOT and NAME; or --batches" in command.err


def test_a_file_of_findings_that_is_none_is_wrong_data(show, command, tmp_path):
    (tmp_path / "findings.json").write_text("{}")
    show("--worst", "findings.json", code=1)
    assert "expected an object with a list 'findings'" in command.err


def test_an_ambiguous_image_is_refused_with_the_choices(command, faces, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "set" / folder / "x.png")
    command("show", "image_folder", "set", ".", "--image", "x.png", code=2)
    assert "fits 2 images: a/x.png, b/x.png; give the path" in command.err


def test_sets_without_images_are_wrong_data(command, faces):
    (faces / "empty.txt").write_text("")
    command("show", "keypoints_txt", faces, "train=empty.txt", *OPTIONS, code=1)
    assert "the sets train have no images" in command.err
