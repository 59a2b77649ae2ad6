"""Sets with defects at known places, and the findings of their check."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.inspection import CheckSettings, Findings, check_tables
from lit_loader.inspection.kinds import KINDS

SIZE = (100, 80)  # width, height


def draw_noise(path: Path, seed: int, *, size: tuple[int, int] = SIZE, **options) -> None:
    """Write an image that differs for each seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(size).save(path, **options)


def box_table(root: Path, boxes, *, labels=None, class_names=None, size=SIZE, **columns) -> AnnotationTable:
    """Return a table of one image with these boxes, or of one image for each list of boxes."""
    boxes_of_images = boxes if boxes and isinstance(boxes[0][0], (list, tuple)) else [boxes]
    labels = [0] * sum(map(len, boxes_of_images)) if labels is None else labels
    counts = [len(image_boxes) for image_boxes in boxes_of_images]
    flat_boxes = np.array([box for image_boxes in boxes_of_images for box in image_boxes], dtype=np.float32)
    defaults = {
        "root": root,
        "image_paths": [f"{i}.png" for i in range(len(counts))],
        "class_names": class_names or ("cat", "dog")[: max(labels, default=0) + 1],
        "widths": [size[0]] * len(counts),
        "heights": [size[1]] * len(counts),
        "offsets": np.cumsum([0, *counts]),
        "boxes": flat_boxes.reshape(-1, 4),
        "labels": labels,
    }
    return AnnotationTable(**(defaults | columns))


def point_table(root: Path, points, schema, *, size=(1000, 1000), present=None, **columns) -> AnnotationTable:
    """Return a table with an image for each object; ``points`` are ``(num_objects, K, 2)``."""
    points = np.asarray(points, dtype=np.float32)
    present = np.ones(points.shape[:2], dtype=np.bool_) if present is None else np.asarray(present)
    boxes = [[[0, 0, size[0] / 2, size[1] / 2]] for _ in points]
    shape = {"keypoints": np.where(present[..., None], points, 0), "visibility": present.astype(np.uint8) * 2}
    return box_table(root, boxes, size=size, class_names=("face",), **shape, **schema.columns(), **columns)


def check_annotations(*tables: AnnotationTable, **settings) -> Findings:
    """Return the findings about tables without image files, called ``0``, ``1``, ..."""
    # Without files, every image is missing.
    settings = {"decode": False, "ignored_kinds": ["missing_image"], **settings}
    named_tables = {str(number): table for number, table in enumerate(tables)}
    return check_tables(named_tables, settings=CheckSettings(**settings), num_workers=0, progress=False)


def counts_of(findings: Findings) -> Counter[str]:
    """Return the number of findings of each kind, without the notes about sets."""
    counts: Counter[str] = Counter()
    for (kind, severity, _), count in findings.counts.items():
        if severity != "note" or kind in ("whole_image_box", "mirrored_points"):
            counts[kind] += count
    return counts


def assert_known_kinds(findings: Findings) -> None:
    """Check that every finding is of a kind with a rule and a remedy."""
    for finding in findings:
        assert finding.kind in KINDS
        assert finding.remedy == KINDS[finding.kind].remedy
        assert finding.message
