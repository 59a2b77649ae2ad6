"""``lit-loader convert``: write sets of one format to a folder in another format, with their images."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lit_loader.annotations import KEYPOINT_SCHEMAS, AnnotationTable, KeypointSchema
from lit_loader.annotations.figures import figures_of
from lit_loader.annotations.formats import find_reader, find_writer, write_annotations
from lit_loader.annotations.formats.keypoints_txt import column_names
from lit_loader.annotations.formats.registry import format_options, make_format, takes_option
from lit_loader.annotations.formats.yolo import YoloWriter
from lit_loader.annotations.splitting import check_groups, group_names, hold_out
from lit_loader.app.commands.index import print_figures, print_reports
from lit_loader.app.commands.next_command import splits_by_stage, splits_left_out, training_command
from lit_loader.app.commands.output_folder import check_rows_agree, image_places, new_folder, place_images, write_record
from lit_loader.app.commands.printing import print_lines
from lit_loader.app.commands.reading import read_sets
from lit_loader.app.commands.roots import folder_of, refuse_url, traits_of
from lit_loader.app.commands.settings import UsageError, parse_options, parse_shares, parse_splits, usage_errors
from lit_loader.foundation.escaping import shell_command

__all__ = ["convert"]


def convert(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used, or the new format cannot hold them.
        OSError: If a file cannot be read or written.
    """
    to = arguments.to
    if arguments.images != "none":
        refuse_url(arguments, "its images are not on this host", "pass --images none, or download the data set")
    root = folder_of(arguments, arguments.root)
    splits = parse_splits(arguments.names, default=arguments.split)
    shares = parse_shares(arguments.hold_out, splits)
    # Wrong options are reported before the annotations are read, which may take minutes.
    with usage_errors():
        writer = find_writer(to)
        options = parse_options(arguments.writer_option, [""], takes=partial(takes_option, writer))[""]
        make_format(writer, options)
    if arguments.format == "image_folder":
        _check_out_is_no_class(arguments, splits)
    source_tables = read_sets(arguments, splits)
    tables, copies = _hold_out(arguments, source_tables, shares)
    if to in ("voc", "yolo", "dota"):  # these formats have one annotation file per image
        check_rows_agree(tables)
    image_dir = "images"
    if to in ("voc", "dota"):
        image_dir = str(options.get("image_dir", format_options(writer)["image_dir"].default))
    places = image_places(tables.values(), image_dir=image_dir)
    # The reader of the new format finds a split by this name.
    names = {split: writer.name_of_split.format(split) for split in tables}
    source_paths = {root, *(root / name for name in splits.values()), *((root / path).parent for path in places)}
    # Images go last, since placing them is slow and a writer may still refuse a table.
    lost: list[str] = []
    with new_folder(arguments.out, overwrite=arguments.overwrite, keep=source_paths) as folder:
        for split, table in tables.items():
            paths = [places[path] for path in table.image_paths]
            ids = [str(PurePosixPath(path).relative_to(image_dir).with_suffix("")) for path in paths]
            moved = replace(table, root=folder, image_paths=paths, image_ids=ids, split=split)
            loss = {"allow_loss": arguments.allow_loss, "progress": arguments.progress}
            lost += write_annotations(to, moved, folder, names[split], **loss, **options)
        placed = place_images(root, places, folder, how=arguments.images, progress=arguments.progress)
        write_record(folder, {"from": arguments.format, "to": to, "read": splits, "shares": shares})
    print_figures({split: figures_of(table) for split, table in tables.items()})
    print_reports(source_tables)
    # Two sets may lose the same kind of annotation.
    print_lines(*(f"lost: {loss}" for loss in dict.fromkeys(lost)), *copies, placed)
    _print_next_steps(arguments, options, tables, splits, names)


