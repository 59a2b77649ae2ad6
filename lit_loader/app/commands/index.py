"""``lit-loader index``: reads sets through the cache and prints what they hold."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import Reader, Writer, find_reader, read_annotations, readers, writers
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.registry import format_options, policy_text, takes_option
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.splitting import copies_across, shared_names
from lit_loader.app.commands.next_command import splits_by_stage, splits_left_out, training_command
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.settings import (
    UsageError,
    parse_actions,
    parse_options,
    parse_splits,
    usage_errors,
)

__all__ = ["figures_of", "formats_text", "index", "print_figures", "print_reports", "read_sets"]

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
    splits = parse_splits(arguments.names, default=None)
    tables = read_sets(arguments, splits)
    figures = {name: figures_of(table) for name, table in tables.items()}
    shared = list(shared_names({name: table.image_paths for name, table in tables.items()}))
    copies = copies_across(tables)
    if arguments.json:
        result = {"format": arguments.format, "root": arguments.root, "sets": figures}
        result["shared_images"] = [[a, b, len(paths)] for a, b, paths in shared]
        result["copies"] = copies
        print_lines(json.dumps(result, indent=1))
        return
    print_figures(figures)
    print_lines(
        *(f"{len(paths)} images are in {a} and in {b}, such as {paths[0]!r}" for a, b, paths in shared),
        *copies,
    )
    print_reports(tables)
    keys = _unique_stems(splits)
    stages = splits_by_stage(keys)
    options = _options(arguments, splits)
    command = training_command(
        arguments.format,
        arguments.root,
        {stem: splits[name] for stem, name in keys.items()},
        tables[keys[str(stages["train"])]],
        {stem: options[name] for stem, name in keys.items()},
        class_names=_class_names(arguments),
        policy=parse_actions(arguments.policy),
    )
    print_lines(*splits_left_out({stem: splits[name] for stem, name in keys.items()}))
    if stages["val"] is None:
        missing_stages = [stage for stage in ("val", "test") if stages[stage] is None]
        fractions = " ".join(f"dataset.{stage}_fraction=0.1" for stage in missing_stages)
        print_lines(
            f"no split is named {' or '.join(missing_stages)}; to hold out training images, add {fractions}"
        )
    print_lines("next:", f"  {command}")


def _unique_stems(names: Iterable[str]) -> dict[str, str]:
    """Return the names of sets by their stems; a name whose stem is in use already keeps its full text as the key."""
    stems: dict[str, str] = {}
    for name in names:
        stem = PurePosixPath(name).stem
        stems[name if stem in stems else stem] = name
    return stems


def read_sets(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, AnnotationTable]:
    """Read what a command names, with the same classes and attributes in all sets.

    Args:
        arguments: The arguments of the commands that read annotations.
        splits: For each split the name of what is read.

    Raises:
        UsageError: If there is no such root, the format, an option or a policy is not known, or a reader refuses
            its value.
        AnnotationError: If the annotations cannot be used.
    """
    if not Path(arguments.root).is_dir():
        raise UsageError(f"ROOT {arguments.root!r} is not a folder; give the folder of the data set")
    with usage_errors():
        options = _options(arguments, splits)
        read = partial(
            read_annotations,
            arguments.format,
            Folder(arguments.root),  # whose folders are listed once for all sets
            class_names=_class_names(arguments),
            policy=parse_actions(arguments.policy),
            cache_dir=arguments.cache_dir,
            num_workers=arguments.num_workers,
            progress=not arguments.no_progress,
        )
        tables = [read(name, **options[split]) for split, name in splits.items()]
    return dict(zip(splits, with_same_names(tables), strict=True))


def _options(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    takes = partial(takes_option, find_reader(arguments.format))
    return parse_options(arguments.option, list(splits), takes=takes)


def _class_names(arguments: argparse.Namespace) -> list[str] | None:
    given = arguments.class_names
    return None if given is None else [name.strip() for name in given.split(",")]


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
    pairs = np.unique(table.image_of_object() * max(1, table.num_classes) + table.labels)  # (image, class)
    images = _counts(pairs % max(1, table.num_classes), table.class_names)
    known = (table.widths > 0) & (table.heights > 0)
    points = np.zeros((0, 0)) if table.visibility is None else table.visibility
    return {
        "images": table.num_images,
        "empty_images": int((np.diff(table.offsets) == 0).sum()),
        "objects": table.num_objects,
        "imbalance": float(present.max() / present.min()) if present.size else None,
        "image_size": {
            "width": _range(table.widths[known]),
            "height": _range(table.heights[known]),
            "unknown": int((~known).sum()),
        },
        "classes": {
            name: {"objects": int(n), "images": images[name]}
            for name, n in zip(table.class_names, counts, strict=True)
        },
        "attributes": {
            name: {
                "values": _counts(each.ids[each.ids >= 0], each.names),
                "objects_without": int((each.ids < 0).sum()),
            }
            for name, each in table.attributes.items()
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
    """Print the figures of several sets beside each other."""
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
        of_sets = [cells(figures) for figures in sets.values()]
        labels = dict.fromkeys(label for each in of_sets for label in each)
        rows = [(label, *(str(each.get(label, 0)) for each in of_sets)) for label in labels]
        if rows:
            print_table(title, (heading, *sets), rows)


def print_reports(tables: Mapping[str, AnnotationTable]) -> None:
    """Print what the readers found wrong."""
    for name, table in tables.items():
        if len(table.report):
            print_lines(f"{name}: what was found wrong, and what was done", str(table.report))
        else:
            print_lines(f"{name}: nothing wrong was found")


def formats_text(*, with_writers: bool) -> str:
    """Return the policy, the formats that can be read, and those that can be written if asked for, with all options."""
    lines = ["problems for --policy PROBLEM=ACTION, with the default action first:"]
    lines += [f"  {line}" for line in policy_text().splitlines()]
    lines += ["", "formats to read, and their options:", *_described(readers())]
    if with_writers:
        lines += ["", "formats to write, and their options:", *_described(writers())]
    return "\n".join([*lines, ""])


def _described(kinds: Mapping[str, type[Reader]] | Mapping[str, type[Writer]]) -> Iterator[str]:
    for name, kind in kinds.items():
        yield from textwrap.wrap(
            f"{name}: {kind.description}", 100, initial_indent="  ", subsequent_indent=" " * 6
        )
        options = " ".join(map(_shown, format_options(kind).values()))
        yield from textwrap.wrap(options, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _shown(option: Field[Any]) -> str:
    if option.default is MISSING and option.default_factory is MISSING:
        return f"{option.name}=(needed)"
    value = option.default if option.default_factory is MISSING else option.default_factory()
    default = "null" if value is None else str(value)
    return f"{option.name}={default if default.strip() else repr(default)}"


def _summary(figures: _Figures) -> Iterator[str]:
    """Yield a set's cells of the first table."""
    yield from (str(figures[name]) for name in ("images", "empty_images", "objects"))
    yield "" if figures["imbalance"] is None else f"{figures['imbalance']:.4g} : 1"
    size = figures["image_size"]
    unknown = f" ({size['unknown']} unknown)" if size["unknown"] else ""
    yield from (
        "unknown" if size[side] is None else _spread(size[side]) + unknown for side in ("width", "height")
    )
    yield str(sum(count for *_, count in figures["problems"]["counts"]))


def _class_cells(figures: _Figures) -> dict[str, Any]:
    return {name: "{objects} in {images} images".format(**each) for name, each in figures["classes"].items()}


def _attribute_cells(figures: _Figures) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, each in figures["attributes"].items():
        cells |= {f"{name}: {value}": count for value, count in each["values"].items()}
        if each["objects_without"]:
            cells[f"{name}: (no value)"] = each["objects_without"]
    return cells


def _point_cells(figures: _Figures) -> dict[str, Any]:
    points, cells = figures["keypoints"], {"objects with points": figures["objects_with_points"]}
    if len(points) > _MAX_POINTS:
        return cells | {state: _spread([point[state] for point in points.values()]) for state in _STATES}
    return points and cells | {name: " / ".join(map(str, each.values())) for name, each in points.items()}


def _counts(ids: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    return dict(zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True))


def _range(sizes: npt.NDArray[Any]) -> list[int] | None:
    return [int(sizes.min()), int(sizes.max())] if sizes.size else None


def _spread(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
