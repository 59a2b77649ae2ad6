"""Merge the class, point and attribute names that the files of a data set list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lit_loader.annotations.formats.rows import MAX_POINTS, DeclaredNames, Rows
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten

__all__ = ["mirrored_by_name", "skeleton_edges", "unite", "unite_keypoints"]

# "left" as a word of its own: left_eye, eyeLeft, LEFT-EYE, but not "cleft".
_LEFT: Final = re.compile(r"(?<![a-zA-Z])left|(?<=[a-z0-9])Left|(?<![a-zA-Z])Left|(?<![a-zA-Z])LEFT")


def unite(rows: Rows, *, class_names: Sequence[str] | None, keypoints: KeypointSchema | None) -> DeclaredNames:
    """Return the names of a data set: the caller's, then those that files list, then others that occur, sorted.

    Args:
        rows: Rows of all files. A file that lists other names than an earlier one is a problem of the kind
            ``schema_mismatch``.
        class_names: The caller's classes, to which none is added, or None.
        keypoints: The caller's schema, or None.
    """
    classes = dict.fromkeys(class_names or ())
    schemas = [] if keypoints is None else [keypoints]
    values_by_attribute: dict[str, dict[str, None]] = {}
    # First list of names of each kind; later files are compared with it.
    first_lists: dict[str, tuple[str, ...]] = {}
    files = list(rows.files)
    for declared, file_numbers in rows.declared.items():
        # Only lists that the caller does not override are compared.
        lists = {f"values of attribute {name!r}": values for name, values in declared.attributes}
        if class_names is None and declared.class_names:
            lists["classes"] = declared.class_names
            classes |= dict.fromkeys(declared.class_names)
        if keypoints is None and declared.keypoints is not None:
            lists["points"] = declared.keypoints.names
            schemas.append(declared.keypoints)
        for name, values in declared.attributes:
            values_by_attribute.setdefault(name, {}).update(dict.fromkeys(values))
        differences = []
        for kind, names in lists.items():
            # The first list with names counts: a file may list an attribute without its values.
            first = first_lists[kind] = first_lists.get(kind) or names
            if first != names:
                # At most 120 names are joined, because a file may list millions.
                listed, first_listed = (shorten(", ".join(values[:120]), 120) for values in (names, first))
                differences.append(f"{kind} {listed} instead of {first_listed}")
        if "points" in lists and schemas[0].names == schemas[-1].names and schemas[0] != schemas[-1]:
            differences.append("different flip pairs, normalization pair, sigmas or skeleton")
        # Files with equal names share one entry, so each is compared once and reported for every file.
        for number in file_numbers if differences else ():
            # Problems are reported for the current file.
            rows.file = files[number]
            message = f"names differ from an earlier file: {'; '.join(differences)}"
            rows.problem("schema_mismatch", rows.policy.schema_mismatch, message)
    if class_names is None:
        # Sorted, because the order of occurrence depends on the order of the files.
        classes |= dict.fromkeys(sorted(rows.class_names.keys() - classes))
    schema = unite_keypoints(schemas) if schemas else None
    # No file declares points, but objects have some, as in VOC files without a schema.
    if schema is None and rows.layouts:
        schema = mirrored_by_name(tuple(sorted({name for names in rows.layouts for name in names})))
    # Sorting the pairs sorts both the attributes that no file lists and the values that no file lists.
    for name, value in sorted(rows.attribute_values):
        values_by_attribute.setdefault(name, {}).setdefault(value)
    # Checked here, before any column of the table is allocated.
    rows.check_cells("attributes", num_names=len(values_by_attribute), num_values=len(rows.objects.attribute_rows))
    if schema is not None:
        rows.check_cells("keypoints", num_names=len(schema.names), num_values=len(rows.objects.visibility))
    return DeclaredNames(
        class_names=tuple(classes),
        class_ids=_class_ids(rows, classes),
        keypoints=schema,
        attributes=tuple((name, tuple(values)) for name, values in values_by_attribute.items()),
    )


def _class_ids(rows: Rows, class_names: Iterable[str]) -> tuple[int, ...]:
    """Return the files' own number of each class, or none if a class has no number."""
    ids: dict[str, int] = {}
    for declared in rows.declared:
        # Not strict: a file may list classes without ids.
        ids |= dict(zip(declared.class_names, declared.class_ids, strict=False))
    return tuple(ids[name] for name in class_names) if ids.keys() >= set(class_names) else ()


