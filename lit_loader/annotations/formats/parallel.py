"""Apply a function to many files, in this process or in a pool, with a progress bar."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

__all__ = ["INLINE_FILES", "iter_chunks", "paused_spinners", "status_spinner"]

# Measured: from this number of files on, two processes are faster than one in spite of the cost of forking.
INLINE_FILES: Final = 4_000
# Smaller chunks cost more than their reading takes; with fewer chunks, one process reads the last one alone.
_MIN_CHUNK_FILES: Final = 200
_MAX_CHUNK_FILES: Final = 1_000
_NUM_CHUNKS: Final = 32
_MAX_WORKERS: Final = 16
_SPINNERS: Final[list[Status]] = []  # currently shown, the innermost last

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def iter_chunks(
    function: Callable[[Sequence[ItemT]], ResultT],
    items: Sequence[ItemT],
    *,
    num_workers: int | None,
    progress: bool,
    description: str,
) -> Iterator[ResultT]:
    """Apply ``function`` to consecutive chunks of ``items``, and yield each result in order as soon as possible.

    The chunks do not depend on ``num_workers``, so the results do not either; of several errors the first in order is
    raised. All processes have ended when the generator ends.

    Args:
        function: Picklable function of 200 to 1,000 items.
        items: Picklable items.
        num_workers: Number of processes; 0 for this process; None for this process below ``INLINE_FILES`` items, else
            one process per available CPU.
        progress: Whether to draw a progress bar if standard error is a terminal.
        description: Text next to the bar.

    Raises:
        ValueError: If ``num_workers`` is negative.
    """
    if num_workers is not None and num_workers < 0:
        raise ValueError(f"num_workers={num_workers} must be None or >= 0")
    step = min(max(_MIN_CHUNK_FILES, len(items) // _NUM_CHUNKS), _MAX_CHUNK_FILES)
    chunks = [items[start : start + step] for start in range(0, len(items), step)]
    # More processes than chunks would only be forked to wait.
    workers = min(_default_workers(len(items)) if num_workers is None else num_workers, len(chunks))
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
    with ExitStack() as stack:
        # A spinner's thread must not hold a lock while a process forks.
        stack.enter_context(paused_spinners())
        results: Iterator[ResultT] = map(function, chunks)
        if workers > 0:
            methods = multiprocessing.get_all_start_methods()
            # Fork passes the function without importing modules again, which takes longer than reading a chunk.
            context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
            # gc.freeze: a garbage collection in a forked process would touch, and so copy, every inherited page.
            pool = ProcessPoolExecutor(workers, mp_context=context, initializer=gc.freeze)
            # The consumer may stop early or an error may be raised; chunks that have not started need not run.
            stack.callback(pool.shutdown, cancel_futures=True)
            with warnings.catch_warnings():
                # Python 3.12 warns about forking while threads run; the children take no lock of this process.
                warnings.simplefilter("ignore", DeprecationWarning)
                # A deque, so that each result can be freed after its use.
                futures = deque(pool.submit(function, chunk) for chunk in chunks)
            results = (futures.popleft().result() for _ in chunks)
        # The bar is drawn only now, because its thread must not run while the pool forks.
        stack.enter_context(bar)
        task = bar.add_task(description, total=len(items))
        for chunk, result in zip(chunks, results, strict=True):
            yield result
            # Advanced after the yield, so that the bar also shows the time that the consumer takes.
            bar.advance(task, len(chunk))


@contextmanager
def status_spinner(description: str, *, progress: bool) -> Iterator[None]:
    """Show a spinner if standard error is a terminal, except while a progress bar is drawn.

    Args:
        description: Text next to the spinner.
        progress: Whether to show it.
    """
    console = Console(stderr=True)
    if not progress or not console.is_terminal:
        yield
        return
    with console.status(description) as status:
        _SPINNERS.append(status)
        try:
            yield
        finally:
            _SPINNERS.remove(status)


@contextmanager
def paused_spinners() -> Iterator[None]:
    """Hide the spinners that are shown, because a progress bar needs the terminal to itself."""
    with ExitStack() as stack:
        for status in _SPINNERS:
            status.stop()
            stack.callback(status.start)
        yield


def _default_workers(num_items: int) -> int:
    if num_items < INLINE_FILES or multiprocessing.current_process().daemon:
        return 0  # a daemonic process must not have children
    # The affinity mask, because containers and schedulers often allow fewer CPUs than the machine has.
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if available < 2 else min(available, _MAX_WORKERS)
