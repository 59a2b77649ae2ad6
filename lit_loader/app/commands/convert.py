"""``lit-loader convert``: sets of one format become a folder in another, with their images."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lit_loader.annotations import KEYPOINT_SCHEMAS, AnnotationTable, KeypointSchema
from lit_loader.annotations.formats import find_reader, find_writer, write_annotations
from lit_loader.annotations.formats.keypoints_txt import column_names
from lit_loader.annotations.formats.registry import format_options, make_format, takes_option
from lit_loader.annotations.splitting import check_groups, hold_out
from lit_loader.app.commands.index import figures_of, print_figures, print_reports, read_sets
from lit_loader.app.commands.next_command import splits_by_stage, splits_left_out, training_command
from lit_loader.app.commands.output_folder import (
    check_rows_agree,
    image_places,
    new_folder,
    place_images,
    relocated,
    write_record,
)
from lit_loader.app.commands.printing import print_lines
from lit_loader.app.commands.settings import (
    UsageError,
    parse_options,
    parse_shares,
    parse_splits,
    usage_errors,
)

__all__ = ["convert"]


def convert(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used, or the new format cannot hold them.
        OSError: If a file cannot be read or written.
    """
    to, progress, root = arguments.to, not arguments.no_progress, Path(arguments.root)
    splits = parse_splits(arguments.names, default=arguments.split)
    shares = parse_shares(arguments.hold_out, splits)
    options = _writer_options(arguments)
    if arguments.format == "image_folder":
        _check_out_is_no_class(arguments, splits)
    read = read_sets(arguments, splits)
    tables, copies = _held_out(arguments, read, shares)
    if to in ("voc", "yolo"):  # one file an image
        check_rows_agree(tables)
    image_dir = str(options.get("image_dir", "JPEGImages")) if to == "voc" else "images"
    places = image_places(tables.values(), image_dir=image_dir)
    names = {split: find_writer(to).name_of_split.format(split) for split in tables}
    read_from = {root, *(root / name for name in splits.values()), *((root / path).parent for path in places)}
    lost: list[str] = []
    with new_folder(arguments.out, overwrite=arguments.overwrite, keep=read_from) as folder:
        for split, table in tables.items():
            moved = relocated(table, root=folder, places=places, image_dir=image_dir, split=split)
            loss = {"allow_loss": arguments.allow_loss, "progress": progress}
            lost += write_annotations(to, moved, folder, names[split], **loss, **options)
        placed = place_images(root, places, folder, how=arguments.images, progress=progress)
        write_record(folder, {"from": arguments.format, "to": to, "read": splits, "shares": shares})
    print_figures({split: figures_of(table) for split, table in tables.items()})
    print_reports(read)
    print_lines(*(f"not kept: {loss}" for loss in dict.fromkeys(lost)), *copies, placed)
    first = tables[str(splits_by_stage(tables)["train"])]
    kept = {name: value for name, value in options.items() if name in format_options(find_reader(to))}
    if to == "keypoints_txt" and first.keypoint_schema is not None:
        kept["schema"] = _schema_value(first.keypoint_schema)
    class_names = _class_names_not_kept(to, options, tables)
    command = training_command(
        to, arguments.out, names, first, dict.fromkeys(names, kept), class_names=class_names
    )
    if class_names and not any("," in name for name in class_names):  # which separates them in --class-names
        words = ["--class-names", ",".join(class_names)]
        print_lines(
            f"the files do not hold the order of the classes; to read them again, give {shlex.join(words)}"
        )
    print_lines(
        *splits_left_out({split: splits.get(split, split) for split in tables}),
        f"written to {arguments.out}; next:",
        f"  {command}",
    )
    missing = [split for split in ("val", "test") if split not in tables]
    if missing and "train" in tables:
        taken = " ".join(f"--hold-out {split}=0.1" for split in missing)
        print_lines(f"there is no split {' and no '.join(missing)}; {taken} takes images of train for it")


def _writer_options(arguments: argparse.Namespace) -> dict[str, Any]:
    with usage_errors():
        writer = find_writer(arguments.to)
        options = parse_options(arguments.writer_option, [""], takes=partial(takes_option, writer))[""]
        make_format(writer, options)
    return options


def _check_out_is_no_class(arguments: argparse.Namespace, splits: Mapping[str, str]) -> None:
    """Refuse a new folder below the one whose folders are classes: the next time it would be one of them."""
    for folder in (Path(arguments.root, name).absolute() for name in splits.values()):
        if Path(arguments.out).absolute().resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"--out {arguments.out} lies in {folder}, in which every folder is a class; give a folder "
                "outside of it"
            )


def _held_out(
    arguments: argparse.Namespace, read: Mapping[str, AnnotationTable], shares: Mapping[str, float]
) -> tuple[dict[str, AnnotationTable], list[str]]:
    """Return the splits, those included that are held out of ``train``, and a line on copies if there are some."""
    tables, pattern, text = dict(read), arguments.group_pattern, ""
    with usage_errors():
        if shares:
            given = {"group_pattern": pattern, "seed": arguments.seed, "cache_dir": arguments.cache_dir}
            parts, text, _ = hold_out(read["train"], shares, **given)
            tables |= {split: read["train"].select(rows) for split, rows in parts.items()}
        if pattern is not None:
            paths = {split: list(table.image_paths) for split, table in tables.items()}
            check_groups(paths, pattern, root=arguments.root)
    return tables, [text] if text else []


def _class_names_not_kept(
    to: str, options: Mapping[str, Any], tables: Mapping[str, AnnotationTable]
) -> list[str]:
    """Return the classes in the order of their ids if a list that is read alone gives others; else nothing.

    A list holds the class of each object. Its reader sorts the classes that occur unless ``class_names`` give an order.
    """
    if to != "keypoints_txt" or "class" not in column_names(options["columns"]):
        return []
    class_names = list(next(iter(tables.values())).class_names)
    class_ids = np.unique(np.concatenate([table.labels for table in tables.values()]))
    occurring = sorted(class_names[class_id] for class_id in class_ids)
    return [] if class_names == occurring else class_names


def _schema_value(schema: KeypointSchema) -> Any:
    """Return a schema as the option of a reader: its name if it has one."""
    for name, known in KEYPOINT_SCHEMAS.items():
        if known == schema:
            return name
    pairs = [[schema.names[position] for position in pair] for pair in schema.flip_pairs]
    points = {"names": list(schema.names), "flip_pairs": pairs}
    return points | {"normalization_pair": schema.normalization_pair}
