"""The sets that a command names, read with the same classes and attributes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.splitting import shared_names
from lit_loader.cli.settings import UsageError, parse_actions, parse_options
from lit_loader.errors import AnnotationError
from lit_loader.formats import find_reader, read_annotations
from lit_loader.formats.folder import Folder
from lit_loader.formats.registry import takes_option

__all__ = ["read_sets", "shared_images"]


def read_sets(arguments: argparse.Namespace, splits: Mapping[str, str]) -> dict[str, AnnotationTable]:
    """Read what a command names.

    Args:
        arguments: The arguments that all commands have.
        splits: For each split the name of what is read.

    Raises:
        UsageError: If there is no such root, the format, an option or a policy is not known, or a reader refuses
            its value.
        AnnotationError: If the annotations cannot be used.
    """
    if not Path(arguments.root).is_dir():
        raise UsageError(f"ROOT {arguments.root!r} is not a folder; give the folder of the data set")
    given = arguments.class_names
    names = None if given is None else [name.strip() for name in given.split(",")]
    try:
        reader = find_reader(arguments.format)
        folder = Folder(arguments.root)  # whose folders are listed once for all sets
        policy = parse_actions(arguments.policy)
        options = parse_options(arguments.option, list(splits), takes=partial(takes_option, reader))
        tables = [
            read_annotations(
                arguments.format,
                folder,
                name,
                class_names=names,
                policy=policy,
                cache_dir=arguments.cache_dir,
                num_workers=arguments.num_workers,
                progress=not arguments.no_progress,
                **options[split],
            )
            for split, name in splits.items()
        ]
    except AnnotationError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return dict(zip(splits, with_same_names(tables), strict=True))


def shared_images(tables: Mapping[str, AnnotationTable]) -> list[tuple[str, str, list[str]]]:
    """Return each two sets that have images in common, and these."""
    return list(shared_names({name: table.image_paths for name, table in tables.items()}))
