"""Attributes and their values in the order that a file lists them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lit_loader.annotations.table import AnnotationTable, Attribute

__all__ = ["with_listed_values"]


def with_listed_values(table: AnnotationTable, listed: Mapping[str, Sequence[str]]) -> AnnotationTable:
    """Return the table with its attributes as listed; what is not listed follows.

    Args:
        table: A table that came from no cache file.
        listed: For each attribute its values in the order of their ids.
    """
    order = [*(name for name in listed if name in table.attributes), *table.attributes]
    attributes = {}
    for name in dict.fromkeys(order):
        attribute = table.attributes[name]
        names = tuple(dict.fromkeys([*listed.get(name, ()), *attribute.names]))
        places = {value: place for place, value in enumerate(names)}
        lookup = np.array([*(places[value] for value in attribute.names), -1], dtype=np.int64)
        attributes[name] = Attribute(ids=lookup[attribute.ids], names=names)
    if not attributes:
        return table
    return AnnotationTable(
        root=table.root,
        image_paths=table.image_paths,
        image_ids=table.image_ids,
        class_names=table.class_names,
        widths=table.widths,
        heights=table.heights,
        offsets=table.offsets,
        boxes=table.boxes,
        labels=table.labels,
        difficult=table.difficult,
        truncated=table.truncated,
        occluded=table.occluded,
        crowd=table.crowd,
        keypoints=table.keypoints,
        visibility=table.visibility,
        keypoint_names=table.keypoint_names,
        flip_pairs=table.flip_pairs,
        interocular=table.interocular,
        attributes=attributes,
        split=table.split,
        report=table.report,
    )
