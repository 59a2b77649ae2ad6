"""Keypoint schemas: the names of an object's points, their mirror pairs, limbs, and the scale of their errors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from lit_loader.annotations.columns import checked_names

__all__ = [
    "KEYPOINT_SCHEMAS",
    "KeypointSchema",
    "common_schema",
    "keypoint_schema",
    "known_by_names",
    "names_without_mirror",
]

_OPPOSITE_WORDS: Final = {"left": "right", "right": "left", "l": "r", "r": "l"}
_KEYS: Final = ("names", "flip_pairs", "normalization_pair", "sigmas", "skeleton")


@dataclass(frozen=True, kw_only=True)
class KeypointSchema:
    """Names of K points and their relations.

    All sequences are converted to tuples.

    Attributes:
        names: One name per point, in the order of the table's columns.
        flip_pairs: Positions of points that are each other's mirror image (left eye, right eye). A point without a
            pair is its own mirror image (nose), or has none.
        normalization_pair: Positions of the two points whose distance normalizes errors, or None.
        sigmas: One number per point for the object keypoint similarity (OKS): the standard deviation of annotators,
            relative to the root of the object's area. Empty if unknown.
        skeleton: Positions of the points that a drawing connects by a line, one pair per line. A repeated pair, in
            either order, is dropped.

    Raises:
        ValueError: If ``names`` is empty, a name is empty or a duplicate; a position does not exist, is paired with
            itself or is in two of ``flip_pairs``; or ``sigmas`` are not one finite positive number per point.
        TypeError: If a name is not a string, a position not an int or a sigma not a number.
    """

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
    normalization_pair: tuple[int, int] | None = None
    sigmas: tuple[float, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()

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
        object.__setattr__(self, "sigmas", self._checked_sigmas())
        edge_by_ends: dict[frozenset[int], tuple[int, int]] = {}
        for pair in self.skeleton:
            edge = self._pair(pair, "skeleton")
            # A set, because a line has no direction.
            edge_by_ends.setdefault(frozenset(edge), edge)
        object.__setattr__(self, "skeleton", tuple(edge_by_ends.values()))

    def columns(self) -> dict[str, Any]:
        """Return the arguments of an `AnnotationTable` that describe its keypoints."""
        return {
            "keypoint_names": self.names,
            "flip_pairs": self.flip_pairs,
            "normalization_pair": self.normalization_pair,
            "keypoint_sigmas": self.sigmas,
            "skeleton": self.skeleton,
        }

    def _checked_sigmas(self) -> tuple[float, ...]:
        sigmas: Any = self.sigmas  # a config can hold any type
        if isinstance(sigmas, str) or not isinstance(sigmas, Sequence | np.ndarray):
            raise TypeError(f"expected sigmas as one number per point, got {sigmas!r}")
        if len(self.sigmas) not in (0, len(self.names)):
            raise ValueError(f"sigmas has {len(self.sigmas)} numbers, but there are {len(self.names)} points")
        for sigma in self.sigmas:
            # `bool` is a subclass of `int`.
            if isinstance(sigma, bool) or not isinstance(sigma, int | float | np.number):
                raise TypeError(f"sigmas must be numbers, got {sigma!r}")
            if not 0 < sigma < math.inf:
                raise ValueError(f"sigmas must be finite and positive, got {sigma!r}")
        return tuple(map(float, self.sigmas))

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
        spec: A name in ``KEYPOINT_SCHEMAS``; a schema; a mapping with ``names`` and optionally ``flip_pairs``,
            ``normalization_pair``, ``sigmas`` and ``skeleton``, whose points are positions or names; or the number of
            points, which are then named "00", "01", ... and have no pairs.

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


def names_without_mirror(schema: KeypointSchema) -> tuple[str, ...]:
    """Return the names with a side, such as left_eye or r_hip, that a mirrored image would keep on the wrong side.

    These points have no flip pair, or a pair of the same side. The letters l and r count as sides only if the name
    with the other letter exists: L1 may be a vertebra.
    """
    words = [tuple(word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)) for name in schema.names]
    sides = [_side(name_words, words) for name_words in words]
    mirror = dict((*schema.flip_pairs, *(pair[::-1] for pair in schema.flip_pairs)))
    return tuple(
        name
        for point, (name, side) in enumerate(zip(schema.names, sides, strict=True))
        if side and (point not in mirror or sides[mirror[point]] == side)
    )


def _side(words: tuple[str, ...], all_words: Sequence[tuple[str, ...]]) -> str:
    """Find the side in a name: "l", "r", or "" without one side."""
    sides = [word for word in words if word in _OPPOSITE_WORDS]
    opposite = tuple(_OPPOSITE_WORDS.get(word, word) for word in words)
    if len(sides) != 1 or (len(sides[0]) == 1 and opposite not in all_words):
        return ""
    return sides[0][0]


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
        sigmas=values.get("sigmas") or (),
        skeleton=tuple(_positions(edge, names) for edge in values.get("skeleton") or ()),
    )


def common_schema(schemas: Iterable[KeypointSchema | None]) -> KeypointSchema | None:
    """Return the schema of tables that are joined, or None if no table has keypoints.

    Sigmas and a skeleton that only some schemas have count for all.

    Raises:
        ValueError: If two schemas have other names or pairs, or other known sigmas or skeletons.
    """
    common: KeypointSchema | None = None
    for schema in schemas:
        if common is None or schema is None:
            common = common or schema
            continue
        merged = _completed(common, schema)
        if merged != _completed(schema, common):
            raise ValueError(f"keypoint schemas {common} and {schema} differ; read both sets with one schema")
        common = merged
    return common


def _completed(schema: KeypointSchema, other: KeypointSchema) -> KeypointSchema:
    """Return a schema with the other's sigmas and skeleton where it has none."""
    # Sigmas of another number of points would be refused, with a message about another mistake.
    if len(schema.names) != len(other.names):
        return schema
    return replace(schema, sigmas=schema.sigmas or other.sigmas, skeleton=schema.skeleton or other.skeleton)


