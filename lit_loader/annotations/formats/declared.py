"""Names of classes, points and attributes of a whole set, out of what each of its files lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from lit_loader.annotations.formats.rows import Declared, Rows
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten

__all__ = ["mirrored_by_name", "unite", "unite_keypoints"]

_LEFT: Final = re.compile(r"(?<![a-zA-Z])left|(?<=[a-z0-9])Left|(?<![a-zA-Z])Left|(?<![a-zA-Z])LEFT")


def unite(rows: Rows, *, class_names: Sequence[str] | None, keypoints: KeypointSchema | None) -> Declared:
    """Return the names of a set: what is given, then what files list, then what occurs besides, sorted.

    Args:
        rows: What was read. A file that lists other names than one before is a problem of the kind ``schema_mismatch``.
        class_names: The classes as the caller gives them, to which none is added, or None.
        keypoints: The points as the caller gives them, or None.
    """
    classes, schemas = dict.fromkeys(class_names or ()), [] if keypoints is None else [keypoints]
    values: dict[str, dict[str, None]] = {}
    first_classes: tuple[str, ...] = ()
    first_values: dict[str, tuple[str, ...]] = {}
    files = list(rows.files)
    for declared, numbers in rows.declared.items():
        differences: list[str] = []
        if class_names is None and declared.class_names:
            first_classes = first_classes or declared.class_names
            _compare("classes", first_classes, declared.class_names, differences)
            classes |= dict.fromkeys(declared.class_names)
        if keypoints is None and declared.keypoints is not None:
            schemas.append(declared.keypoints)
            _compare("points", schemas[0].names, declared.keypoints.names, differences)
            if schemas[0].names == declared.keypoints.names and schemas[0] != declared.keypoints:
                differences.append("other flip pairs or another normalization pair of the points")
        for name, listed in declared.attributes:
            first = first_values.setdefault(name, listed)
            _compare(f"values of attribute {name!r}", first, listed, differences)
            values.setdefault(name, {}).update(dict.fromkeys(listed))
        for number in numbers if differences else ():
            rows.file = files[number]
            rows.problem("schema_mismatch", rows.policy.schema_mismatch, f"it lists {'; '.join(differences)}")
    schema = unite_keypoints(schemas) if schemas else None
    occurring: dict[str, list[str]] = {}
    for name, value in rows.attribute_values:
        occurring.setdefault(name, []).append(value)
    if class_names is None:
        classes |= dict.fromkeys(sorted(rows.class_names.keys() - classes))
    if schema is None and rows.layouts:
        schema = mirrored_by_name(tuple(sorted({name for names in rows.layouts for name in names})))
    attributes = {
        name: (*values.get(name, ()), *sorted(set(occurring.get(name, ())) - values.get(name, {}).keys()))
        for name in (*values, *sorted(occurring.keys() - values))
    }
    written = len(rows.objects.attribute_rows)
    rows.check_cells("attributes", names=len(attributes), written=written)
    if schema is not None:
        rows.check_cells("keypoints", names=len(schema.names), written=len(rows.objects.visibility))
    ids: dict[str, int] = {}
    for declared in rows.declared:
        ids |= dict(zip(declared.class_names, declared.class_ids, strict=False))
    return Declared(
        class_names=tuple(classes),
        class_ids=tuple(ids[name] for name in classes) if ids.keys() >= set(classes) else (),
        keypoints=schema,
        attributes=tuple(attributes.items()),
    )


def unite_keypoints(schemas: Sequence[KeypointSchema]) -> KeypointSchema:
    """Return the points of all schemas, each name once, in order of the first occurrence.

    A flip pair of a later schema is taken unless one of its points is in a pair already; the first
    normalization_pair is taken.

    Args:
        schemas: At least one.
    """
    names = tuple(dict.fromkeys(name for schema in schemas for name in schema.names))
    places = {name: place for place, name in enumerate(names)}
    united = [(places[each.names[a]], places[each.names[b]]) for each in schemas for a, b in each.flip_pairs]
    scales = [(each.names, each.normalization_pair) for each in schemas if each.normalization_pair]
    pair = None
    if scales:
        first, (a, b) = scales[0]
        pair = places[first[a]], places[first[b]]
    return KeypointSchema(names=names, flip_pairs=_disjoint(united), normalization_pair=pair)


def mirrored_by_name(names: tuple[str, ...]) -> KeypointSchema:
    """Return a schema whose flip pairs are the names that differ in the words left and right alone."""
    places = {name: place for place, name in enumerate(names)}
    words = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}
    mirrored = (_LEFT.sub(lambda match: words[match[0]], name, count=1) for name in names)
    pairs = ((place, places.get(other, place)) for place, other in enumerate(mirrored))
    return KeypointSchema(names=names, flip_pairs=_disjoint((a, b) for a, b in pairs if a != b))


def _disjoint(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return pairs without those of which a point is in a pair before."""
    found: dict[int, tuple[int, int]] = {}
    for a, b in pairs:
        if a not in found and b not in found:
            found[a] = found[b] = (a, b)
    return tuple(dict.fromkeys(found.values()))


def _compare(what: str, first: tuple[str, ...], other: tuple[str, ...], differences: list[str]) -> None:
    if first and first != other:
        listed, before = (shorten(", ".join(names[:120]), 120) for names in (other, first))
        differences.append(f"{what} {listed}, where a file before lists {before}")
