"""Objects of annotation tables, drawn by class weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.samplers.weighted import AliasTable
from lit_loader.types import IndexArray

__all__ = ["ClassWeights", "ObjectPool", "pasted_by_image"]

ClassWeights = Mapping[str, float] | Literal["balanced"]
"""Weight of each class by its name, or ``"balanced"`` for equal weights of all classes with objects."""


class ObjectPool:
    """Draw a class in proportion to its weight, then one of its objects uniformly; a `PartnerPool`.

    Crowds, boxes without area in their image, and objects without a mask in a table with masks are never drawn. The
    alias table is built at the first draw and takes 8 bytes an object.

    Runs in: the main process; a pickled copy builds its alias table again.

    Args:
        tables: The tables of the data set, one after the other.
        weights: Weights of the classes.

    Attributes:
        shares: Probability of each class of the tables, by name.

    Raises:
        SettingError: A weight is for an unknown class or for one without objects, or no object has a positive weight.
    """

    def __init__(self, tables: Sequence[AnnotationTable], weights: ClassWeights) -> None:
        self._tables = tuple(tables)
        if not self._tables:
            rule = "needs the annotation tables of lit_loader's data sets, and this data set has none"
            raise SettingError("class_weights", weights, rule, settings={"class_weights": None})
        counts = _class_counts(self._tables)
        class_weights = _weights_by_name(weights, counts)
        total = sum(class_weights.values())
        if not total:
            rule = "needs an object that is not a crowd, and the data set has none"
            raise SettingError("class_weights", weights, rule, settings={"class_weights": None})
        self.shares = {name: class_weights.get(name, 0) / total for name in counts}
        # Equal probabilities for all objects of a class.
        self._object_weights = {name: self.shares[name] / max(count, 1) for name, count in counts.items()}
        self._alias_table: AliasTable | None = None
        self._offsets: IndexArray | None = None

    def draw(self, key: int, start: int, stop: int) -> tuple[IndexArray, IndexArray]:
        """Return draws number ``start`` to ``stop - 1``; see `lit_loader.mixing.PartnerPool`."""
        if self._alias_table is None or self._offsets is None:
            self._alias_table = AliasTable(np.concatenate([self._weights_of(table) for table in self._tables]))
            self._offsets = _image_offsets(self._tables)
        objects = self._alias_table.draw(key, start, stop)
        # `side="right"` skips images without objects, whose offsets are equal.
        images = np.searchsorted(self._offsets, objects, side="right") - 1
        return images, objects - self._offsets[images]

    def _weights_of(self, table: AnnotationTable) -> npt.NDArray[np.float64]:
        weights = np.array([self._object_weights[name] for name in table.class_names], dtype=np.float64)
        return np.where(_can_be_pasted(table), weights[table.labels], 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_alias_table": None, "_offsets": None}


def _weights_by_name(weights: ClassWeights, counts: Mapping[str, int]) -> Mapping[str, float]:
    """Return the weight of each class with a weight.

    Args:
        weights: The setting.
        counts: Number of objects of each class that can be pasted.

    Raises:
        SettingError: A class with a weight is unknown, or has no objects.
    """
    if weights == "balanced":
        return {name: 1.0 for name, count in counts.items() if count}
    class_weights: Mapping[str, float] = dict(weights)
    for name, weight in class_weights.items():
        if name not in counts:
            raise SettingError("class_weights", class_weights, f"has {name!r}, but the classes are {[*counts]}")
        if weight and not counts[name]:
            remedy = f"remove {name!r}, or set its weight to 0"
            raise SettingError("class_weights", class_weights, f"has {name!r}, but this class has no objects", remedy)
    return class_weights


def pasted_by_image(tables: Sequence[AnnotationTable], visits: npt.ArrayLike | None) -> dict[str, float]:
    """Return the expected number of objects of each class if one object of every visited image is drawn.

    Args:
        tables: The tables of the data set, one after the other.
        visits: Expected visits of each image, ``(num_images,)``; None for one visit each. An image without objects to
            draw adds nothing.
    """
    num_images = sum(table.num_images for table in tables)
    image_weights = np.ones(num_images) if visits is None else np.asarray(visits, dtype=np.float64)
    totals = dict.fromkeys(_class_counts(tables), 0.0)
    first = 0
    for table in tables:
        rows = np.flatnonzero(_can_be_pasted(table))
        images = table.image_of_object()[rows]
        num_objects = np.bincount(images, minlength=table.num_images)
        weights = image_weights[first + images] / num_objects[images]
        per_class = np.bincount(table.labels[rows], weights=weights, minlength=table.num_classes)
        for name, weight in zip(table.class_names, per_class.tolist(), strict=True):
            totals[name] += weight
        first += table.num_images
    return totals


def _can_be_pasted(table: AnnotationTable) -> npt.NDArray[np.bool_]:
    """Return True for each object with an area inside its image, and a mask if the table has masks, and no crowd."""
    images = table.image_of_object()
    sizes = np.stack([table.widths, table.heights], axis=1)
    # A size of 0 is unknown.
    limits = np.where(sizes == 0, np.inf, sizes)[images]
    sides = np.minimum(table.boxes[:, 2:], limits) - np.maximum(table.boxes[:, :2], 0)
    result: npt.NDArray[np.bool_] = np.logical_and(np.all(sides > 0, axis=1), ~table.crowd)
    if table.masks is not None:
        result &= (np.diff(table.masks.part_offsets) > 0) | (np.diff(table.masks.run_offsets) > 0)
    return result


def _class_counts(tables: Sequence[AnnotationTable]) -> dict[str, int]:
    """Return the number of objects of each class that can be pasted, in the order of the classes."""
    counts: dict[str, int] = {}
    for table in tables:
        labels = table.labels[_can_be_pasted(table)]
        for name, count in zip(
            table.class_names, np.bincount(labels, minlength=table.num_classes).tolist(), strict=True
        ):
            counts[name] = counts.get(name, 0) + count
    return counts


def _image_offsets(tables: Sequence[AnnotationTable]) -> IndexArray:
    """Return the first object of each image of all tables, and the number of objects."""
    if len(tables) == 1:
        return tables[0].offsets
    first_objects = np.cumsum([0, *(table.num_objects for table in tables)])
    parts = [table.offsets[:-1] + first for table, first in zip(tables, first_objects[:-1], strict=True)]
    return np.concatenate([*parts, first_objects[-1:]])