def _print_next_steps(
    arguments: argparse.Namespace,
    writer_options: Mapping[str, Any],
    tables: Mapping[str, AnnotationTable],
    splits: Mapping[str, str],
    names: Mapping[str, str],
) -> None:
    """Print how to read the new folder and train on it.

    Args:
        arguments: The arguments of the command.
        writer_options: Options of the format that was written.
        tables: The tables of the new splits.
        splits: Name of the file, folder or list that was read for each split.
        names: Name of the file, folder or list that was written for each split.
    """
    to = arguments.to
    first = tables[str(splits_by_stage(tables)["train"])]
    reader_options = {name: value for name, value in writer_options.items() if name in format_options(find_reader(to))}
    if to == "keypoints_txt" and first.keypoint_schema is not None:
        reader_options["schema"] = _schema_value(first.keypoint_schema)
    writer = make_format(find_writer(to), writer_options)
    if isinstance(writer, YoloWriter) and writer.task_of(first) == "obb":
        # No file of YOLO says that its rows are oriented boxes.
        reader_options["task"] = "obb"
    class_names = _lost_class_names(to, writer_options, tables)
    command = training_command(
        to, arguments.out, names, first, dict.fromkeys(names, reader_options), class_names=class_names
    )
    # --class-names separates names by commas.
    if class_names and not any("," in name for name in class_names):
        words = ["--class-names", ",".join(class_names)]
        print_lines(f"the files do not hold the order of the classes; to read them again, pass {shell_command(words)}")
    print_lines(
        *splits_left_out({split: splits.get(split, split) for split in tables}),
        f"written to {arguments.out}; next:",
        f"  {command}",
    )
    missing = [split for split in ("val", "test") if split not in tables]
    if missing and "train" in tables:
        hold_out_words = " ".join(f"--hold-out {split}=0.1" for split in missing)
        print_lines(f"no split is named {' or '.join(missing)}; {hold_out_words} takes images from train")


def _check_out_is_no_class(arguments: argparse.Namespace, splits: Mapping[str, str]) -> None:
    """Refuse a new folder inside of a folder of classes: the next time it would be read as a class."""
    for name in splits.values():
        folder = (folder_of(arguments, arguments.root) / name).absolute()
        if Path(arguments.out).absolute().resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"--out {arguments.out} is in {folder}, where every folder is a class; give a folder outside of it"
            )


def _hold_out(
    arguments: argparse.Namespace, source_tables: Mapping[str, AnnotationTable], shares: Mapping[str, float]
) -> tuple[dict[str, AnnotationTable], list[str]]:
    """Return the splits, including those held out of ``train``, and a line about copies of images if there are any."""
    tables = dict(source_tables)
    pattern = arguments.group_pattern
    text = ""
    with usage_errors():
        if shares:
            train = source_tables["train"]
            groups = None if pattern is None else group_names(train.image_paths, pattern)
            parts, text, _ = hold_out(
                train,
                shares,
                groups=groups,
                seed=arguments.seed,
                cache_dir=arguments.cache_dir,
                traits=traits_of(arguments),
            )
            # This replaces `train` by the images that are not held out.
            tables |= {split: train.select(rows) for split, rows in parts.items()}
        # Splits that were read from separate lists may also share a group.
        if pattern is not None:
            paths = {split: list(table.image_paths) for split, table in tables.items()}
            check_groups(paths, pattern, root=arguments.root)
    return tables, [text] if text else []


def _lost_class_names(to: str, options: Mapping[str, Any], tables: Mapping[str, AnnotationTable]) -> list[str]:
    """Return the class names in the order of their ids if reading the written list would give another order.

    Lists and DOTA have the class of each object, and the readers sort the classes that occur unless ``class_names`` is
    given.

    Returns:
        The class names, or an empty list if the reader would find the same ones.
    """
    has_names = to == "dota" or (to == "keypoints_txt" and "class" in column_names(options["columns"]))
    if not has_names:
        return []
    class_names = list(next(iter(tables.values())).class_names)
    class_ids = np.unique(np.concatenate([table.labels for table in tables.values()]))
    occurring = sorted(class_names[class_id] for class_id in class_ids)
    return [] if class_names == occurring else class_names


def _schema_value(schema: KeypointSchema) -> Any:
    """Return a schema as an option of a reader: its name, or its fields if it has no name."""
    for name, named_schema in KEYPOINT_SCHEMAS.items():
        if named_schema == schema:
            return name
    pairs = [[schema.names[position] for position in pair] for pair in schema.flip_pairs]
    points = {"names": list(schema.names), "flip_pairs": pairs, "normalization_pair": schema.normalization_pair}
    # Only where known: the option is part of a command that people read and paste.
    if schema.sigmas:
        points["sigmas"] = list(schema.sigmas)
    if schema.skeleton:
        points["skeleton"] = [list(edge) for edge in schema.skeleton]
    return points
