"""The embedded data set: its classes, its determinism, and that only complete folders appear."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from lit_loader.datasets import shapes
from lit_loader.datasets.scenes import SHAPE_NAMES, SceneObject, box_of, outline
from lit_loader.datasets.shapes import class_quota, draw_shapes, shapes_root
from lit_loader.formats import read_voc

SMALL: dict[str, Any] = {
    "num_images": {"train": 12, "val": 4, "test": 6},
    "image_size": 48,
    "class_shares": (0.6, 0.3, 0.1),
    "progress": False,
}


def class_counts(root: Path, split: str) -> Counter[str]:
    stems = (root / "ImageSets" / "Main" / f"{split}.txt").read_text().split()
    trees = [ET.parse(root / "Annotations" / f"{stem}.xml") for stem in stems]
    return Counter(str(element.findtext("name")) for tree in trees for element in tree.iter("object"))


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_every_split_has_every_class_in_the_asked_shares(tmp_path: Path) -> None:
    root = draw_shapes(tmp_path, **SMALL)
    for split in SMALL["num_images"]:
        counts = class_counts(root, split)
        quota = class_quota(sum(counts.values()), SMALL["class_shares"])
        assert [counts[name] for name in SHAPE_NAMES] == quota.tolist()
        assert min(counts[name] for name in SHAPE_NAMES) >= 1


def test_the_default_test_split_holds_at_least_fifty_of_the_rarest_class() -> None:
    for seed in range(20):
        settings = {"seed": seed, "objects_per_image": (2, 6), "class_shares": (0.90, 0.09, 0.01)}
        dealt = list(shapes._class_ids("test", shapes.DEFAULT_NUM_IMAGES["test"], settings))
        counts = np.bincount(np.concatenate(dealt))
        assert counts.min() >= 50
        np.testing.assert_allclose(counts / counts.sum(), (0.90, 0.09, 0.01), atol=1e-3)


def test_the_voc_reader_takes_it_without_a_complaint(tmp_path: Path) -> None:
    root = draw_shapes(tmp_path, **SMALL)
    table = read_voc(root, split="train", cache_dir=tmp_path / "cache", progress=False)
    assert table.num_images == SMALL["num_images"]["train"]
    assert not table.report.problems
    assert set(table.class_names) == set(SHAPE_NAMES)


def test_boxes_lie_inside_images_of_the_asked_size_and_hold_the_asked_number_of_objects(
    tmp_path: Path,
) -> None:
    root = draw_shapes(tmp_path, **SMALL | {"objects_per_image": (3, 4)})
    numbers = set()
    for path in (root / "Annotations").iterdir():
        tree = ET.parse(path)
        boxes = [
            [int(str(box.findtext(t))) for t in ("xmin", "ymin", "xmax", "ymax")]
            for box in tree.iter("bndbox")
        ]
        numbers.add(len(boxes))
        assert all(0 <= x0 < x1 <= 48 and 0 <= y0 < y1 <= 48 for x0, y0, x1, y1 in boxes)
        with Image.open(root / "JPEGImages" / f"{path.stem}.jpg") as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (48, 48), "RGB")
    assert numbers == {3, 4}


def test_the_same_settings_give_the_same_bytes_anywhere(tmp_path: Path) -> None:
    a, b = (draw_shapes(tmp_path / name, **SMALL) for name in "ab")
    assert a.name == b.name
    assert content(a) == content(b)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"image_size": 64},
        {"num_images": {"train": 12, "val": 4, "test": 7}},
        {"objects_per_image": (1, 3)},
        {"class_shares": (0.5, 0.3, 0.2)},
    ],
)
def test_other_settings_draw_other_scenes_into_another_folder(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    first, second = draw_shapes(tmp_path, **SMALL), draw_shapes(tmp_path, **SMALL | changes)
    assert first != second
    name = "Annotations/test_00000.xml"
    assert content(first)[name] != content(second)[name] or "num_images" in changes


def test_what_is_there_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = draw_shapes(tmp_path, **SMALL)
    monkeypatch.setattr(shapes, "render_scene", None)
    assert draw_shapes(tmp_path, **SMALL) == root


def test_a_drawing_that_was_cut_short_is_never_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shapes, "render_scene", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            draw_shapes(tmp_path, **SMALL)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]
    root = draw_shapes(tmp_path, **SMALL)
    (root / "shapes.json").unlink()  # as a copy that was broken off would leave it
    (tmp_path / f".{root.name}.killed.tmp").mkdir()  # as SIGKILL leaves it
    (root / "JPEGImages" / "train_00000.jpg").unlink()
    assert draw_shapes(tmp_path, **SMALL) == root
    assert (root / "JPEGImages" / "train_00000.jpg").is_file()
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [root]


def test_processes_that_start_together_draw_one_data_set(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=draw_shapes, args=(tmp_path,), kwargs=SMALL) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_the_users_cache_folder_is_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert shapes_root(**SMALL).parent == tmp_path / "lit_loader"
    assert shapes_root(tmp_path / "other", **SMALL).parent == tmp_path / "other"


def test_progress_is_shown_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_shapes(tmp_path / "quiet", **SMALL)
    assert capsys.readouterr().out == ""
    draw_shapes(tmp_path / "loud", **SMALL | {"progress": True})
    assert "Drawing shapes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"objects_per_image": (0, 3)}, "objects_per_image"),
        ({"objects_per_image": (4, 3)}, "objects_per_image"),
        ({"class_shares": (0.5, 0.5)}, "class_shares"),
        ({"class_shares": (0.9, 0.1, 0.0)}, "class_shares"),
        ({"class_shares": (0.9, 0.1, 0.1)}, "class_shares"),
        ({"image_size": 31}, "image_size"),
        ({"num_images": {}}, "num_images"),
        ({"num_images": {"train": 0}}, "num_images"),
        ({"num_images": {"../train": 3}}, "num_images"),
        ({"num_images": {"train": 1}, "objects_per_image": (2, 2)}, "cannot hold each"),
    ],
)
def test_settings_that_cannot_be_drawn_are_refused(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        draw_shapes(tmp_path, **SMALL | changes)
    assert not list(tmp_path.glob("shapes-*"))


def test_quotas_sum_up_and_leave_no_class_out() -> None:
    assert class_quota(5200, (0.90, 0.09, 0.01)).tolist() == [4680, 468, 52]
    assert class_quota(10, (0.90, 0.09, 0.01)).tolist() == [8, 1, 1]
    assert class_quota(3, (0.90, 0.09, 0.01)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("class_id", range(len(SHAPE_NAMES)))
def test_a_box_is_the_tight_hull_of_the_outline(class_id: int) -> None:
    thing = SceneObject(class_id=class_id, centre=(30.0, 20.0), radius=8.0, rotation=0.3, colour=(1, 2, 3))
    corners = outline(thing)
    x0, y0, x1, y1 = box_of(thing)
    low, high = corners.min(axis=0), corners.max(axis=0)
    assert 0 <= low[0] - x0 < 1
    assert 0 <= low[1] - y0 < 1
    assert 0 <= x1 - high[0] < 1
    assert 0 <= y1 - high[1] < 1
    assert np.hypot(*(corners - (30.0, 20.0)).T).max() == pytest.approx(8.0)
