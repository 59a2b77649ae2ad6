"""``lit-loader index``: read sets through the cache and print their figures."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import Reader, Writer, readers, writers
from lit_loader.annotations.formats.registry import format_options, policy_text
from lit_loader.annotations.splitting import copies_across, shared_names
from lit_loader.app.commands.next_command import splits_by_stage, splits_left_out, training_command
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.reading import format_options_of, named_splits, read_sets
from lit_loader.app.commands.settings import parse_actions

__all__ = ["figures_of", "formats_text", "index", "print_figures", "print_reports"]

_Figures = Mapping[str, Any]

_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")
_STATES: Final = {"visible": 2, "hidden": 1, "absent": 0}
_MAX_POINTS: Final = 20


def index(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used.
    """
    splits = named_splits(arguments)
    tables = read_sets(arguments, splits)
    figures = {name: figures_of(table) for name, table in tables.items()}
    shared = list(shared_names({name: table.image_paths for name, table in tables.items()}))
    # Copies of training images in another split make its results look too good.
    copies = copies_across({name: [table] for name, table in tables.items()})
    if arguments.json:
        shared_images = [[a, b, len(paths)] for a, b, paths in shared]
        result = {"format": arguments.format, "root": arguments.root, "sets": figures, "shared_images": shared_images}
        print_lines(json.dumps({**result, "copies": copies}, indent=1))
        return
    print_figures(figures)
    print_lines(
        *(f"{len(paths)} images are in {a} and in {b}, such as {paths[0]!r}" for a, b, paths in shared), *copies
    )
    print_reports(tables)
    # Files such as annotations/train.txt are sets of this name, but the stages of a run are called train, val and test.
    keys = _unique_stems(splits)
    names = {stem: splits[name] for stem, name in keys.items()}
    stages = splits_by_stage(keys)
    options = format_options_of(arguments, splits)
    command = training_command(
        arguments.format,
        arguments.root,
        names,
        tables[keys[str(stages["train"])]],
        {stem: options[name] for stem, name in keys.items()},
        class_names=arguments.class_names,
        policy=parse_actions(arguments.policy),
    )
    print_lines(*splits_left_out(names))
    if stages["val"] is None:
        missing_stages = [stage for stage in ("val", "test") if stages[stage] is None]
        fractions = " ".join(f"dataset.{stage}_fraction=0.1" for stage in missing_stages)
        print_lines(f"no split is named {' or '.join(missing_stages)}; to hold out training images, add {fractions}")
    print_lines("next:", f"  {command}")


def _unique_stems(names: Iterable[str]) -> dict[str, str]:
    """Return the names of sets by their stems; a name whose stem is taken has its full text as the key."""
    stems: dict[str, str] = {}
    # Both `train.txt` and `train.csv` may be read.
    for name in names:
        stem = PurePosixPath(name).stem
        stems[name if stem in stems else stem] = name
    return stems


def figures_of(table: AnnotationTable) -> dict[str, Any]:
    """Return the figures of a table as values for JSON.

    Returns:
        ``images``, ``empty_images``, ``objects``; ``imbalance``: ratio of objects of the most frequent class to
        objects of the rarest class that occurs, or None; ``image_size``: smallest and largest ``width`` and
        ``height``, and the number of ``unknown`` sizes; ``classes``: ``objects`` and ``images`` of each class;
        ``attributes``: objects of each value, and ``objects_without``; ``keypoints``: objects in which each point is
        ``visible``, ``hidden`` or ``absent``; ``objects_with_points``; ``flags``: objects with each flag that occurs;
        ``problems``: the problems that the reader reported.
    """
    counts = table.class_counts()
    present = counts[counts > 0]  # a class that occurs in another set only would make the ratio infinite
    # One number for each pair of image and class, so that an image counts once per class.
    pairs = np.unique(table.image_of_object() * max(1, table.num_classes) + table.labels)
    images = _counts(pairs % max(1, table.num_classes), table.class_names)
    has_size = (table.widths > 0) & (table.heights > 0)
    points = np.zeros((0, 0)) if table.visibility is None else table.visibility
    return {
        "images": table.num_images,
        "empty_images": int((np.diff(table.offsets) == 0).sum()),
        "objects": table.num_objects,
        "imbalance": float(present.max() / present.min()) if present.size else None,
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
            name: {state: int((points[:, k] == value).sum()) for state, value in _STATES.items()}
            for k, name in enumerate(table.keypoint_names)
        },
        "objects_with_points": int((points > 0).any(axis=1).sum()),
        "flags": {flag: int(n) for flag in _FLAGS if (n := getattr(table, flag).sum())},
        "problems": table.report.to_dict(),
    }


