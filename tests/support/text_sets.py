"""Small sound data sets in every text format, and the readers that belong to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.annotations.table import AnnotationTable

__all__ = ["SIZE", "TEXT_SETS", "write_image"]

SIZE = (60, 50)  # width, height
LENIENT = ReadPolicy(malformed="drop", missing_image="drop", unreadable_image="keep", unknown_class="drop")


def read_set(format: str, name: str, root: Path, **options: object) -> AnnotationTable:
    """Read a set without the cache, in this process; importable, so that a fuzzing process can call it."""
    return read_annotations(format, root, name, use_cache=False, progress=False, num_workers=0, **options)


def write_image(path: Path, size: tuple[int, int] = SIZE) -> None:
    """Write a plain image, and its folders when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 30)).save(path)


def _points(count: int, seed: int = 0) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).integers(2, 48, 2 * count)]


def _line(values: list[float], between: str = " ") -> str:
    return between.join(f"{value:g}" for value in values)


def make_keypoints_txt(root: Path) -> list[str]:
    for name in ("a.jpg", "b.png", "deep/c.jpg"):
        write_image(root / name)
    lines = [f"{name} {_line(_points(5, i))} face left" for i, name in enumerate(["a.jpg", "b.png", "deep/c.jpg"])]
    (root / "list.txt").write_text("# faces\n" + "\n".join(lines) + "\n")
    return ["list.txt"]


def make_keypoints_csv(root: Path) -> list[str]:
    for name in ("images/a.jpg", "images/b.png"):
        write_image(root / name)
    header = ",".join(["", "kind", "x1", "y1", "x2", "y2", *map(str, range(4))])
    rows = [f'"{name}",cat,1,2,30,{20 + i},{_line(_points(2, i), ",")}' for i, name in enumerate(["a.jpg", "b"])]
    (root / "table.csv").write_text("\r\n".join([header, *rows]) + "\r\n")
    return ["table.csv"]


def make_wflw(root: Path) -> list[str]:
    write_image(root / "images/a.jpg")
    write_image(root / "images/b/c.jpg")
    lines = [f"{_line(_points(98, i))} 5 6 40 41 0 1 0 0 {i} 0 {name}" for i, name in enumerate(["a.jpg", "b/c.jpg"])]
    (root / "list.txt").write_text("\n".join(lines) + "\n")
    return ["list.txt"]


def make_retinaface(root: Path) -> list[str]:
    write_image(root / "0--Parade/a.jpg")
    write_image(root / "b.jpg")
    face = "1 2 30 40 " + " ".join(f"{x} {x + 1} {x % 2}.0" for x in range(5, 10)) + " 0.9"
    absent = "5 5 9 9 " + " ".join(["-1 -1 -1"] * 5) + " 0.1"
    (root / "label.txt").write_text(f"# 0--Parade/a.jpg\n{face}\n{absent}\n# b.jpg\n3 4 10 10\n")
    return ["label.txt"]


def make_widerface(root: Path) -> list[str]:
    for name in ("0--Parade/a.jpg", "0--Parade/b.jpg", "c.png"):
        write_image(root / "images" / name)
    lines = ["0--Parade/a.jpg", "2", "1 2 30 40 0 1 0 0 2 1 ", "5 6 7 8 2 0 1 1 0 0", "0--Parade/b.jpg", "0"]
    lines += ["0 0 0 0 0 0 0 0 0 0", "c.png", "1", "9 9 9 9 1 0 0 0 1 0"]
    (root / "gt.txt").write_text("\n".join(lines) + "\n")
    return ["gt.txt"]


def make_celeba(root: Path, size: tuple[int, int] = (178, 218)) -> list[str]:
    names = [f"{i:06}.jpg" for i in range(1, 5)]
    heads = {
        "list_attr_celeba.txt": ("4\nBald Smiling\n", ["-1  1", " 1 -1", "-1 -1", " 1  1"]),
        "identity_CelebA.txt": ("", ["7", "12", "7", "3"]),
        "list_eval_partition.txt": ("", ["0", "0", "1", "2"]),
    }
    boxes = ["10 12 100  90", "11 13  20 30", " 1  2  3  4", "5 6 7 8"]
    points = [_line(_points(5, i), "  ") for i in range(4)]
    eyes = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"
    heads["list_bbox_celeba.txt"] = ("4\nimage_id x_1 y_1 width height\n", boxes)
    heads["list_landmarks_celeba.txt"] = (f"4\n{eyes}\n", points)
    heads["list_landmarks_align_celeba.txt"] = (f"4\n{eyes}\n", points)
    for name in names:
        write_image(root / "img_align_celeba" / name, size)
    for file, (head, values) in heads.items():
        lines = [f"{name} {value}\n" for name, value in zip(names, values, strict=True)]
        (root / file).write_text(head + "".join(lines))
    return sorted(heads)


