"""What a table holds as plain values, and those of several sets as tables to print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.cli.printing import print_lines, print_table

__all__ = ["figures_of", "print_figures", "print_reports"]

_FLAGS = ("difficult", "truncated", "occluded", "crowd")
_MAX_POINTS = 20


def figures_of(table: AnnotationTable) -> dict[str, Any]:
    """Return a table's figures as values that JSON can hold.

    Returns:
        ``images``, ``empty_images``, ``objects``; ``imbalance``: objects of the most frequent class for each of
        the rarest that occurs, or None; ``image_size``: smallest and largest ``width`` and ``height`` of those
        known, and how many are ``unknown``; ``classes``: ``objects`` and ``images`` of each; ``attributes``: for
        each the objects of each value, and ``objects_without``; ``keypoints``: objects in which each point is
        ``visible``, ``hidden``, ``absent``; ``objects_with_points``; ``flags``: objects with each flag that
        occurs; ``problems``: what the reader found wrong.
    """
    counts = table.class_counts()
    present = counts[counts > 0]
    return {
        "images": table.num_images,
        "empty_images": int((np.diff(table.offsets) == 0).sum()),
        "objects": table.num_objects,
        "imbalance": float(present.max() / present.min()) if present.size else None,
        "image_size": _sizes(table),
        "classes": {
            name: {"objects": int(objects), "images": int(images)}
            for name, objects, images in zip(table.class_names, counts, _images_with(table), strict=True)
        },
        "attributes": {
            name: {
                "values": dict(
                    zip(attribute.names, _counted(attribute.ids, len(attribute.names)), strict=True)
                ),
                "objects_without": int((attribute.ids < 0).sum()),
            }
            for name, attribute in table.attributes.items()
        },
        "keypoints": _points(table),
        "objects_with_points": 0
        if table.visibility is None
        else int((table.visibility > 0).any(axis=1).sum()),
        "flags": {flag: int(n) for flag in _FLAGS if (n := getattr(table, flag).sum())},
        "problems": table.report.to_dict(),
    }


def print_figures(sets: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures of several sets beside each other."""
    names = list(sets)
    print_table(
        "sets",
        ("set", "images", "without objects", "objects", "imbalance", "width", "height", "problems"),
        [
            (
                name,
                str(figures["images"]),
                str(figures["empty_images"]),
                str(figures["objects"]),
                "" if figures["imbalance"] is None else f"{figures['imbalance']:.4g} : 1",
                _range(figures["image_size"], "width"),
                _range(figures["image_size"], "height"),
                str(sum(count for *_, count in figures["problems"]["counts"])),
            )
            for name, figures in sets.items()
        ],
    )
    first = sets[names[0]]
    rows = [
        (label, *(f"{each['objects']} in {each['images']} images" for each in cells))
        for label in first["classes"]
        for cells in [[figures["classes"][label] for figures in sets.values()]]
    ]
    print_table("objects of each class", ("class", *names), rows)
    if first["attributes"]:
        print_table(
            "objects of each attribute's value", ("attribute", "value", *names), _values(sets), left=2
        )
    if first["keypoints"]:
        _print_points(sets)
    flags = dict.fromkeys(flag for figures in sets.values() for flag in figures["flags"])
    if flags:
        rows = [(flag, *(str(figures["flags"].get(flag, 0)) for figures in sets.values())) for flag in flags]
        print_table("objects with a flag", ("flag", *names), rows)


def print_reports(tables: Mapping[str, AnnotationTable]) -> None:
    """Print what the readers found wrong."""
    for name, table in tables.items():
        if len(table.report):
            print_lines(f"{name}: what was found wrong, and what was done", str(table.report))
        else:
            print_lines(f"{name}: nothing wrong was found")


def _values(sets: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each value of each attribute, and one for objects without a value where there are some."""
    for name, attribute in next(iter(sets.values()))["attributes"].items():
        listed = [figures["attributes"][name] for figures in sets.values()]
        for i, value in enumerate(attribute["values"]):
            yield (name if i == 0 else "", value, *(str(each["values"][value]) for each in listed))
        if any(each["objects_without"] for each in listed):
            yield ("", "(no value)", *(str(each["objects_without"]) for each in listed))


def _print_points(sets: Mapping[str, Mapping[str, Any]]) -> None:
    points = {name: figures["keypoints"] for name, figures in sets.items()}
    num_points = len(next(iter(points.values())))
    with_points = ("objects with points", *(str(figures["objects_with_points"]) for figures in sets.values()))
    if num_points <= _MAX_POINTS:
        title = f"{num_points} points: objects where it is visible / hidden / absent"
        rows = [
            (
                name,
                *(
                    f"{p[name]['visible']} / {p[name]['hidden']} / {p[name]['absent']}"
                    for p in points.values()
                ),
            )
            for name in next(iter(points.values()))
        ]
    else:
        title = f"{num_points} points: objects where a point is visible, hidden, absent; fewest to most"
        rows = [
            (state, *(_spread([point[state] for point in p.values()]) for p in points.values()))
            for state in ("visible", "hidden", "absent")
        ]
    print_table(title, ("point", *sets), [with_points, *rows])


def _spread(counts: list[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _range(sizes: Mapping[str, Any], side: str) -> str:
    if sizes[side] is None:
        return "unknown"
    unknown = f" ({sizes['unknown']} unknown)" if sizes["unknown"] else ""
    return f"{_spread(sizes[side])}{unknown}"


def _sizes(table: AnnotationTable) -> dict[str, Any]:
    known = (table.widths > 0) & (table.heights > 0)
    sizes: dict[str, Any] = {"width": None, "height": None, "unknown": int((~known).sum())}
    if known.any():
        for side, column in (("width", table.widths[known]), ("height", table.heights[known])):
            sizes[side] = [int(column.min()), int(column.max())]
    return sizes


def _images_with(table: AnnotationTable) -> list[int]:
    """Return in how many images each class is."""
    pairs = np.unique(table.image_of_object() * max(1, table.num_classes) + table.labels)
    return _counted(pairs % max(1, table.num_classes), table.num_classes)


def _counted(ids: npt.NDArray[np.int64], num_names: int) -> list[int]:
    counted: list[int] = np.bincount(ids[ids >= 0], minlength=num_names)[:num_names].tolist()
    return counted


def _points(table: AnnotationTable) -> dict[str, dict[str, int]]:
    if table.visibility is None:
        return {}
    states = {"visible": 2, "hidden": 1, "absent": 0}
    counts = {state: (table.visibility == value).sum(axis=0) for state, value in states.items()}
    return {
        name: {state: int(counts[state][k]) for state in states}
        for k, name in enumerate(table.keypoint_names)
    }
