"""The columns of an annotation table: their types, their defaults, and that nobody changes them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import ReadReport
from lit_loader.annotations.table_checks import check_columns, frozen_array
from lit_loader.annotations.table_file import PER_OBJECT, Attribute, TableParts
from lit_loader.annotations.text_column import TextColumn
from lit_loader.types import IndexArray

__all__ = ["TableColumns"]


class TableColumns:
    """What an AnnotationTable is made of; its docstring says what each column holds.

    Raises:
        ValueError: If columns contradict each other; names the column.
        UnsafePathError: If an image path is absolute or leaves the root.
    """

    def __init__(
        self,
        *,
        root: Path | str,
        image_paths: Sequence[str],
        class_names: Sequence[str],
        offsets: npt.ArrayLike,
        boxes: npt.ArrayLike,
        labels: npt.ArrayLike,
        image_ids: Sequence[str] | None = None,
        widths: npt.ArrayLike | None = None,
        heights: npt.ArrayLike | None = None,
        difficult: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        occluded: npt.ArrayLike | None = None,
        crowd: npt.ArrayLike | None = None,
        keypoints: npt.ArrayLike | None = None,
        visibility: npt.ArrayLike | None = None,
        keypoint_names: Sequence[str] = (),
        flip_pairs: Sequence[tuple[int, int]] = (),
        interocular: tuple[int, int] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        split: str | None = None,
        report: ReadReport | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        self.class_names = tuple(class_names)
        self.keypoint_names = tuple(keypoint_names)
        self.flip_pairs = tuple(_pair(pair) for pair in flip_pairs)
        self.interocular = None if interocular is None else _pair(interocular)
        self.split = split
        self.report = ReadReport() if report is None else report
        self.image_paths = _text(image_paths)
        self.image_ids = self.image_paths if image_ids is None else _text(image_ids)
        self.offsets: IndexArray = frozen_array(offsets, np.int64, name="offsets")
        self.boxes: npt.NDArray[np.float32] = frozen_array(
            boxes, np.float32, name="boxes", empty_shape=(0, 4)
        )
        self.labels: IndexArray = frozen_array(labels, np.int64, name="labels")
        images, objects = len(self.image_paths), len(self.labels)
        self.widths: npt.NDArray[np.int32] = frozen_array(widths, np.int32, name="widths", rows=images)
        self.heights: npt.NDArray[np.int32] = frozen_array(heights, np.int32, name="heights", rows=images)
        self.difficult = _flags(difficult, name="difficult", rows=objects)
        self.truncated = _flags(truncated, name="truncated", rows=objects)
        self.occluded = _flags(occluded, name="occluded", rows=objects)
        self.crowd = _flags(crowd, name="crowd", rows=objects)
        self.keypoints: npt.NDArray[np.float32] | None = (
            None if keypoints is None else frozen_array(keypoints, np.float32, name="keypoints")
        )
        self.visibility: npt.NDArray[np.uint8] | None = (
            None if visibility is None else frozen_array(visibility, np.uint8, name="visibility")
        )
        self.attributes: Mapping[str, Attribute] = MappingProxyType(
            {
                name: Attribute(ids=frozen_array(a.ids, np.int64, name=name), names=tuple(a.names))
                for name, a in (attributes or {}).items()
            }
        )
        check_columns(self._parts())
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_sealed", False):
            raise AttributeError(f"{type(self).__name__} is immutable ({name!r}); build another one")
        super().__setattr__(name, value)

    def _parts(self) -> TableParts:
        """Return the arguments that build this table again."""
        return {name: getattr(self, name) for name in _ARGUMENTS}


_ARGUMENTS = (
    *("root", "image_paths", "image_ids", "class_names", "widths", "heights", "offsets", *PER_OBJECT),
    *("keypoint_names", "flip_pairs", "interocular", "attributes", "split", "report"),
)


def _pair(pair: tuple[int, int]) -> tuple[int, int]:
    a, b = pair
    return operator.index(a), operator.index(b)


def _text(strings: Sequence[str]) -> TextColumn:
    return strings if isinstance(strings, TextColumn) else TextColumn.from_strings(strings)


def _flags(values: npt.ArrayLike | None, *, name: str, rows: int) -> npt.NDArray[np.bool_]:
    return frozen_array(values, np.bool_, name=name, rows=rows)
