"""Reading of the sets that a command names: FORMAT ROOT NAME..., or the folder, whose layout is then found."""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import find_reader, read_annotations
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.registry import takes_option
from lit_loader.annotations.layouts import Layout, choose_layout
from lit_loader.annotations.merge import with_same_names
from lit_loader.app.commands.printing import print_lines
from lit_loader.app.commands.roots import errors_with_url, folder_of, is_place
from lit_loader.app.commands.settings import (
    UsageError,
    parse_actions,
    parse_options,
    parse_splits,
    parse_value,
    usage_errors,
)
from lit_loader.errors import AnnotationError
from lit_loader.foundation.escaping import shell_command

__all__ = ["format_options_of", "named_splits", "read_broken_sets", "read_sets"]

# Training stops at these problems, while a check reads on to find the others.
_READ_ON: Final = {
    "malformed": "drop",
    "missing_annotation": "empty",
    "schema_mismatch": "unite",
    "turned_image": "keep",
    "unknown_class": "drop",
}
_KEEP_IMAGES: Final = {"missing_image": "keep", "unreadable_image": "keep"}
_DROP_IMAGES: Final = {"missing_image": "drop", "unreadable_image": "drop"}


def named_splits(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the name of the file, folder or list of each split.

    A folder without a format is searched, and the result printed; names after it select sets that were found. The
    search completes the arguments, so that they name format, root, names and options.

    Args:
        arguments: The arguments of a command that may search, see ``_add_reading``.

    Raises:
        UsageError: If the arguments are incomplete, or the folder does not exist.
        AnnotationError: If no layout fits, or several do.
    """
    if arguments.root is None or (is_place(arguments.format) and not _is_format(arguments.format)):
        _fill_in_layout(arguments)
    elif arguments.layout is not None or not arguments.names:
        raise UsageError("give FORMAT, ROOT and at least one NAME; or the folder alone, and --layout if several fit")
    return parse_splits(arguments.names, default=None)


def _is_format(name: str) -> bool:
    # Packed sets have no annotation files, and no reader of them.
    if name == "packed":
        return True
    try:
        find_reader(name)
    except ValueError:
        return False
    return True


def _fill_in_layout(arguments: argparse.Namespace) -> None:
    """Set format, names and options of the data set in the folder that is the first argument, and print them.

    Raises:
        UsageError: If the folder does not exist, or lacks a set that is named after it.
        AnnotationError: If no layout fits, or several do.
    """
    if not is_place(arguments.format):
        raise UsageError(f"{arguments.format!r} is not a folder; give a folder, or FORMAT, ROOT and NAME")
    with errors_with_url(arguments, arguments.format):
        layout = choose_layout(folder_of(arguments, arguments.format), arguments.layout)
    root = arguments.format if layout.root == "." else posixpath.join(arguments.format, layout.root)
    stages = _selected_stages(arguments, layout, root)
    settings = dict(layout.options)
    for stage in stages:
        settings |= {f"{stage}:{key}": value for key, value in layout.stage_options.get(stage, {}).items()}
    options = [f"{key}={_yaml_text(value)}" for key, value in settings.items()]
    policy = [f"{problem}={action}" for problem, action in layout.policy.items()]
    names = [f"{stage}={name}" for stage, name in stages.items()]
    # Options of the command line come last, because they override those that were found.
    arguments.option = [*options, *arguments.option]
    arguments.policy = [*policy, *arguments.policy]
    words = ["lit-loader", arguments.command, layout.format, root, *names]
    words += [word for option in arguments.option for word in ("--option", option)]
    words += [word for action in arguments.policy for word in ("--policy", action)]
    words += [] if arguments.class_names is None else ["--class-names", ",".join(arguments.class_names)]
    words += [word for option in arguments.storage for word in ("--storage", option)]
    if not arguments.json:
        print_lines(f"{arguments.format}: {layout.format} ({layout.reason})", f"  {shell_command(words)}")
    arguments.format = layout.format
    arguments.root = root
    arguments.names = names


def _selected_stages(arguments: argparse.Namespace, layout: Layout, root: str) -> dict[str, str]:
    """Return the stages of a layout that are named after its folder, by the stage or its file; all without names."""
    words = [] if arguments.root is None else [arguments.root, *arguments.names]
    stages = {stage: name for stage, name in layout.stages.items() if not words or {stage, name} & set(words)}
    for word in words:
        if not any(word in pair for pair in stages.items()):
            command = shell_command(["lit-loader", arguments.command, layout.format, root, word])
            listed = f"the sets that {root} has as {layout.format}: {', '.join(layout.stages)}"
            raise UsageError(f"{word!r} is none of {listed}; for another set: {command}")
    return stages


def _yaml_text(value: Any) -> str:
    """Write a value of an option, which is read as YAML; only unusual text needs quotes."""
    if isinstance(value, str) and value.isprintable() and parse_value(value) == value:
        return value
    return json.dumps(value)


def read_sets(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, AnnotationTable]:
    """Read the sets of a command, and give them the same classes and attributes.

    Args:
        arguments: The arguments of a command that reads annotations.
        splits: Name of the file, folder or list of each split.

    Raises:
        UsageError: If the root does not exist, the format, an option or a policy is unknown, or a reader refuses a
            value.
        AnnotationError: If the annotations cannot be used.
    """
    if not is_place(arguments.root):
        raise UsageError(f"ROOT {arguments.root!r} is not a folder; give the folder of the dataset")
    folder = folder_of(arguments, arguments.root)
    with usage_errors(), errors_with_url(arguments, arguments.root):
        options = format_options_of(arguments, splits)
        read = partial(
            read_annotations,
            arguments.format,
            Folder(folder),  # one object for all sets lists each folder only once
            class_names=arguments.class_names,
            policy=parse_actions(arguments.policy),
            cache_dir=arguments.cache_dir,
            num_workers=arguments.num_workers,
            progress=arguments.progress,
        )
        # A set lacks classes that occur only in another one, so equal names need a merge after reading.
        tables = [read(name, **options[split]) for split, name in splits.items()]
    return dict(zip(splits, with_same_names(tables), strict=True))


def read_broken_sets(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, AnnotationTable]:
    """Read the sets under a policy that continues after problems; the user's policy has priority.

    Args:
        arguments: The arguments of a command that reads annotations.
        splits: Name of the file, folder or list of each split.

    Raises:
        UsageError: If an argument is wrong, as in `read_sets`.
        AnnotationError: If the annotations cannot be read at all.
    """
    user_policy = arguments.policy
    try:
        arguments.policy = [*_words(_READ_ON | _KEEP_IMAGES), *user_policy]
        return read_sets(arguments, splits)
    except AnnotationError:
        # Coordinates that are fractions of an image, as in YOLO files, need its size. Another error comes again.
        arguments.policy = [*_words(_READ_ON | _DROP_IMAGES), *user_policy]
        return read_sets(arguments, splits)
    finally:
        arguments.policy = user_policy


def _words(policy: Mapping[str, str]) -> Iterator[str]:
    return (f"{problem}={action}" for problem, action in policy.items())


def format_options_of(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the options of the format for each split."""
    takes = partial(takes_option, find_reader(arguments.format))
    return parse_options(arguments.option, list(splits), takes=takes)
