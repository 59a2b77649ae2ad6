"""``lit-loader split``: divide sets into splits or folds by class and group, as a split file or as lists."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.split_file import SplitFile
from lit_loader.annotations.splitting import attribute_groups, frame_groups, group_names, hold_out, pooled, shared_names
from lit_loader.app.commands.list_files import write_lists
from lit_loader.app.commands.next_command import training_command
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.reading import format_options_of, named_splits, read_sets
from lit_loader.app.commands.roots import refuse_url, storage_of, traits_of
from lit_loader.app.commands.settings import UsageError, parse_actions, parse_parts, usage_errors
from lit_loader.errors import AnnotationError
from lit_loader.foundation.escaping import hydra_value, shell_command
from lit_loader.types import IndexArray

__all__ = ["split"]

_MAX_LISTED: Final = 5
_STAGES: Final = {"train", "val", "test"}


def split(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used.
        OSError: If a file cannot be read or written.
    """
    shares = parse_parts(arguments.share, arguments.folds)
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None and out.exists():
        _check_overwrite(out, overwrite=arguments.overwrite)
    sets = named_splits(arguments)
    if arguments.lists is not None:
        refuse_url(arguments, "--lists writes files there", "write a split file of this host with --out FILE")
    unknown = sorted(set(arguments.keep) - set(sets))
    if unknown or len(arguments.keep) >= len(sets):
        raise UsageError(f"--keep {' '.join(arguments.keep)} must leave a set to split; the sets are {', '.join(sets)}")
    tables = read_sets(arguments, sets)
    pool = pooled([table for name, table in tables.items() if name not in arguments.keep])
    _check_kept_sets(arguments, pool, tables)
    with usage_errors():
        groups = _groups(arguments, pool)
        rows_by_part, copies, _ = hold_out(
            pool,
            shares,
            label_attribute=arguments.by,
            groups=groups,
            seed=arguments.seed,
            cache_dir=arguments.cache_dir,
            traits=traits_of(arguments),
            refine=True,
        )
    group_of_image = list(pool.image_paths) if groups is None else groups
    empty_parts = [name for name, rows in rows_by_part.items() if not len(rows)]
    if empty_parts:
        message = f"{len(set(group_of_image))} groups of images are too few for {len(shares)} parts"
        raise AnnotationError(f"{message}: {', '.join(empty_parts)} would be empty", path=arguments.root)
    parts = _Parts(pool, rows_by_part, arguments.by, group_of_image)
    for message in parts.warnings():
        warnings.warn(message, stacklevel=1)
    if groups is None:
        _warn_of_frames(pool, len(shares))
    # All is checked before the first file is written.
    with usage_errors():
        split_file = None if out is None else _split_file(parts, is_folds=arguments.folds is not None)
    lists: dict[str, str] = {}
    if arguments.lists is not None:
        lists, lost = write_lists(arguments, pool, _rows_by_list(arguments, parts), sets)
        for loss in lost:
            warnings.warn(f"the lists lack {loss}", stacklevel=1)
    if out is not None and split_file is not None:
        split_file.write(out, _settings(arguments, shares))
    if arguments.json:
        result = {**_settings(arguments, shares), **parts.figures(), "split_file": arguments.out, "lists": lists}
        print_lines(json.dumps(result, indent=1))
        return
    parts.print()
    print_lines(*([copies] if copies else []))
    _print_next_steps(arguments, sets, pool, lists)


