"""The embedded data set: its classes and finishes, its determinism, and that only complete folders appear."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats import read_annotations
from lit_loader.datasets import shapes
from lit_loader.datasets.scenes import FINISH_NAMES, POINTS, SHAPE_NAMES, box_of, points_of
from lit_loader.datasets.shapes import draw_shapes

SMALL: dict[str, Any] = {
    "num_images": {"train": 12, "val": 4, "test": 6},
    "image_size": 48,
    "class_shares": (0.6, 0.3, 0.1),
    "finish_shares": (0.5, 0.3, 0.2),
    "progress": False,
}


def kind_counts(root: Path, split: str) -> tuple[Counter[str], Counter[str]]:
    """Count classes and finishes without the package's reader."""
    stems = (root / "ImageSets" / "Main" / f"{split}.txt").read_text().split()
    objects = [o for stem in stems for o in ET.parse(root / "Annotations" / f"{stem}.xml").iter("object")]
    return (
        Counter(str(element.findtext("name")) for element in objects),
        Counter(str(element.findtext("attributes/attribute/value")) for element in objects),
    )


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_every_split_has_every_class_and_finish_in_the_asked_shares(tmp_path: Path) -> None:
    root = draw_shapes(tmp_path, **SMALL)
    for split in SMALL["num_images"]:
        classes, finishes = kind_counts(root, split)
        for counts, names, shares in (
            (classes, SHAPE_NAMES, SMALL["class_shares"]),
            (finishes, FINISH_NAMES, SMALL["finish_shares"]),
        ):
            exact = np.array(shares) * sum(counts.values())
            assert np.abs([counts[name] for name in names] - exact).max() < 1
            assert min(counts[name] for name in names) >= 1


def test_the_default_test_split_holds_at_least_fifty_of_the_rarest_class_and_finish() -> None:
    class_shares = (0.90, 0.09, 0.01)
    finish_shares = (0.88, 0.10, 0.02)
    settings = {"objects_per_image": (2, 6), "class_shares": class_shares, "finish_shares": finish_shares}
    for seed in range(20):
        dealt = list(shapes._class_and_finish_ids("test", shapes.DEFAULT_NUM_IMAGES["test"], settings | {"seed": seed}))
        for column, shares in enumerate((class_shares, finish_shares)):
            counts = np.bincount(np.concatenate([image[column] for image in dealt]))
            assert counts.min() >= 50
            np.testing.assert_allclose(counts / counts.sum(), shares, atol=1e-3)


def test_the_finish_is_dealt_out_independently_of_the_class() -> None:
    settings = {"objects_per_image": (2, 6), "class_shares": (0.4, 0.3, 0.3), "finish_shares": (0.4, 0.3, 0.3)}
    dealt = list(shapes._class_and_finish_ids("train", 3000, settings | {"seed": 0}))
    classes, finishes = (np.concatenate([image[column] for image in dealt]) for column in (0, 1))
    together = np.zeros((3, 3))
    np.add.at(together, (classes, finishes), 1)
    expected = np.outer(together.sum(axis=1), together.sum(axis=0)) / together.sum()
    chi_square = ((together - expected) ** 2 / expected).sum()
    assert chi_square < 18.47  # 4 degrees of freedom: exceeded once in 1,000 settings


def test_the_table_that_is_read_is_what_was_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = []
    render = shapes.render_scene

    def remember(objects: Any, **named: Any) -> Image.Image:
        scenes.append(objects)
        return render(objects, **named)

    monkeypatch.setattr(shapes, "render_scene", remember)
    root = draw_shapes(tmp_path, **SMALL | {"num_images": {"train": 12}})
    table = read_annotations("voc", root, "train", cache_dir=tmp_path / "cache", progress=False)
    assert not table.report.problems
    assert table.class_names == SHAPE_NAMES
    assert table.keypoint_schema == POINTS
    assert table.num_images == len(scenes) == 12
    placed = [scene_object for scene in scenes for scene_object in scene]
    assert table.labels.tolist() == [scene_object.class_id for scene_object in placed]
    assert table.boxes.tolist() == [list(map(float, box_of(scene_object))) for scene_object in placed]
    assert table.attributes["finish"].names == FINISH_NAMES
    assert table.attributes["finish"].ids.tolist() == [scene_object.finish_id for scene_object in placed]
    np.testing.assert_array_equal(table.keypoints, np.concatenate([points_of(scene)[0] for scene in scenes]))
    np.testing.assert_array_equal(table.visibility, np.concatenate([points_of(scene)[1] for scene in scenes]))


def test_boxes_lie_inside_images_of_the_asked_size_and_hold_the_asked_number_of_objects(tmp_path: Path) -> None:
    root = draw_shapes(tmp_path, **SMALL | {"objects_per_image": (3, 4)})
    numbers = set()
    for path in (root / "Annotations").iterdir():
        tree = ET.parse(path)
        boxes = [[int(str(box.findtext(t))) for t in ("xmin", "ymin", "xmax", "ymax")] for box in tree.iter("bndbox")]
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
        {"finish_shares": (0.6, 0.3, 0.1)},
        {"max_rotation": 10.0},
    ],
)
def test_other_settings_draw_other_scenes_into_another_folder(tmp_path: Path, changes: dict[str, Any]) -> None:
    first = draw_shapes(tmp_path, **SMALL)
    second = draw_shapes(tmp_path, **SMALL | changes)
    assert first != second
    name = "Annotations/test_00000.xml"
    assert content(first)[name] != content(second)[name] or "num_images" in changes


def test_an_existing_dataset_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = draw_shapes(tmp_path, **SMALL)
    monkeypatch.setattr(shapes, "render_scene", None)
    assert draw_shapes(tmp_path, **SMALL) == root


def test_a_drawing_that_was_cut_short_is_never_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert draw_shapes(**SMALL).parent == tmp_path / "lit_loader"
    assert draw_shapes(tmp_path / "other", **SMALL).parent == tmp_path / "other"


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
        ({"finish_shares": (0.5, 0.5)}, "finish_shares"),
        ({"finish_shares": (0.9, 0.1, 0.0)}, "finish_shares"),
        ({"finish_shares": (0.9, 0.1, float("nan"))}, "finish_shares"),
        ({"max_rotation": -1.0}, "max_rotation"),
        ({"max_rotation": 36.0}, "max_rotation"),
        ({"max_rotation": float("nan")}, "max_rotation"),
        ({"image_size": 31}, "image_size"),
        ({"num_images": {}}, "num_images"),
        ({"num_images": {"train": 0}}, "num_images"),
        ({"num_images": {"../train": 3}}, "num_images"),
        ({"num_images": {"train": 1}, "objects_per_image": (2, 2)}, "cannot include each"),
    ],
)
def test_settings_that_cannot_be_drawn_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        draw_shapes(tmp_path, **SMALL | changes)
    assert not list(tmp_path.glob("shapes-*"))
