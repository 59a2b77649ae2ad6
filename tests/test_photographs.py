"""The photographs of the benchmarks: the same from the same sources, of the size asked for, or an error."""

from __future__ import annotations

import importlib.util

import pytest
from PIL import Image

from benchmarks.photographs import find_photographs, write_photographs
from tests.photo_like import photo_like


@pytest.fixture
def without_wheels(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_files_are_jpeg_of_the_size_and_repeat_with_their_seed(tmp_path):
    source = tmp_path / "source.png"
    photo_like(320, 400).save(source)
    first, again, other = (
        write_photographs(tmp_path / str(number), 3, size=(96, 64), sources=[source], seed=seed)
        for number, seed in enumerate((0, 0, 1))
    )
    for path in first:
        with Image.open(path) as image:
            assert (image.format, image.size) == ("JPEG", (96, 64))
    contents = [path.read_bytes() for path in first]
    assert len(set(contents)) == 3
    assert [path.read_bytes() for path in again] == contents
    assert [path.read_bytes() for path in other] != contents


def test_small_grey_and_other_files_are_not_taken(tmp_path, without_wheels):
    folder = tmp_path / "coco_small" / "images"
    folder.mkdir(parents=True)
    photo_like(300, 300).save(folder / "large.jpg")
    photo_like(299, 400).save(folder / "small.jpg")
    photo_like(300, 300).convert("L").save(folder / "grey.jpg")
    (folder / "notes.txt").write_text("no image")
    assert [path.name for path in find_photographs(tmp_path)] == ["large.jpg"]


def test_no_photograph_is_an_error_that_names_what_to_install(tmp_path, without_wheels):
    with pytest.raises(FileNotFoundError, match="pip install scikit-image scikit-learn"):
        find_photographs(tmp_path)
