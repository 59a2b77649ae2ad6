"""Keypoint schemas: the names of an object's points, their mirror pairs, and the pair that normalizes errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from lit_loader.annotations.columns import checked_names

__all__ = ["KEYPOINT_SCHEMAS", "KeypointSchema", "keypoint_schema"]

_KEYS: Final = ("names", "flip_pairs", "normalization_pair")


@dataclass(frozen=True, kw_only=True)
class KeypointSchema:
    """Names of K points and their relations.

    All sequences are converted to tuples.

    Attributes:
        names: One name per point, in the order of the table's columns.
        flip_pairs: Positions of points that are each other's mirror image (left eye, right eye). A point without a
            pair is its own mirror image (nose), or has none.
        normalization_pair: Positions of the two points whose distance normalizes errors, or None.

    Raises:
        ValueError: If ``names`` is empty, a name is empty or a duplicate, or a position does not exist, is in two
            pairs or is paired with itself.
        TypeError: If a name is not a string or a position not an int.
    """

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
    normalization_pair: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        names = checked_names("names", self.names)
        if not names:
            raise ValueError("names is empty; a schema has at least 1 point")
        pairs = tuple(self._pair(pair, "flip_pairs") for pair in self.flip_pairs)
        for position, times in Counter(chain(*pairs)).items():
            if times > 1:
                raise ValueError(f"flip_pairs has position {position} twice; a point has one mirror image")
        # The dataclass is frozen, and lists are converted to tuples so that a schema is hashable.
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "flip_pairs", pairs)
        if self.normalization_pair is not None:
            pair = self._pair(self.normalization_pair, "normalization_pair")
            object.__setattr__(self, "normalization_pair", pair)

    def columns(self) -> dict[str, Any]:
        """Return the arguments of an `AnnotationTable` that describe its keypoints."""
        return {
            "keypoint_names": self.names,
            "flip_pairs": self.flip_pairs,
            "normalization_pair": self.normalization_pair,
        }

    def _pair(self, pair: Any, field_name: str) -> tuple[int, int]:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(f"expected two positions in {field_name}, got {pair!r}")
        for position in pair:
            # `bool` is a subclass of `int`, and True would silently mean position 1.
            if isinstance(position, bool) or not isinstance(position, int | np.integer):
                raise TypeError(f"positions in {field_name} must be int, got {position!r}")
            if not 0 <= position < len(self.names):
                raise ValueError(f"{field_name} has position {position}, but there are {len(self.names)} points")
        first, second = map(int, pair)
        if first == second:
            raise ValueError(f"{field_name} pairs position {first} with itself; leave this point out")
        return first, second


def keypoint_schema(spec: str | KeypointSchema | Mapping[str, Any] | int) -> KeypointSchema:
    """Return the schema that ``spec`` describes.

    Args:
        spec: A name in ``KEYPOINT_SCHEMAS``; a schema; a mapping with ``names`` and optionally ``flip_pairs`` and
            ``normalization_pair``, whose points are positions or names; or the number of points, which are then named
            "00", "01", ... and have no pairs.

    Raises:
        ValueError: If the name is unknown, or the mapping has other keys or invalid values.
        TypeError: If ``spec`` has another type.
    """
    if isinstance(spec, KeypointSchema):
        return spec
    if isinstance(spec, str):
        if spec not in KEYPOINT_SCHEMAS:
            raise ValueError(f"unknown schema={spec!r}; known schemas: {', '.join(sorted(KEYPOINT_SCHEMAS))}")
        return KEYPOINT_SCHEMAS[spec]
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    # `bool` is a subclass of `int`, and True would silently mean one point.
    if isinstance(spec, bool) or not isinstance(spec, int):
        raise TypeError(
            f"expected schema as a name, a KeypointSchema, a mapping with names, or the number of points, got {spec!r} "
            f"({type(spec).__name__})"
        )
    if spec < 1:
        raise ValueError(f"schema={spec} points; a schema has at least 1 point")
    return KeypointSchema(names=_numbered(spec))


def _from_mapping(values: Mapping[str, Any]) -> KeypointSchema:
    # A typo such as flip_pair would otherwise mean a schema without mirror images.
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        raise ValueError(f"schema has an unknown key {unknown[0]!r}; expected {', '.join(_KEYS)}")
    if "names" not in values:
        raise ValueError("schema has no names; add one name per point")
    # The names are checked first, because pairs refer to them.
    names = checked_names("names", values["names"])
    normalization_pair = values.get("normalization_pair")
    return KeypointSchema(
        names=names,
        flip_pairs=tuple(_positions(pair, names) for pair in values.get("flip_pairs") or ()),
        normalization_pair=None if normalization_pair is None else _positions(normalization_pair, names),
    )


def _positions(pair: Any, names: tuple[str, ...]) -> Any:
    """Replace names in a pair by their positions; the schema checks everything else."""
    if isinstance(pair, str) or not isinstance(pair, Sequence):
        return pair
    # Names are looked up here and not in the schema, which only knows positions.
    unknown = [point for point in pair if isinstance(point, str) and point not in names]
    if unknown:
        raise ValueError(f"a pair of the schema has {unknown[0]!r}, which is not one of its names")
    return tuple(names.index(point) if isinstance(point, str) else point for point in pair)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"{position:02d}" for position in range(count))


def _facing(first: int, last: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return ``count`` pairs from the ends inwards: (first, last), (first + 1, last - 1), ..."""
    return tuple((first + step, last - step) for step in range(count))


