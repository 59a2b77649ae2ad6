"""Random objects in tiled images, and the predictions of a model that makes no mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.callbacks.prediction_files import Prediction


def object_table(boxes, labels=None, *, size, num_classes=1, **columns):
    """Return a table of one image, whose size is (width, height)."""
    boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    return AnnotationTable(
        root=Path("/nowhere"),
        image_paths=["a.jpg"],
        class_names=[f"class {number}" for number in range(num_classes)],
        widths=[size[0]],
        heights=[size[1]],
        offsets=[0, len(boxes)],
        boxes=boxes,
        labels=np.zeros(len(boxes), np.int64) if labels is None else labels,
        **columns,
    )


def random_objects(seed, *, sides, num_objects, num_classes=1):
    """Return a table of one random image with objects of random sides, clipped to it."""
    rng = np.random.default_rng(seed)
    size = rng.integers(60, 400, 2)
    centres = rng.uniform(0, 1, (num_objects, 2)) * size
    half = rng.uniform(*sides, (num_objects, 2)) / 2
    boxes = np.concatenate([centres - half, centres + half], axis=1).clip(0, np.tile(size, 2))
    boxes = boxes[(boxes[:, 2:] - boxes[:, :2] >= 2).all(axis=1)]
    labels = rng.integers(0, num_classes, len(boxes))
    return object_table(boxes, labels, size=size, num_classes=num_classes)


def perfect_predictions(tiles, scores=None):
    """Return the objects of each tile as predictions by row of the tile.

    Args:
        tiles: Table of tiles.
        scores: ``(num_objects,)`` of the tiles, or None for ones.
    """
    scores = np.ones(tiles.num_objects) if scores is None else np.asarray(scores)
    predictions = {}
    for row in range(tiles.num_images):
        rows = tiles.objects(row)
        predictions[row] = Prediction(
            labels=tiles.labels[rows], scores=scores[rows].astype(np.float32), boxes=tiles.boxes[rows]
        )
    return predictions
