"""``lit-loader convert``: sets of one format become a folder in another, with their images."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lit_loader.annotations import KEYPOINT_SCHEMAS, AnnotationTable, KeypointSchema
from lit_loader.annotations.splitting import check_groups, group_names, stratified_split
from lit_loader.cli.figures import figures_of, print_figures, print_reports
from lit_loader.cli.placing import check_rows_agree, image_places, place_images, relocated
from lit_loader.cli.printing import print_lines
from lit_loader.cli.reading import read_sets, shared_images
from lit_loader.cli.settings import UsageError, parse_options, parse_shares, parse_splits
from lit_loader.cli.target import RECORD, new_folder
from lit_loader.errors import AnnotationError
from lit_loader.formats import find_writer, write_annotations
from lit_loader.formats.registry import make_format, takes_option

__all__ = ["convert"]

_HYDRA_WORDS = ("null", "true", "false", "nan", "inf")


def convert(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used, or the new format cannot hold them.
        OSError: If a file cannot be read or written.
    """
    splits = parse_splits(arguments.names, default=arguments.split)
    shares = parse_shares(arguments.hold_out, splits)
    options = _writer_options(arguments)
    if arguments.format == "image_folder":
        _check_out_is_no_class(arguments, splits)
    read = read_sets(arguments, splits)
    tables = _held_out(arguments, read, shares)
    if arguments.to in ("voc", "yolo"):  # one file an image
        check_rows_agree(tables, shared_images(tables))
    image_dir = str(options.get("image_dir", "JPEGImages")) if arguments.to == "voc" else "images"
    places = image_places(tables.values(), image_dir=image_dir)
    progress = not arguments.no_progress
    root = Path(arguments.root)
    read_from = {root, *(root / name for name in splits.values()), *((root / path).parent for path in places)}
    lost: list[str] = []
    with new_folder(arguments.out, overwrite=arguments.overwrite, keep=read_from) as folder:
        for split, table in tables.items():
            lost += write_annotations(
                arguments.to,
                relocated(table, root=folder, places=places, image_dir=image_dir, split=split),
                folder,
                find_writer(arguments.to).name_of_split.format(split),
                allow_loss=arguments.allow_loss,
                progress=progress,
                **options,
            )
        placed = place_images(tables.values(), places, folder, how=arguments.images, progress=progress)
        record = {"from": arguments.format, "to": arguments.to, "read": splits, "shares": shares}
        (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print_figures({split: figures_of(table) for split, table in tables.items()})
    print_reports(read)
    print_lines(*(f"not kept: {loss}" for loss in dict.fromkeys(lost)), placed)
    first = next(iter(tables.values()))
    command = _next_command(
        arguments, list(tables), schema=first.keypoint_schema, attributes=bool(first.attributes)
    )
    print_lines(f"written to {arguments.out}; next:", f"  {command}")
    missing = [split for split in ("val", "test") if split not in tables]
    if missing and "train" in tables:
        taken = " ".join(f"--hold-out {split}=0.1" for split in missing)
        print_lines(f"there is no split {' and no '.join(missing)}; {taken} takes images of train for it")


def _writer_options(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        writer = find_writer(arguments.to)
        options = parse_options(arguments.writer_option, [""], takes=partial(takes_option, writer))[""]
        make_format(writer, options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return options


def _check_out_is_no_class(arguments: argparse.Namespace, splits: Mapping[str, str]) -> None:
    """Refuse a new folder below the one whose folders are classes: the next time it would be one of them."""
    for name in splits.values():
        folder = Path(arguments.root, name).absolute()
        if Path(arguments.out).absolute().resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"--out {arguments.out} lies in {folder}, in which every folder is a class; give a folder "
                "outside of it"
            )


def _held_out(
    arguments: argparse.Namespace, read: Mapping[str, AnnotationTable], shares: Mapping[str, float]
) -> dict[str, AnnotationTable]:
    """Return the splits, those included that are held out of ``train``."""
    tables, pattern = dict(read), arguments.group_pattern
    try:
        if shares:
            train = tables["train"]
            groups = None if pattern is None else group_names(train.image_paths, pattern)
            parts = stratified_split(train, shares, groups=groups, seed=arguments.seed)
            tables |= {split: train.select(rows) for split, rows in parts.items()}
        if pattern is not None:
            paths = {split: list(table.image_paths) for split, table in tables.items()}
            check_groups(paths, pattern, root=arguments.root)
    except AnnotationError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    return tables


def _next_command(
    arguments: argparse.Namespace, splits: list[str], *, schema: KeypointSchema | None, attributes: bool
) -> str:
    """Return the command that trains on the new set; of a format that `VocSource` does not read, one that looks."""
    if arguments.to == "voc":
        words = [] if schema is None else ["experiment=unified" if attributes else "experiment=landmarks"]
        given = {"root": arguments.out, **dict(word.split("=", 1) for word in arguments.writer_option)}
        if "train" not in splits:
            given["train"] = splits[0]
        if "test" not in splits:
            given["test"] = "val" if "val" in splits else splits[0]
        words += ["dataset=voc", *(f"dataset.{key}={_hydra_text(value)}" for key, value in given.items())]
        if "val" not in splits:
            words.append("dataset.val=null")
        return shlex.join(["python", "examples/train.py", *words])
    names = [find_writer(arguments.to).name_of_split.format(split) for split in splits]
    options = [word for given in arguments.writer_option for word in ("--option", given)]
    if arguments.to == "keypoints_txt" and schema is not None:
        options += ["--option", f"schema={_schema_value(schema)}"]
    return shlex.join(["lit-loader", "index", arguments.to, arguments.out, *names, *options])


def _hydra_text(text: str) -> str:
    """Return a text as Hydra's overrides take it: quoted unless it is a plain word or path."""
    if re.fullmatch(r"[./]*[A-Za-z_][\w./-]*", text, re.ASCII) and text.lower() not in _HYDRA_WORDS:
        return text
    # Backslashes count before a quote, before "${", which would be looked up, and at the end.
    quoted = re.sub(r"(\\*)('|\$\{|$)", lambda found: found[1] * 2 + ("\\" + found[2]) * bool(found[2]), text)
    return f"'{quoted}'"


def _schema_value(schema: KeypointSchema) -> str:
    for name, known in KEYPOINT_SCHEMAS.items():
        if known == schema:
            return name
    pairs = [[schema.names[position] for position in pair] for pair in schema.flip_pairs]
    return json.dumps(
        {"names": schema.names, "flip_pairs": pairs, "normalization_pair": schema.normalization_pair}
    )
