"""``lit-loader index``: read sets through the cache and print their figures."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from pathlib import PurePosixPath
from typing import Any, Final

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.figures import POINT_STATES, figures_of
from lit_loader.annotations.formats import Reader, Writer, readers, writers
from lit_loader.annotations.formats.registry import format_options, policy_text
from lit_loader.annotations.splitting import copies_across, shared_names
from lit_loader.app.commands.next_command import splits_by_stage, splits_left_out, training_command
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.reading import format_options_of, named_splits, read_sets
from lit_loader.app.commands.roots import storage_of, traits_of
from lit_loader.app.commands.settings import parse_actions

__all__ = ["formats_text", "index", "print_figures", "print_reports", "unique_stems"]

_Figures = Mapping[str, Any]

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
    copies = copies_across({name: [table] for name, table in tables.items()}, traits_of(arguments))
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
    keys = unique_stems(splits)
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
        storage=storage_of(arguments),
        policy=parse_actions(arguments.policy),
    )
    print_lines(*splits_left_out(names))
    if stages["val"] is None:
        missing_stages = [stage for stage in ("val", "test") if stages[stage] is None]
        fractions = " ".join(f"dataset.{stage}_fraction=0.1" for stage in missing_stages)
        print_lines(f"no split is named {' or '.join(missing_stages)}; to hold out training images, add {fractions}")
    print_lines("next:", f"  {command}")


def unique_stems(names: Iterable[str]) -> dict[str, str]:
    """Return the names of sets by their stems; a name whose stem is taken has its full text as the key."""
    stems: dict[str, str] = {}
    # Both `train.txt` and `train.csv` may be read.
    for name in names:
        stem = PurePosixPath(name).stem
        stems[name if stem in stems else stem] = name
    return stems


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
        ("oriented boxes", "objects", _oriented_cells),
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


def _oriented_cells(figures: _Figures) -> dict[str, Any]:
    count = figures["oriented_objects"]
    return {"with an oriented box": f"{count} of {figures['objects']}"} if count else {}


def _point_cells(figures: _Figures) -> dict[str, Any]:
    points = figures["keypoints"]
    if not points:
        return {}
    cells = {"objects with points": figures["objects_with_points"]}
    # A face mesh has hundreds of points, too many for a row each.
    if len(points) > _MAX_POINTS:
        return cells | {state: _spread([counts[state] for counts in points.values()]) for state in POINT_STATES}
    return cells | {name: " / ".join(map(str, counts.values())) for name, counts in points.items()}


def _spread(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
