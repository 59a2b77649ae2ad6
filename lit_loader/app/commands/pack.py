"""``lit-loader pack``: write sets with their images as shards, to a folder or to object storage."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.figures import figures_of
from lit_loader.annotations.packing import PackReport, pack_tables, verify_packed
from lit_loader.annotations.packing.run import Advance
from lit_loader.app.commands.index import print_figures, print_reports, unique_stems
from lit_loader.app.commands.next_command import training_command
from lit_loader.app.commands.printing import print_lines
from lit_loader.app.commands.reading import named_splits, read_sets
from lit_loader.app.commands.roots import storage_of
from lit_loader.app.commands.settings import UsageError, check_split, usage_errors
from lit_loader.foundation.byte_sizes import byte_count, byte_words
from lit_loader.storage.pack_target import FolderTarget, PackTarget, StoreTarget
from lit_loader.storage.settings import is_url, storage_settings

__all__ = ["pack"]


def pack(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0, or 1 if ``--verify`` finds shards that differ from their digests.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations or images cannot be used.
        StorageError: If the store refuses a request.
        OSError: If a file cannot be read or written.
    """
    target = _target(arguments)
    # Of the target; the data set is on this host.
    arguments.storage = []
    if arguments.format is None:
        if not arguments.verify:
            raise UsageError("give a data set to pack, or --verify to compare a packed set with its digests")
        return _verify(arguments, target)
    with usage_errors():
        shard_bytes = byte_count(arguments.shard_size, argument="--shard-size") or 0
    splits = named_splits(arguments)
    # Sets may be files such as annotations/train.json, but shards are called train-000000.tar.
    names = {check_split(stem): split for stem, split in unique_stems(splits).items()}
    _check_place(arguments)
    read_tables = read_sets(arguments, splits)
    tables = {stem: read_tables[split] for stem, split in names.items()}
    with _progress_bar(arguments.progress) as progress:
        report = pack_tables(
            tables,
            target,
            shard_bytes=shard_bytes,
            append=arguments.append,
            num_workers=arguments.num_workers,
            progress=progress,
        )
    print_figures({name: figures_of(table) for name, table in tables.items()})
    print_reports(tables)
    _print_report(report, target)
    exit_code = _verify(arguments, target) if arguments.verify else 0
    _print_next_step(arguments, tables)
    return exit_code


def _target(arguments: argparse.Namespace) -> PackTarget:
    """Return the folder or store of ``--to``, with the settings of ``--storage``."""
    storage = storage_of(arguments)
    if is_url(arguments.to):
        with usage_errors():
            settings = storage_settings(arguments.to, storage, cache_dir=arguments.cache_dir, argument="--to")
            return StoreTarget(settings)
    if storage:
        raise UsageError(f"--storage is for the URL of a store, and --to {arguments.to} is a folder; leave it out")
    return FolderTarget(Path(arguments.to))


def _check_place(arguments: argparse.Namespace) -> None:
    """Refuse data that is not on this host, and a target in the folder that is read."""
    if is_url(arguments.root):
        raise UsageError(f"{arguments.root!r} is in a store; copy the data set to this host, and pack it from there")
    if not is_url(arguments.to) and Path(arguments.to).resolve().is_relative_to(Path(arguments.root).resolve()):
        raise UsageError(f"--to {arguments.to} is in {arguments.root}, which is read; give a folder outside of it")


def _verify(arguments: argparse.Namespace, target: PackTarget) -> int:
    problems = verify_packed(target, progress=arguments.progress)
    if not problems:
        print_lines("verified: all shards and tables have their digests")
        return 0
    print_lines(f"{len(problems)} differences from the digests:", *(f"  {problem}" for problem in problems))
    print_lines("copy these files again, or delete the packed set and pack it anew")
    return 1


def _print_report(report: PackReport, target: PackTarget) -> None:
    size = byte_words(report.num_bytes)
    lines = [f"packed {report.num_images:,} images in {report.num_shards:,} shards, {size}, to {target.place}"]
    if report.num_skipped:
        lines.append(f"{report.num_skipped:,} images were packed before and have not changed")
    if report.num_shared:
        note = "each is in a shard of the first set, so other readers of the tar files see it there alone"
        lines.append(f"{report.num_shared:,} images are in several sets; {note}")
    print_lines(*lines)


def _print_next_step(arguments: argparse.Namespace, tables: Mapping[str, AnnotationTable]) -> None:
    first = next(iter(tables.values()))
    names = {name: name for name in tables}
    command = training_command("packed", arguments.to, names, first, {name: {} for name in names})
    print_lines("next:", f"  {command}")


class _RateColumn(TextColumn):
    """Images and bytes a second."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> str:  # type: ignore[override] # a text is as good as rich's Text
        """Return the rate, or nothing before the first shard."""
        if not task.elapsed or not task.completed:
            return ""
        rate = f"{task.completed / task.elapsed:,.0f} images/s"
        num_bytes = task.fields["num_bytes"]
        return f"{rate}, {byte_words(int(num_bytes / task.elapsed))}/s" if num_bytes else rate


@contextmanager
def _progress_bar(is_shown: bool) -> Iterator[Callable[[str, int], Advance]]:
    """Yield a function that adds a bar, see `pack_tables`."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (is_shown and console.is_terminal)) as bar:

        def add(description: str, total: int) -> Advance:
            task = bar.add_task(description, total=total, num_bytes=0)
            total_bytes = 0

            def advance(num_images: int, num_bytes: int) -> None:
                nonlocal total_bytes
                total_bytes += num_bytes
                bar.update(task, advance=num_images, num_bytes=total_bytes)

            return advance

        yield add