def make_pts(root: Path) -> list[str]:
    names = []
    for i, name in enumerate(["001/annot/1", "001/annot/2", "002/annot/1"]):
        write_image(root / name.replace("annot", "imgs").__add__(".jpg"))
        points = "\r\n".join(f"{x:g} {x + 1:g}" for x in _points(34, i))
        path = root / f"{name}.pts"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"version: 1\r\nn_points: 68\r\n{{\r\n{points}\r\n}}\r\n".encode())
        names.append(f"{name}.pts")
    return names


def make_yolo(root: Path) -> list[str]:
    for i, name in enumerate(["a", "deep/b"]):
        write_image(root / f"images/{name}.jpg")
        label = root / f"labels/{name}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(f"0 0.5 0.5 0.2 0.4\n{i} 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n")
    (root / "train.txt").write_text("./images/a.jpg\nimages/deep/b.jpg\n")
    (root / "data.yaml").write_text(
        "path: ../x\ntrain: train.txt\nval: images/deep\nnc: 2\nnames:\n  0: cat\n  1: dog\n"
    )
    return ["data.yaml", "train.txt", "labels/a.txt", "labels/deep/b.txt"]


def make_yolo_pose(root: Path) -> list[str]:
    names = make_yolo(root)
    points = "kpt_shape: [2, 3]\nkpt_names: [l, r]\nflip_idx: [1, 0]\n"
    (root / "data.yaml").write_text(f"train: train.txt\nnames: [cat, dog]\n{points}")
    for name in names[2:]:
        (root / name).write_text("0 0.5 0.5 0.2 0.4 0.5 0.1 2 0.25 0.5 1\n1 0.5 0.5 0.2 0.4 0 0 0 1 1 2\n")
    return names


def make_dota(root: Path) -> list[str]:
    # Two sizes, because equal files would be copies.
    write_image(root / "images/P1.png")
    write_image(root / "images/P2.png", (40, 30))
    (root / "labelTxt").mkdir()
    lines = "imagesource:GoogleEarth\ngsd:0.5\n1 2 9.5 3 8 12 0.25 11 ship 0\n20 5 31 5 31 9 20 9 large-vehicle 1\n"
    (root / "labelTxt/P1.txt").write_text(lines)
    (root / "labelTxt/P2.txt").write_text("3 3 9 3 9 9 3 9 ship 2\n")
    return ["labelTxt/P1.txt", "labelTxt/P2.txt"]


LIST_OPTIONS = {"columns": "path points class attribute:pose", "schema": "face_5"}
KEYPOINTS_TXT = partial(read_set, "keypoints_txt", "list.txt", **LIST_OPTIONS)
CSV_OPTIONS = {"path_column": "", "class_column": "kind", "box_columns": ("x1", "y1", "x2", "y2"), "schema": 2}
WIDERFACE = partial(read_set, "widerface", "gt.txt", image_dir="images")

TEXT_SETS = {
    "keypoints_txt": (KEYPOINTS_TXT, make_keypoints_txt),
    "keypoints_txt_lenient": (partial(KEYPOINTS_TXT, policy=LENIENT), make_keypoints_txt),
    "keypoints_csv": (
        partial(read_set, "keypoints_csv", "table.csv", image_dir="images", **CSV_OPTIONS),
        make_keypoints_csv,
    ),
    "wflw": (partial(read_set, "wflw", "list.txt", image_dir="images"), make_wflw),
    "retinaface": (partial(read_set, "retinaface", "label.txt"), make_retinaface),
    "widerface": (WIDERFACE, make_widerface),
    "widerface_lenient": (partial(WIDERFACE, policy=LENIENT), make_widerface),
    "celeba": (partial(read_set, "celeba", "train"), make_celeba),
    "celeba_original_lenient": (
        partial(read_set, "celeba", ".", aligned=False, policy=LENIENT),
        partial(make_celeba, size=SIZE),
    ),
    "pts": (partial(read_set, "pts", "*/annot/*.pts", image_dir="../imgs"), make_pts),
    "dota": (partial(read_set, "dota", "."), make_dota),
    "dota_lenient": (partial(read_set, "dota", ".", policy=LENIENT), make_dota),
    "yolo": (partial(read_set, "yolo", "train"), make_yolo),
    "yolo_pose_lenient": (partial(read_set, "yolo", "train", policy=LENIENT), make_yolo_pose),
}
