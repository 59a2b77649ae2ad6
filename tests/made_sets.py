"""Small sets on disk in the layouts that the config group ``dataset`` reads."""

from __future__ import annotations

import csv
from pathlib import Path

import yaml

from lit_loader.formats import write_annotations
from tests.drawn_set import SIZE, draw_set


def split_in_two(tmp_path):
    """Return a drawn table without points, cut into training and validation."""
    without = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    table = draw_set(tmp_path / "drawn", num_images=8, objects=1, **without)
    return {"train": table.select(range(6)), "val": table.select(range(6, 8))}


def make_coco(root, tables):
    for split, table in tables.items():
        write_annotations("coco", table, root, f"annotations/instances_{split}2017.json", allow_loss=True)
        copy_images(table, root / f"{split}2017")


def make_yolo(root, tables):
    for split, table in tables.items():
        copy_images(table, root / "images" / split)
        (root / "labels" / split).mkdir(parents=True)
        for path, label, box in zip(table.image_paths, table.labels, table.boxes, strict=True):
            (left, top), (right, bottom) = box[:2] / SIZE, box[2:] / SIZE
            row = (label, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            (root / "labels" / split / path).with_suffix(".txt").write_text(" ".join(map(str, row)))
    names = dict(enumerate(table.class_names))
    data = {"path": "../datasets/set", "train": "images/train", "val": "images/val", "names": names}
    (root / "data.yaml").write_text(yaml.safe_dump(data))


def make_voc(root, tables):
    """As clusters have it: the images are somewhere else, behind a link."""
    for split, table in tables.items():
        write_annotations("voc", table, root, split, allow_loss=True)
    (root / "JPEGImages").symlink_to(Path(table.root))


def make_csv(root, tables):
    for split, table in tables.items():
        copy_images(table, root / split)
        with (root / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label", "xmin", "ymin", "xmax", "ymax"])
            for path, label, box in zip(table.image_paths, table.labels, table.boxes, strict=True):
                rows.writerow([f"{split}/{path}", table.class_names[label], *map(float, box)])


def make_image_folder(root, tables):
    for split, table in tables.items():
        for name in table.class_names:
            (root / split / name).mkdir(parents=True)
        for path, label in zip(table.image_paths, table.labels, strict=True):
            copy = root / split / table.class_names[label] / path
            copy.write_bytes(Path(table.root, path).read_bytes())


def copy_images(table, folder):
    folder.mkdir(parents=True)
    for path in table.image_paths:
        (folder / path).write_bytes(Path(table.root, path).read_bytes())


MAKERS = {
    "coco": make_coco,
    "yolo": make_yolo,
    "voc": make_voc,
    "csv": make_csv,
    "image_folder": make_image_folder,
}
