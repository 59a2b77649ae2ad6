"""Reading of packed sets by commands that need no format of annotation files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from lit_loader.annotations import AnnotationTable
from lit_loader.app.commands.roots import reading_of, storage_of
from lit_loader.app.commands.settings import UsageError, usage_errors
from lit_loader.datasets.packed_source import PackedSource
from lit_loader.images import ImageReading

__all__ = ["read_packed_sets", "read_with_images"]


def read_with_images(
    arguments: argparse.Namespace,
    splits: Mapping[str, str],
    read: Callable[[argparse.Namespace, Mapping[str, str]], dict[str, AnnotationTable]],
) -> tuple[dict[str, AnnotationTable], ImageReading]:
    """Read sets, and return them with the reading of their images.

    Args:
        arguments: The arguments of a command that reads annotations.
        splits: Name of the file, folder or list of each split; see `read_packed_sets` for packed sets.
        read: Reads annotation files: `read_sets` or `read_broken_sets`.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the sets cannot be read.
        StorageError: If the store cannot be read.
    """
    if arguments.format == "packed":
        return read_packed_sets(arguments, splits)
    return read(arguments, splits), reading_of(arguments)


def read_packed_sets(
    arguments: argparse.Namespace, splits: Mapping[str, str]
) -> tuple[dict[str, AnnotationTable], ImageReading]:
    """Read sets of a packed set, and return them with the reading of their images.

    Args:
        arguments: The arguments of a command that reads annotations, with ``packed`` as the format.
        splits: Name of the set, or pattern of tar files, of each split.

    Raises:
        UsageError: If an option or a policy of annotation files is given, or a value is refused.
        AnnotationError: If the sets cannot be read.
        StorageError: If the store cannot be read.
    """
    if arguments.option or arguments.policy:
        raise UsageError("--option and --policy are for annotation files, and a packed set has none; leave them out")
    train_set, *other_sets = splits.values()
    with usage_errors():
        source = PackedSource(
            arguments.root,
            train=train_set,
            val=other_sets or None,
            test=None,
            class_names=arguments.class_names,
            storage=storage_of(arguments),
            cache_dir=arguments.cache_dir,
            progress=arguments.progress,
        )
    tables = [*source.tables("train"), *source.tables("val")]
    return dict(zip(splits, tables, strict=True)), source.image_reading(ImageReading())
