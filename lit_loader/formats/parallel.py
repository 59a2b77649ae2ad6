"""A function over many files: in this process for few, in a pool for many, with a progress bar."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

__all__ = ["INLINE_FILES", "map_chunks", "told_while"]

INLINE_FILES: Final = 4_000  # measured: where two processes begin to win over the cost of forking
_CHUNK_FILES: Final = 200
_MAX_WORKERS: Final = 16
_TOLD: Final[list[Status]] = []  # what `told_while` tells now, the innermost last

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_chunks(
    function: Callable[[Sequence[ItemT]], ResultT],
    items: Sequence[ItemT],
    *,
    num_workers: int | None,
    progress: bool,
    description: str,
) -> list[ResultT]:
    """Apply ``function`` to consecutive chunks of ``items`` and return the results in order.

    Chunks do not depend on ``num_workers``, so neither do the results; of several errors the first in
    order is raised. No process is left behind.

    Args:
        function: Picklable; gets up to 200 items.
        items: Picklable items.
        num_workers: Processes; 0 works in this one; None does so below ``INLINE_FILES`` items and otherwise
            takes one process for each available CPU.
        progress: Whether to draw a progress bar on a terminal's standard error.
        description: The bar's words.

    Raises:
        ValueError: If ``num_workers`` is negative.
    """
    if num_workers is not None and num_workers < 0:
        raise ValueError(f"num_workers={num_workers} must be None or >= 0")
    with _nothing_told():
        return _map(function, items, num_workers=num_workers, progress=progress, description=description)


def _map(
    function: Callable[[Sequence[ItemT]], ResultT],
    items: Sequence[ItemT],
    *,
    num_workers: int | None,
    progress: bool,
    description: str,
) -> list[ResultT]:
    chunks = [items[start : start + _CHUNK_FILES] for start in range(0, len(items), _CHUNK_FILES)]
    workers = min(_workers(len(items)) if num_workers is None else num_workers, len(chunks))
    if workers == 0 or len(chunks) == 0:
        return _collect((function(chunk) for chunk in chunks), chunks, progress, description)
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the children parse bytes and take no lock of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            futures = [pool.submit(function, chunk) for chunk in chunks]
        try:
            return _collect((future.result() for future in futures), chunks, progress, description)
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def told_while(description: str, *, progress: bool) -> Iterator[None]:
    """Tell on a terminal's standard error what is being done, until a bar within takes over.

    Args:
        description: The words.
        progress: Whether to tell it.
    """
    console = Console(stderr=True)
    if not progress or not console.is_terminal:
        yield
        return
    with console.status(description) as status:
        _TOLD.append(status)
        try:
            yield
        finally:
            _TOLD.remove(status)


@contextmanager
def _nothing_told() -> Iterator[None]:
    """Stop what is told for a while: a bar wants the terminal alone, and no thread may draw while we fork."""
    for status in _TOLD:
        status.stop()
    try:
        yield
    finally:
        for status in _TOLD:
            status.start()


def _workers(num_items: int) -> int:
    if num_items < INLINE_FILES or multiprocessing.current_process().daemon:
        return 0  # a daemonic process may not have children
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if available < 2 else min(available, _MAX_WORKERS)


def _collect(
    results: Iterator[ResultT], chunks: Sequence[Sequence[ItemT]], progress: bool, description: str
) -> list[ResultT]:
    console = Console(stderr=True) if progress else None
    if console is None or not console.is_terminal:
        return list(results)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    collected = []
    with bar:
        task = bar.add_task(description, total=sum(map(len, chunks)))
        for chunk, result in zip(chunks, results, strict=True):
            collected.append(result)
            bar.advance(task, len(chunk))
    return collected