def _check_overwrite(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file without ``--overwrite``, and any other file than a split file."""
    if not overwrite:
        raise UsageError(f"--out {out} already exists; give another file, or --overwrite")
    try:
        SplitFile.read(out, max_images=sys.maxsize)
    except AnnotationError as error:
        raise UsageError(f"--out {out} is not a split file, so it is not replaced; give another file") from error


@dataclass(frozen=True)
class _Parts:
    """The parts of a split, and their figures.

    Attributes:
        pool: All images.
        rows: Rows of each part in the pool.
        label_attribute: The attribute to count, or None for the classes.
        groups: Group of each image.
    """

    pool: AnnotationTable
    rows: Mapping[str, IndexArray]
    label_attribute: str | None
    groups: Sequence[str]

    def counts(self, rows: IndexArray | None = None) -> npt.NDArray[np.int64]:
        """Return the number of objects with each label, in all images or some rows."""
        table = self.pool if rows is None else self.pool.select(rows)
        labels, names = table.labels_of(self.label_attribute)
        return np.bincount(labels[labels >= 0], minlength=len(names)).astype(np.int64)

    def warnings(self) -> Iterator[str]:
        """Yield a sentence about labels that cannot be in every part, if there are any."""
        labels, names = self.pool.labels_of(self.label_attribute)
        group_ids = {name: i for i, name in enumerate(dict.fromkeys(self.groups))}
        group_of_image = np.array([group_ids[name] for name in self.groups], dtype=np.int64)
        group_of_object = group_of_image[self.pool.image_of_object()]
        pairs = np.unique(group_of_object[labels >= 0] * len(names) + labels[labels >= 0])
        num_groups = np.bincount(pairs % max(1, len(names)), minlength=len(names))
        rare = [
            f"{names[i]} ({num_groups[i]})" for i in np.flatnonzero((num_groups < len(self.rows)) & (num_groups > 0))
        ]
        if rare:
            more = f" and {len(rare) - _MAX_LISTED} more" if len(rare) > _MAX_LISTED else ""
            unit = "groups" if len(group_ids) < self.pool.num_images else "images"
            yield (
                f"{', '.join(rare[:_MAX_LISTED])}{more} occur in fewer {unit} than there are parts "
                f"({len(self.rows)}), so some parts have none of them"
            )

    def figures(self) -> dict[str, Any]:
        """Return the figures of all images and of each part as values for JSON."""
        parts = {name: self._figures(rows) for name, rows in self.rows.items()}
        deviations = [(part["deviation"]["points"], name) for name, part in parts.items() if part["deviation"]]
        largest = max(deviations, default=None)
        return {
            "all": self._figures(None),
            "parts": parts,
            "largest_deviation": {"part": largest[1], **parts[largest[1]]["deviation"]} if largest else None,
        }

    def _figures(self, rows: IndexArray | None) -> dict[str, Any]:
        names = self.pool.labels_of(self.label_attribute)[1]
        counts = self.counts(rows)
        shares = _percent(counts)
        differences = np.abs(shares - _percent(self.counts()))
        deviation = None
        if counts.sum():
            label = int(differences.argmax())
            deviation = {"class": names[label], "points": round(float(differences[label]), 3)}
        image_rows = range(self.pool.num_images) if rows is None else rows.tolist()
        return {
            "images": len(image_rows),
            "groups": len({self.groups[row] for row in image_rows}),
            "objects": int(counts.sum()),
            "classes": {
                name: {"objects": int(count), "percent": round(float(share), 3)}
                for name, count, share in zip(names, counts, shares, strict=True)
            },
            "deviation": deviation,
        }

    def print(self) -> None:
        """Print the size of each part, and the share of each label in it."""
        figures = self.figures()
        columns = {"all": figures["all"], **figures["parts"]}
        num_images = max(1, self.pool.num_images)
        rows = [
            (
                name,
                str(part["images"]),
                f"{100 * part['images'] / num_images:.1f} %",
                str(part["groups"]),
                str(part["objects"]),
                _deviation_text(part["deviation"]) if name != "all" else "",
            )
            for name, part in columns.items()
        ]
        heading = ("part", "images", "share", "groups", "objects", "largest deviation")
        print_table("images and objects of each part", heading, rows)
        label = "class" if self.label_attribute is None else self.label_attribute
        classes = [
            (name, *(f"{part['classes'][name]['percent']:.2f}" for part in columns.values()))
            for name in figures["all"]["classes"]
        ]
        print_table(f"objects of each {label}, in % of the part's objects", (label, *columns), classes)
        largest = figures["largest_deviation"]
        if largest:
            place = f"{largest['class']} in {largest['part']}"
            print_lines(f"largest deviation: {largest['points']:.2f} percentage points ({place})")


def _percent(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    shares: npt.NDArray[np.float64] = 100 * counts / max(1, counts.sum())
    return shares


def _deviation_text(deviation: Mapping[str, Any] | None) -> str:
    return "" if deviation is None else f"{deviation['points']:.2f} ({deviation['class']})"


def _groups(arguments: argparse.Namespace, pool: AnnotationTable) -> list[str] | None:
    """Return the group of each image, or None if each image is its own."""
    if arguments.group_pattern is not None:
        return group_names(pool.image_paths, arguments.group_pattern)
    if arguments.group_attribute is not None:
        return attribute_groups(pool, arguments.group_attribute)
    return frame_groups(pool.image_paths) if arguments.group_frames else None


def _check_kept_sets(
    arguments: argparse.Namespace, pool: AnnotationTable, tables: Mapping[str, AnnotationTable]
) -> None:
    """Refuse images, and groups of the pattern, that are both in a set that is kept and in one that is split."""
    paths = {"the images to split": pool.image_paths, **{name: tables[name].image_paths for name in arguments.keep}}
    for a, b, shared in shared_names(paths):
        raise UsageError(f"{len(shared)} images are in {a} and in {b}, such as {shared[0]!r}; split {b} as well")
    if arguments.group_pattern is not None and arguments.keep:
        with usage_errors():
            groups = {name: group_names(set_paths, arguments.group_pattern) for name, set_paths in paths.items()}
        for a, b, shared in shared_names(groups):
            raise UsageError(
                f"{len(shared)} groups of {arguments.group_pattern!r} are in {a} and in {b}, such as {shared[0]!r}; "
                f"without --keep {b}, its images are split as well"
            )


def _warn_of_frames(pool: AnnotationTable, num_parts: int) -> None:
    """Hint at ``--group-frames`` if most images have names that differ only in a trailing number."""
    sizes = Counter(frame_groups(pool.image_paths))
    num_frames = sum(size for size in sizes.values() if size > 1)
    # A single group means that all images of the set are numbered, as in VOC and COCO.
    if len(sizes) < max(2, num_parts) or 2 * num_frames < pool.num_images:
        return
    name, size = sizes.most_common(1)[0]
    warnings.warn(
        f"{num_frames} images have names that differ only in a trailing number, such as the {size} of {name!r}; if "
        "these show the same scene or person, --group-frames or --group-pattern keeps them together",
        stacklevel=1,
    )


def _settings(arguments: argparse.Namespace, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return how the split is made, without the defaults."""
    settings = {"shares": dict(shares), "seed": arguments.seed}
    for name in ("by", "group_pattern", "group_attribute", "group_frames"):
        if value := getattr(arguments, name):
            settings[name] = value
    return settings


def _split_file(parts: _Parts, *, is_folds: bool) -> SplitFile:
    part_by_image = {
        parts.pool.image_paths[row]: position
        for position, rows in enumerate(parts.rows.values())
        for row in rows.tolist()
    }
    return SplitFile(parts=tuple(parts.rows), is_folds=is_folds, part_by_image=part_by_image)


def _rows_by_list(arguments: argparse.Namespace, parts: _Parts) -> dict[str, IndexArray]:
    """Return the images of each list: of each part, or training and validation of each fold."""
    if arguments.folds is None:
        return dict(parts.rows)
    rows_by_list = {}
    for name, rows in parts.rows.items():
        rows_by_list[f"fold{name}_train"] = np.setdiff1d(np.arange(parts.pool.num_images), rows)
        rows_by_list[f"fold{name}_val"] = rows
    return rows_by_list


def _print_next_steps(
    arguments: argparse.Namespace, sets: Mapping[str, str], pool: AnnotationTable, lists: Mapping[str, str]
) -> None:
    """Print how to train on the split, or how to write it."""
    settings: dict[str, Any] = {}
    if arguments.out is not None:
        settings["split_file"] = arguments.out
    elif lists:
        _print_lists(arguments, sets, pool, lists)
        return
    elif _training_can_split(arguments, sets):
        print_lines("nothing was written; training makes the same folds, and --out FILE writes them to a split file")
        settings = {"folds": arguments.folds, "group_pattern": arguments.group_pattern, "seed": arguments.seed}
    else:
        print_lines("nothing was written; --out FILE writes a split file, and --lists lists in the form of the format")
        return
    if arguments.folds is not None:
        settings["fold"] = 0
    name_by_stem = {PurePosixPath(name).stem: name for name in sets}
    if len(sets) > 1 and not (len(name_by_stem) == len(sets) and name_by_stem.keys() <= _STAGES):
        words = [f"dataset.{key}={hydra_value(value)}" for key, value in settings.items() if value is not None]
        print_lines("next: add this to a training command that reads these sets:", f"  {shell_command(words)}")
    else:
        options = format_options_of(arguments, sets)
        names = {stem: sets[name] for stem, name in name_by_stem.items()}
        options_by_stem = {stem: options[name] for stem, name in name_by_stem.items()}
        _print_command(arguments, names, pool, options_by_stem, settings)
    if arguments.folds is not None:
        folds = ",".join(map(str, range(arguments.folds)))
        print_lines(f"all folds: the same with --multirun dataset.fold={folds}")


def _training_can_split(arguments: argparse.Namespace, sets: Mapping[str, str]) -> bool:
    """Return True if ``dataset.folds`` gives the same folds without a file."""
    if arguments.folds is None or arguments.by or arguments.group_frames or arguments.group_attribute:
        return False
    # A run pools its training and validation sets.
    stems = {PurePosixPath(name).stem for name in sets if name not in arguments.keep}
    return len(sets) == 1 or stems in ({"train"}, {"train", "val"})


def _print_lists(
    arguments: argparse.Namespace, sets: Mapping[str, str], pool: AnnotationTable, lists: Mapping[str, str]
) -> None:
    """Print the names of the lists, and how to train on them."""
    print_lines(f"written: {', '.join(lists.values())}")
    options = format_options_of(arguments, sets)
    read_options = next(options[name] for name in sets if name not in arguments.keep)
    if arguments.format == "coco":
        # A file that was written names images by their paths from the root.
        read_options = {key: value for key, value in read_options.items() if key != "image_dir"}
    # Folds have two lists each; the command is for the first fold.
    names = {part.rpartition("_")[2]: text for part, text in [*lists.items()][: None if arguments.folds is None else 2]}
    options_by_name = dict.fromkeys(names, read_options)
    for name in arguments.keep:
        names[PurePosixPath(name).stem] = sets[name]
        options_by_name[PurePosixPath(name).stem] = options[name]
    _print_command(arguments, names, pool, options_by_name, {})


def _print_command(
    arguments: argparse.Namespace,
    names: Mapping[str, str],
    pool: AnnotationTable,
    options: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> None:
    """Print the training command for sets.

    Args:
        arguments: The arguments of the command.
        names: Name of the file, folder or list of each split.
        pool: The images that were split.
        options: Options of the reader for each split.
        settings: Further keys of the config of the dataset.
    """
    settings = {"policy": parse_actions(arguments.policy), "storage": storage_of(arguments), **settings}
    shared = {"class_names": arguments.class_names, **settings}
    command = training_command(arguments.format, arguments.root, names, pool, options, **shared)
    print_lines("next:", f"  {command}")
