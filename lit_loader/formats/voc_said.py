"""What the ``<schema>`` of all files of a VOC set say together; files that contradict each other are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.keypoint_union import unite_keypoints
from lit_loader.formats.table_room import MAX_ATTRIBUTE_NAMES, MAX_POINT_NAMES, lacks_room
from lit_loader.formats.voc_columns import VocColumns
from lit_loader.formats.voc_schema import VocSchema

__all__ = ["check_room", "unite_schemas"]


def unite_schemas(
    columns: VocColumns,
    *,
    schema: KeypointSchema | None,
    class_names: tuple[str, ...] | None,
    keypoints: bool,
    mismatch: Callable[[int, str], None],
) -> VocSchema:
    """Return the classes, points and attributes of a set, whether its files say them or not.

    Args:
        columns: What the files say.
        schema: The points, where the caller says them.
        class_names: The classes, where the caller says them.
        keypoints: Whether points are read at all.
        mismatch: Called with a file's position and a message for each file that contradicts one before.
    """
    said = _Said()
    for place, found in enumerate(columns.schemas):  # in the order of the first file that says each
        message = said.add(
            VocSchema(
                class_names=found.class_names if class_names is None else (),
                keypoints=found.keypoints if schema is None and keypoints else None,
                attributes=found.attributes,
            )
        )
        if message is not None:
            for file in np.flatnonzero(columns.schema_ids == place).tolist():
                mismatch(file, message)
    names = said.class_names if class_names is None else list(class_names)
    points = schema if schema is not None else said.keypoints
    occurring_points = sorted(columns.points.names)
    if keypoints and points is None and 0 < len(occurring_points) <= MAX_POINT_NAMES:
        points = KeypointSchema(names=tuple(occurring_points))
    occurring: dict[str, list[str]] = {}
    for name, value in columns.attributes.pairs:
        occurring.setdefault(name, []).append(value)
    order = [*said.attributes, *sorted(occurring.keys() - said.attributes.keys())]
    return VocSchema(
        class_names=tuple(names if class_names is not None else _appended(names, columns.names)),
        keypoints=points if keypoints else None,
        attributes=tuple(
            (name, tuple(_appended(said.attributes.get(name, []), occurring.get(name, [])))) for name in order
        ),
    )


def check_room(columns: VocColumns, said: VocSchema, *, keypoints: bool, root: Path) -> None:
    """Refuse a set whose names would make a table far larger than its files.

    See ``table_room.py``, NOTE [why cells are bounded].

    Raises:
        AnnotationError: Names the root, since no single file is to blame.
    """
    names_of_points = columns.points.names if said.keypoints is None else said.keypoints.names
    points = len(names_of_points) if keypoints else 0
    for what, names, limit, entries in (
        ("keypoints", points, MAX_POINT_NAMES, columns.points.objects),
        ("attributes", len(said.attributes), MAX_ATTRIBUTE_NAMES, columns.attributes.objects),
    ):
        problem = lacks_room(names=names, objects=len(columns.positions), written=len(entries))
        if names > limit:
            problem = f"{names} names are more than {limit}"
        if problem is not None:
            message = f"{what}: {problem}; correct the names, or pass {what}=False"
            raise AnnotationError(message, path=root)


class _Said:
    """What the files before have said."""

    def __init__(self) -> None:
        self.class_names: list[str] = []
        self.keypoints: KeypointSchema | None = None
        self.attributes: dict[str, list[str]] = {}
        self._first_values: dict[str, tuple[str, ...]] = {}
        self._first_classes: tuple[str, ...] = ()
        self._first_keypoints: KeypointSchema | None = None

    def add(self, other: VocSchema) -> str | None:
        """Unite with another schema; return a message if it says otherwise than the first of each part."""
        messages: list[str] = []
        if other.class_names:
            self._first_classes = self._first_classes or other.class_names
            self._compare("classes", self._first_classes, other.class_names, messages)
            self.class_names = _united(self.class_names, other.class_names)
        if other.keypoints is not None:
            self._first_keypoints = self._first_keypoints or other.keypoints
            first, points = self._first_keypoints, other.keypoints
            self._compare("points", first.names, points.names, messages)
            if first.names == points.names and first != points:
                messages.append(
                    f"mirror {points.flip_pairs} and interocular {points.interocular} of the points, where a "
                    f"file before says {first.flip_pairs} and {first.interocular}"
                )
            self.keypoints = points if self.keypoints is None else unite_keypoints([self.keypoints, points])
        for name, values in other.attributes:
            first_values = self._first_values.setdefault(name, values)
            self._compare(f"values of attribute {name!r}", first_values, values, messages)
            self.attributes[name] = _united(self.attributes.get(name, []), values)
        if not messages:
            return None
        return shorten(f"<schema> says {'; '.join(messages)}")

    @staticmethod
    def _compare(what: str, first: tuple[str, ...], other: tuple[str, ...], messages: list[str]) -> None:
        if first != other:
            messages.append(f"{what} {_short(other)}, where a file before says {_short(first)}")


def _short(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 120 else f"{text[:120]}... ({len(names)})"


def _united(names: Sequence[str], others: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*names, *others]))


def _appended(names: Sequence[str], occurring: Iterable[str]) -> list[str]:
    """Append what occurs and is not listed, sorted."""
    return [*names, *sorted(set(occurring) - set(names))]
