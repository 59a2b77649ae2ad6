"""Small sets on disk in the layouts that the config group ``dataset`` reads."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from lit_loader.annotations.formats import write_annotations
from lit_loader.annotations.keypoints import keypoint_schema
from tests.support.drawn_set import draw_set

WITHOUT_POINTS = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}


def split_in_two(tmp_path):
    """Return a drawn table without points, cut into training and validation."""
    table = draw_set(tmp_path / "drawn", num_images=8, objects=1, **WITHOUT_POINTS)
    return {"train": table.select(range(6)), "val": table.select(range(6, 8))}


def split_in_three(tmp_path, draw=draw_set, **columns):
    """Return a drawn table, without images that have no object, cut into training, validation and test."""
    table = draw(tmp_path / "drawn", num_images=18, **columns)
    table = table.select(np.flatnonzero(np.diff(table.offsets)))
    return {"train": table.select(range(6)), "val": table.select(range(6, 9)), "test": table.select(range(9, 12))}


def face_columns(num_faces):
    """Return columns for `draw_set`: one face with 68 points per image."""
    schema = keypoint_schema("face_68")
    grid = np.stack(np.meshgrid(np.arange(10), np.arange(7)), axis=-1).reshape(-1, 2)[:68]
    points = np.tile(grid * np.float32([4, 5]) + 8, (num_faces, 1, 1))
    points += np.random.default_rng(0).uniform(0, 4, (num_faces, 1, 2)).astype(np.float32)
    return {
        "keypoints": points,
        "visibility": np.full((num_faces, 68), 2, dtype=np.uint8),
        "keypoint_names": schema.names,
        "flip_pairs": schema.flip_pairs,
        "class_names": ("face",),
        "labels": [0] * num_faces,
        "attributes": {},
    }


def make_coco(root, tables, *, kind="instances"):
    for split, table in tables.items():
        write_annotations("coco", table, root, f"annotations/{kind}_{split}2017.json", allow_loss=True)
        copy_images(table, root / f"{split}2017")


def make_yolo(root, tables):
    for split, table in tables.items():
        copy_images(table, root / "images" / split)
        paths = [f"images/{split}/{path}" for path in table.image_paths]
        write_annotations("yolo", replace(table, root=root, image_paths=paths), root, split, allow_loss=True)


def make_voc(root, tables):
    """Write a VOC set whose images are behind a link, as on many clusters."""
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


MAKERS = {"coco": make_coco, "yolo": make_yolo, "voc": make_voc, "csv": make_csv, "image_folder": make_image_folder}
