"""Byte-identical images stay in one split; the images are compared once for all processes and runs."""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.splitting import find_copies, stratified_split
from lit_loader.datasets import FormatSource
from tests.app.commands.conftest import Command
from tests.support.face_lists import OPTIONS, READ, write_faces
from tests.support.text_sets import write_image

NUM_COPIES = 6


@pytest.fixture
def root(tmp_path):
    """Twelve images, each of them with six copies under other names, and twelve that are like no other one."""
    rng = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / f"set/{'ab'[number % 2]}/{number}.png"
        write_image(path)
        path.write_bytes(path.read_bytes() + rng.bytes(5000))
        for copy in range(NUM_COPIES if number < 12 else 0):
            path.with_name(f"{copy}_of_{number}.png").write_bytes(path.read_bytes())
    (tmp_path / "set/a/empty_1.png").write_bytes(b"")
    (tmp_path / "set/a/empty_2.png").write_bytes(b"")
    return tmp_path


def source_of(root, **options):
    return FormatSource(
        format="image_folder",
        root=str(root),
        train="set",
        val_fraction=0.25,
        test_fraction=0.25,
        policy={"unreadable_image": "keep"},
        cache_dir=str(root / "cache"),
        progress=False,
        **options,
    )


def splits_of(source):
    """Return for each content the splits that hold it."""
    splits_by_content = {}
    for stage in ("train", "val", "test"):
        for table in source.tables(stage):
            for i in range(table.num_images):
                splits_by_content.setdefault(table.image_path(i).read_bytes(), set()).add(stage)
    return splits_by_content


def test_copies_are_in_one_split_and_a_log_line_says_so(root, caplog):
    splits_by_content = splits_of(source_of(root))
    assert splits_by_content.pop(b"") <= {"train", "val", "test"}
    assert len(splits_by_content) == 24
    assert {len(stages) for stages in splits_by_content.values()} == {1}
    assert set().union(*splits_by_content.values()) == {"train", "val", "test"}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{12 * (1 + NUM_COPIES)} images are byte-identical copies (12 groups), such as 'set/" in record.message


def test_groups_that_copies_connect_are_one(root):
    source = source_of(root, group_pattern=r"(\d+)\.png$")
    # copies of 3 are of its group by their names; another one connects the groups 3 and 13
    (root / "set/b/13.png").write_bytes((root / "set/b/3.png").read_bytes())
    assert all(len(stages) == 1 for content, stages in splits_of(source).items() if content)


def opened(root, work):
    """Call ``work`` and return the images that it opened."""
    paths = []
    is_on = [True]

    def note(event, arguments):
        if is_on[0] and event == "open" and str(arguments[0]).startswith(f"{root}/set"):
            paths.append(arguments[0])

    sys.addaudithook(note)  # cannot be removed
    try:
        work()
    finally:
        is_on[0] = False
    return paths


def test_the_images_are_compared_once_for_all_processes_and_runs(root, caplog):
    source = source_of(root)
    assert opened(root, source.prepare)
    first = [list(table.image_paths) for table in source.tables("val")]
    caplog.clear()
    for work in ("reopen", "prepare"):
        reopened = source_of(root)
        read = opened(root, getattr(reopened, work))
        assert not [path for path in read if not path.endswith(("empty_1.png", "empty_2.png"))]
        assert [list(table.image_paths) for table in reopened.tables("val")] == first
    # An earlier test may have made the logger write information as well.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("text", ["", "[[0, 1", '{"a": 1}', "[[0, 99999]]", '[["x", 0]]'])
def test_a_damaged_note_is_made_again(root, text):
    first = splits_of(source_of(root))
    (path,) = (root / "cache").rglob("*.copies.json")
    path.write_text(text)
    assert splits_of(source_of(root)) == first
    assert len(json.loads(path.read_text())) == 12


def test_without_copies_the_split_is_that_of_the_images_alone(tmp_path):
    write_faces(tmp_path, "all.txt", 30)
    for number, path in enumerate(sorted(tmp_path.rglob("*.png"))):
        path.write_bytes(path.read_bytes() + bytes([number]))
    table = read_annotations("keypoints_txt", tmp_path, "all.txt", cache_dir=tmp_path / "c", **OPTIONS)
    assert find_copies(table, tmp_path / "c") == ([], True)
    assert find_copies(table, tmp_path / "c") == ([], False)
    shares = {"train": 0.75, "val": 0.25}
    settings = {"train": "all.txt", "val_fraction": 0.25, "options": OPTIONS, "cache_dir": str(tmp_path / "c")}
    (val,) = FormatSource(format="keypoints_txt", root=str(tmp_path), **settings).tables("val")
    assert list(val.image_paths) == [table.image_paths[i] for i in stratified_split(table, shares)["val"].tolist()]


@pytest.mark.parametrize("missing", [False, True])
def test_a_conversion_holds_copies_out_together_and_says_so(tmp_path, monkeypatch, capsys, missing):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_faces(tmp_path / "faces", "all.txt", 30)
    images = sorted((tmp_path / "faces").rglob("*.png"))
    data = images[0].read_bytes()
    for number, path in enumerate(images):
        path.write_bytes(data + bytes([number // 3]))
    if missing:
        images[0].unlink()
    words = ["convert", "keypoints_txt", "faces", "all.txt", "--to", "voc", "--out", "new", *READ]
    words += ["--policy", "missing_image=keep"] if missing else []
    out = Command(capsys)(*words, "--hold-out", "val=0.3")
    assert f"{29 if missing else 30} images are byte-identical copies (10 groups)" in out
    contents = []
    for split in ("train", "val"):
        table = read_annotations("voc", "new", split, use_cache=False, policy={"missing_image": "keep"})
        paths = [table.image_path(row) for row in range(len(table))]
        contents.append({path.read_bytes() for path in paths if path.exists()})
    assert all(contents)
    assert not contents[0] & contents[1]
