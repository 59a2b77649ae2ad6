"""Counts of a table: images, objects, classes, attributes, points, flags and problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import sorted_unique
from lit_loader.annotations.table import AnnotationTable

__all__ = ["HIGH_IMBALANCE", "POINT_STATES", "figures_of", "imbalance_of"]

HIGH_IMBALANCE: Final = 10.0
"""Imbalance of classes from which ``lit-loader check`` reports it."""

POINT_STATES: Final = {"visible": 2, "hidden": 1, "absent": 0}
"""Values of ``visibility`` by name."""

_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")


def imbalance_of(table: AnnotationTable) -> float | None:
    """Return the ratio of objects of the most frequent class to objects of the rarest class that occurs, or None."""
    counts = table.class_counts()
    present = counts[counts > 0]  # a class that occurs in another set only would make the ratio infinite
    return float(present.max() / present.min()) if present.size else None


def figures_of(table: AnnotationTable) -> dict[str, Any]:
    """Return the figures of a table as values for JSON.

    Returns:
        ``images``, ``empty_images``, ``objects``; ``oriented_objects``: objects with an oriented box; ``imbalance``:
        see `imbalance_of`; ``image_size``: smallest and largest ``width`` and ``height``, and the number of ``unknown``
        sizes; ``classes``: ``objects`` and ``images`` of each class; ``attributes``: objects of each value, and
        ``objects_without``; ``keypoints``: objects in which each point is ``visible``, ``hidden`` or ``absent``;
        ``objects_with_points``; ``flags``: objects with each flag that occurs; ``problems``: those that the reader
        reported.
    """
    counts = table.class_counts()
    # One number for each pair of image and class, so that an image counts once per class.
    pairs = sorted_unique(table.image_of_object() * max(1, table.num_classes) + table.labels)
    images = _counts(pairs % max(1, table.num_classes), table.class_names)
    has_size = (table.widths > 0) & (table.heights > 0)
    points = np.zeros((0, 0)) if table.visibility is None else table.visibility
    return {
        "images": table.num_images,
        "empty_images": int((np.diff(table.offsets) == 0).sum()),
        "objects": table.num_objects,
        "oriented_objects": int(table.has_orientation().sum()),
        "imbalance": imbalance_of(table),
        "image_size": {
            "width": _range(table.widths[has_size]),
            "height": _range(table.heights[has_size]),
            "unknown": int((~has_size).sum()),
        },
        "classes": {
            name: {"objects": int(n), "images": images[name]} for name, n in zip(table.class_names, counts, strict=True)
        },
        "attributes": {
            name: {
                "values": _counts(attribute.ids[attribute.ids >= 0], attribute.names),
                "objects_without": int((attribute.ids < 0).sum()),
            }
            for name, attribute in table.attributes.items()
        },
        "keypoints": {
            name: {state: int((points[:, k] == value).sum()) for state, value in POINT_STATES.items()}
            for k, name in enumerate(table.keypoint_names)
        },
        "objects_with_points": int((points > 0).any(axis=1).sum()),
        "flags": {flag: int(n) for flag in _FLAGS if (n := getattr(table, flag).sum())},
        "problems": table.report.to_dict(),
    }


def _counts(ids: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    return dict(zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True))


def _range(sizes: npt.NDArray[Any]) -> list[int] | None:
    return [int(sizes.min()), int(sizes.max())] if sizes.size else None