def known_by_names(names: tuple[str, ...]) -> KeypointSchema | None:
    """Return the schema in ``KEYPOINT_SCHEMAS`` with exactly these names, or None.

    Numbered points fit any schema of that length, so they match none.
    """
    matches = (schema for schema in KEYPOINT_SCHEMAS.values() if schema.names == names and names[0] != "00")
    return next(matches, None)


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


def _contour(first: int, last: int, *, closed: bool = False) -> tuple[tuple[int, int], ...]:
    """Return the lines of a contour through consecutive points."""
    lines = tuple((point, point + 1) for point in range(first, last))
    return (*lines, (last, first)) if closed else lines


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
    skeleton=(
        *_contour(0, 16),  # jaw
        *_contour(17, 21),
        *_contour(22, 26),  # brows
        *_contour(27, 30),  # bridge
        *_contour(31, 35),  # nostrils
        *_contour(36, 41, closed=True),
        *_contour(42, 47, closed=True),  # eyes
        *_contour(48, 59, closed=True),
        *_contour(60, 67, closed=True),  # lips
    ),
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
    skeleton=(
        *_contour(0, 32),  # jaw
        *_contour(33, 41, closed=True),
        *_contour(42, 50, closed=True),  # brows
        *_contour(51, 54),  # bridge
        *_contour(55, 59),  # nostrils
        *_contour(60, 67, closed=True),
        *_contour(68, 75, closed=True),  # eyes
        *_contour(76, 87, closed=True),
        *_contour(88, 95, closed=True),  # lips
    ),
)

_COCO_17 = KeypointSchema(
    names=(
        "nose",
        *("left_eye", "right_eye", "left_ear", "right_ear"),
        *("left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist"),
        *("left_hip", "right_hip", "left_knee", "right_knee", "left_ankle", "right_ankle"),
    ),
    flip_pairs=tuple((left, left + 1) for left in range(1, 17, 2)),
    # In the order of the names: nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles.
    sigmas=(
        0.026,
        *(sigma for sigma in (0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089) for _ in ("left", "right")),
    ),
    # The order of COCO's own files, from 0, so that a table of such a file has this schema.
    skeleton=(
        *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12)),  # legs
        *((5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),  # trunk and arms
        *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),  # head
    ),
)

KEYPOINT_SCHEMAS: Final[Mapping[str, KeypointSchema]] = MappingProxyType(
    {"coco_17": _COCO_17, "face_5": _FACE_5, "face_68": _FACE_68, "face_98": _FACE_98}
)
"""Schemas by name.

- ``face_5``: eye centres, nose tip, mouth corners; "left" is the image's left, as in RetinaFace's lists. Errors are
  normalized by the distance between the eye centres.
- ``face_68``: the iBUG 300-W mark-up, numbered from 0, as dlib writes it; outer eye corners 36 and 45.
- ``face_98``: the WFLW mark-up, numbered from 0; outer eye corners 60 and 72.
- ``coco_17``: COCO's person keypoints; "left" is the person's left. Errors are measured by OKS with the sigmas of
  pycocotools (``kpt_oks_sigmas``), so the schema has no normalization pair.

Source:
    Sagonas et al. 2013, 300 Faces in-the-Wild Challenge; Wu et al. 2018, Look at Boundary (WFLW); Deng et al.
    2019, RetinaFace; Lin et al. 2014, Microsoft COCO, and the COCO keypoint task's definition.
"""
