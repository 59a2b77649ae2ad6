"""A tiny set of drawn images with boxes, points and an attribute, its tables written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.datasets import TableSource

CLASSES = ("common", "rare", "pointless")
POINTS = ("left", "right", "middle")
FINISHES = ("plain", "dotted", "hollow")
SIZE = (64, 48)  # width, height


class DrawnSource(TableSource):
    """One table, or a list of tables, for each stage."""

    def __init__(self, **tables: AnnotationTable | list[AnnotationTable]) -> None:
        self.given = tables

    def prepare(self) -> None:
        pass

    def tables(self, stage):
        tables = self.given.get(stage, [])
        return tables if isinstance(tables, list) else [tables]


def draw_set(root: Path, *, num_images: int = 12, seed: int = 0, objects: int | None = None, **columns):
    """Draw images whose objects are dark boxes with a bright 3 x 3 mark at each point, and return the table.

    Image i has i % 4 objects unless ``objects`` says otherwise. The third class has no points; of the others
    every fourth lacks the middle one. Every fifth object has no finish.
    """
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    counts = [i % 4 if objects is None else objects for i in range(num_images)]
    boxes = []
    labels = []
    points = []
    visibility = []
    finishes = []
    for i, count in enumerate(counts):
        pixels = np.full((SIZE[1], SIZE[0], 3), 150, dtype=np.uint8)
        marked = []
        for _ in range(count):
            row = len(labels)
            width, height = rng.integers(14, 22, 2)
            left = rng.integers(1, SIZE[0] - width - 1)
            top = rng.integers(1, SIZE[1] - height - 1)
            label = [0, 0, 1, 0, 2][row % 5]
            marks = [(left + 3, top + 4), (left + width - 4, top + 4), (left + width // 2, top + height - 5)]
            states = [0, 0, 0] if label == 2 else [2, 1, 0 if row % 4 == 3 else 2]
            pixels[top : top + height, left : left + width] = (20 + 40 * label, 30, 10)
            marked += [mark for mark, state in zip(marks, states, strict=True) if state]
            boxes.append([left, top, left + width, top + height])
            labels.append(label)
            points.append([(x + 0.5, y + 0.5) if s else (0, 0) for (x, y), s in zip(marks, states, strict=True)])
            visibility.append(states)
            finishes.append(-1 if row % 5 == 4 else [0, 0, 0, 1, 0, 0, 2][row % 7])
        for x, y in marked:  # after all boxes, so that no object hides another one's
            pixels[y - 1 : y + 2, x - 1 : x + 2] = 255
        Image.fromarray(pixels).save(root / f"{i}.png")
    default_columns = {
        "root": root,
        "image_paths": [f"{i}.png" for i in range(num_images)],
        "class_names": CLASSES,
        "widths": [SIZE[0]] * num_images,
        "heights": [SIZE[1]] * num_images,
        "offsets": np.cumsum([0, *counts]),
        "boxes": np.reshape(np.array(boxes, dtype=np.float32), (-1, 4)),
        "labels": labels,
        "keypoints": np.reshape(np.array(points, dtype=np.float32), (-1, 3, 2)),
        "visibility": np.reshape(np.array(visibility, dtype=np.uint8), (-1, 3)),
        "keypoint_names": POINTS,
        "flip_pairs": [(0, 1)],
        "attributes": {"finish": Attribute(ids=np.array(finishes, dtype=np.int64), names=FINISHES)},
    }
    return AnnotationTable(**(default_columns | columns))


def drawn_source(root: Path) -> DrawnSource:
    """Return a source with sets of 24, 8 and 8 images."""
    train = draw_set(root / "train", num_images=24, seed=1)
    val, test = draw_set(root / "val", num_images=8, seed=2), draw_set(root / "test", num_images=8, seed=3)
    return DrawnSource(train=train, val=val, test=test, predict=test)