def print_figures(sets: Mapping[str, _Figures]) -> None:
    """Print tables of figures with one column per set."""
    columns = ("set", "images", "without objects", "objects", "imbalance", "width", "height", "problems")
    print_table("sets", columns, [(name, *_summary(figures)) for name, figures in sets.items()])
    num_points = max(len(figures["keypoints"]) for figures in sets.values())
    points = f"{num_points} points: objects where it is visible / hidden / absent"
    if num_points > _MAX_POINTS:
        points = f"{num_points} points: objects where a point is visible, hidden, absent; fewest to most"
    for title, heading, cells in (
        ("objects of each class", "class", _class_cells),
        ("objects of each attribute's value", "value", _attribute_cells),
        (points, "point", _point_cells),
        ("objects with a flag", "flag", lambda figures: figures["flags"]),
    ):
        columns_by_label = [cells(figures) for figures in sets.values()]
        labels = dict.fromkeys(label for column in columns_by_label for label in column)
        rows = [(label, *(str(column.get(label, 0)) for column in columns_by_label)) for label in labels]
        if rows:
            print_table(title, (heading, *sets), rows)


def print_reports(tables: Mapping[str, AnnotationTable]) -> None:
    """Print the problems that the readers reported."""
    for name, table in tables.items():
        if len(table.report):
            print_lines(f"{name}: problems found, and the action for each", str(table.report))
        else:
            print_lines(f"{name}: no problems found")


def formats_text(*, with_writers: bool) -> str:
    """Return the policy and the formats to read, and optionally the formats to write, with all options, as text."""
    lines = ["problems for --policy PROBLEM=ACTION, with the default action first:"]
    lines += [f"  {line}" for line in policy_text().splitlines()]
    lines += ["", "formats to read, and their options:", *_describe(readers())]
    if with_writers:
        lines += ["", "formats to write, and their options:", *_describe(writers())]
    return "\n".join([*lines, ""])


def _describe(formats: Mapping[str, type[Reader]] | Mapping[str, type[Writer]]) -> Iterator[str]:
    for name, cls in formats.items():
        yield from textwrap.wrap(f"{name}: {cls.description}", 100, initial_indent="  ", subsequent_indent=" " * 6)
        options = " ".join(map(_option_text, format_options(cls).values()))
        yield from textwrap.wrap(options, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _option_text(option: Field[Any]) -> str:
    if option.default is MISSING and option.default_factory is MISSING:
        return f"{option.name}=(required)"
    # A list or a mapping as a default is made anew for each format object.
    value = option.default if option.default_factory is MISSING else option.default_factory()
    default = "null" if value is None else str(value)
    return f"{option.name}={default if default.strip() else repr(default)}"


def _summary(figures: _Figures) -> Iterator[str]:
    """Yield the cells of a set in the first table."""
    yield from (str(figures[name]) for name in ("images", "empty_images", "objects"))
    yield "" if figures["imbalance"] is None else f"{figures['imbalance']:.4g} : 1"
    # Formats such as a list of points do not hold the sizes of images.
    size = figures["image_size"]
    unknown = f" ({size['unknown']} unknown)" if size["unknown"] else ""
    yield from ("unknown" if size[side] is None else _spread(size[side]) + unknown for side in ("width", "height"))
    yield str(sum(count for *_, count in figures["problems"]["counts"]))


def _class_cells(figures: _Figures) -> dict[str, Any]:
    classes = figures["classes"].items()
    return {name: f"{counts['objects']} in {counts['images']} images" for name, counts in classes}


def _attribute_cells(figures: _Figures) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, counts in figures["attributes"].items():
        cells |= {f"{name}: {value}": count for value, count in counts["values"].items()}
        if counts["objects_without"]:
            cells[f"{name}: (no value)"] = counts["objects_without"]
    return cells


def _point_cells(figures: _Figures) -> dict[str, Any]:
    points = figures["keypoints"]
    if not points:
        return {}
    cells = {"objects with points": figures["objects_with_points"]}
    # A face mesh has hundreds of points, too many for a row each.
    if len(points) > _MAX_POINTS:
        return cells | {state: _spread([counts[state] for counts in points.values()]) for state in _STATES}
    return cells | {name: " / ".join(map(str, counts.values())) for name, counts in points.items()}


def _counts(ids: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    return dict(zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True))


def _range(sizes: npt.NDArray[Any]) -> list[int] | None:
    return [int(sizes.min()), int(sizes.max())] if sizes.size else None


def _spread(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