def unite_keypoints(schemas: Sequence[KeypointSchema]) -> KeypointSchema:
    """Return the points of all schemas, each name once, in the order of first occurrence.

    A flip pair of a later schema is added unless one of its points is in a pair already. The first normalization_pair
    and a point's first sigma are used; without a sigma of every point there are none. Skeletons are joined.

    Args:
        schemas: At least one schema.
    """
    names = tuple(dict.fromkeys(name for schema in schemas for name in schema.names))
    positions = {name: position for position, name in enumerate(names)}
    flip_pairs = []
    skeleton = []
    normalization_pair = None
    sigma_by_name: dict[str, float] = {}
    for schema in schemas:
        flip_pairs += [(positions[schema.names[a]], positions[schema.names[b]]) for a, b in schema.flip_pairs]
        skeleton += [(positions[schema.names[a]], positions[schema.names[b]]) for a, b in schema.skeleton]
        # Not strict: a schema may have no sigmas. The first schema's sigma of a point stays.
        sigma_by_name = dict(zip(schema.names, schema.sigmas, strict=False)) | sigma_by_name
        if schema.normalization_pair is not None and normalization_pair is None:
            a, b = schema.normalization_pair
            normalization_pair = (positions[schema.names[a]], positions[schema.names[b]])
    return KeypointSchema(
        names=names,
        flip_pairs=_disjoint(flip_pairs),
        normalization_pair=normalization_pair,
        sigmas=tuple(sigma_by_name[name] for name in names) if len(sigma_by_name) == len(names) else (),
        skeleton=tuple(skeleton),
    )


def mirrored_by_name(names: tuple[str, ...]) -> KeypointSchema:
    """Return a schema that pairs the names that differ only in the words left and right."""
    positions = {name: position for position, name in enumerate(names)}
    opposites = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}
    pairs = []
    for position, name in enumerate(names):
        # Only the first word: in left_of_left_eye the second one belongs to another part.
        mirrored_name = _LEFT.sub(lambda match: opposites[match[0]], name, count=1)
        mirrored_position = positions.get(mirrored_name, position)
        if mirrored_position != position:
            pairs.append((position, mirrored_position))
    return KeypointSchema(names=names, flip_pairs=_disjoint(pairs))


def _disjoint(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs without those that share a point with an earlier pair."""
    paired: set[int] = set()
    disjoint_pairs = []
    for pair in pairs:
        if paired.isdisjoint(pair):
            paired.update(pair)
            disjoint_pairs.append(pair)
    return tuple(disjoint_pairs)


def skeleton_edges(edges: Any, *, first: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of positions in a file as positions from 0; the schema checks that the points exist.

    Args:
        edges: Value in the file; None without a skeleton.
        first: Position of the first point in the format.

    Raises:
        ValueError: If it is not a list of pairs of positions, or longer than any skeleton.
    """
    if edges is None:
        return ()
    # The bound keeps a file from having every drawing take minutes.
    if not isinstance(edges, list) or len(edges) > MAX_POINTS:
        raise ValueError(f"expected a list of at most {MAX_POINTS} pairs of positions, got {shorten(repr(edges))}")
    for edge in edges:
        if not isinstance(edge, list) or len(edge) != 2 or {type(position) for position in edge} != {int}:
            raise ValueError(f"expected pairs of whole numbers from {first}, got {shorten(repr(edge))}")
        if min(edge) < first:
            raise ValueError(f"expected positions from {first}, got {shorten(repr(edge))}; add 1 to every position")
    return tuple((start - first, end - first) for start, end in edges)