_FACE_5 = KeypointSchema(
    names=("left_eye", "right_eye", "nose", "left_mouth", "right_mouth"),
    flip_pairs=((0, 1), (3, 4)),
    normalization_pair=(0, 1),
)

# Positions of the pairs follow the mark-up's figure; points on the mirror axis have no pair.
_FACE_68 = KeypointSchema(
    names=_numbered(68),
    flip_pairs=(
        *_facing(0, 16, 8),  # jaw; 8 is the chin
        *_facing(17, 26, 5),  # brows
        *_facing(31, 35, 2),  # nostrils; 27 to 30 are the bridge, 33 the base
        *_facing(36, 45, 4),  # eyes, outer to inner corner over the upper lid
        *_facing(40, 47, 2),  # lower lids
        *_facing(48, 54, 3),  # outer lip, above; 51 in the middle
        *_facing(55, 59, 2),  # outer lip, below; 57 in the middle
        *_facing(60, 64, 2),  # inner lip, above; 62 in the middle
        *_facing(65, 67, 1),  # inner lip, below; 66 in the middle
    ),
    normalization_pair=(36, 45),
)

_FACE_98 = KeypointSchema(
    names=_numbered(98),
    flip_pairs=(
        *_facing(0, 32, 16),  # jaw; 16 is the chin
        *_facing(33, 46, 5),  # brows, upper edges
        *_facing(38, 50, 4),  # brows, lower edges
        *_facing(55, 59, 2),  # nostrils; 51 to 54 are the bridge, 57 the base
        *_facing(60, 72, 5),  # eyes, outer to inner corner over the upper lid
        *_facing(65, 75, 3),  # lower lids
        *_facing(76, 82, 3),  # outer lip, above; 79 in the middle
        *_facing(83, 87, 2),  # outer lip, below; 85 in the middle
        *_facing(88, 92, 2),  # inner lip, above; 90 in the middle
        *_facing(93, 95, 1),  # inner lip, below; 94 in the middle
        *_facing(96, 97, 1),  # pupils
    ),
    normalization_pair=(60, 72),
)

_COCO_17 = KeypointSchema(
    names=(
        "nose",
        *("left_eye", "right_eye", "left_ear", "right_ear"),
        *("left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist"),
        *("left_hip", "right_hip", "left_knee", "right_knee", "left_ankle", "right_ankle"),
    ),
    flip_pairs=tuple((left, left + 1) for left in range(1, 17, 2)),
)

KEYPOINT_SCHEMAS: Final[Mapping[str, KeypointSchema]] = MappingProxyType(
    {"coco_17": _COCO_17, "face_5": _FACE_5, "face_68": _FACE_68, "face_98": _FACE_98}
)
"""Schemas by name.

- ``face_5``: eye centres, nose tip, mouth corners; "left" is the image's left, as in RetinaFace's lists. Errors are
  normalized by the distance between the eye centres.
- ``face_68``: the iBUG 300-W mark-up, numbered from 0, as dlib writes it; outer eye corners 36 and 45.
- ``face_98``: the WFLW mark-up, numbered from 0; outer eye corners 60 and 72.
- ``coco_17``: COCO's person keypoints; "left" is the person's left. Errors are measured by OKS, so the
  schema has no normalization pair.

Source:
    Sagonas et al. 2013, 300 Faces in-the-Wild Challenge; Wu et al. 2018, Look at Boundary (WFLW); Deng et al.
    2019, RetinaFace; Lin et al. 2014, Microsoft COCO, and the COCO keypoint task's definition.
"""
