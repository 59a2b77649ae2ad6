"""Staleness of a cached table: its key, and the images whose size it depends on."""

from __future__ import annotations

import os

import pytest
from PIL import Image

from lit_loader.annotations.cache import cache_key
from lit_loader.annotations.formats import read_annotations, rules
from lit_loader.annotations.formats.image_sizes import read_image_sizes


def test_key_depends_on_every_part(tmp_path):
    base = {"reader": "r", "version": 1, "root": tmp_path, "settings": {"x": 1, "y": 2}}
    base |= {"files": ["a", "b"], "stamps": [1, 2, 1, 2]}
    changes = [
        {"reader": "s"},
        {"version": 2},
        {"root": tmp_path / "x"},
        {"settings": {"x": 2, "y": 2}},
        {"files": ["b", "a"]},
        {"files": ["a"], "stamps": [1, 2]},
        {"stamps": [1, 2, 2, 2]},
        {"stamps": [1, 2, 1, 3]},
        {"files": ["ab"], "stamps": [1, 2]},
        {"files": ["ab", ""]},
    ]
    keys = {cache_key(**(base | change)) for change in [{}, *changes]}
    assert len(keys) == len(changes) + 1
    assert cache_key(**(base | {"settings": {"y": 2, "x": 1}})) in keys


LIST = "a.png 0.5 0.5 0.5 0.5\nb.png 0.5 0.5 1 1\n"


def read_list(root, cache_dir, **policy):
    return read_annotations(
        "keypoints_txt",
        root,
        "list.txt",
        columns="path box",
        box_format="cxcywh",
        normalized=True,
        policy=policy,
        cache_dir=cache_dir,
        progress=False,
    )


@pytest.fixture
def fractions(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    (root / "list.txt").write_text(LIST)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 20)).save(root / name)
    return root


def test_changed_image_size_invalidates_cached_boxes(fractions, tmp_path):
    assert read_list(fractions, tmp_path / "cache").boxes[0].tolist() == [10, 5, 30, 15]
    Image.new("RGB", (80, 40)).save(fractions / "a.png")
    assert read_list(fractions, tmp_path / "cache").boxes[0].tolist() == [20, 10, 60, 30]


def test_image_changed_during_header_read_is_read_again(fractions, tmp_path, monkeypatch):
    def read_and_change(root, paths, **options):
        result = read_image_sizes(root, paths, **options)
        Image.new("RGB", (90, 30)).save(root / paths[0])
        return result

    old = read_list(fractions, tmp_path / "cache").widths.tolist()
    os.utime(fractions / "a.png", (5, 5))
    monkeypatch.setattr(rules, "read_image_sizes", read_and_change)
    assert read_list(fractions, tmp_path / "cache").widths.tolist() == old
    assert read_list(fractions, tmp_path / "cache").widths.tolist() != old


def test_dropped_image_is_read_once_it_exists(fractions, tmp_path):
    (fractions / "b.png").rename(tmp_path / "b.png")
    assert read_list(fractions, tmp_path / "cache", missing_image="drop").num_images == 1
    (tmp_path / "b.png").rename(fractions / "b.png")
    assert read_list(fractions, tmp_path / "cache", missing_image="drop").num_images == 2
