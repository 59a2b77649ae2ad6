"""Number of the package's files and classes whose functions run for one batch, counted at run time.

    python -m benchmarks.walk [--setup] [--list]

A loader with two forked workers returns three batches of four samples. For the third batch this counts the functions
in the main process and in worker 0 (those that run in both count once):

    main process  from the call of next() that returns the third batch until it returns
    worker 0      one round of its loop: from the first sample of the second batch that it makes to the first
                  sample of its third

``--setup`` counts from the call of the constructor, and in worker 0 from its fork. ``--list`` prints the functions.

A file counts if one of its functions is called, a class if a function or property of its body is. Resuming a generator
is a call. Comprehensions and lambdas count as the function that contains them. Not counted: functions that were called
earlier and are still running, such as a worker's loop; code that runs at import; and code without a file, such as a
dataclass's ``__init__``.

NOTE [A reproducible walk]
    Which functions run depends on which process waits for which. So the first two batches wait for each other, which
    assigns one to each worker. All later ones wait until the main process has requested the third batch, so that it is
    neither ready nor received together with an earlier one. Worker 1 leaves the next batch to worker 0, which ends its
    round.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

import lit_loader
from benchmarks.rounds import judge
from lit_loader import DataLoader

__all__ = ["Walk", "main", "walk"]

PACKAGE = Path(lit_loader.__file__).parent
FORK: Any = multiprocessing.get_context("fork")
BATCH_SIZE = 4
NUM_BATCHES = 16
WAIT_S = 60.0
FIRST_TWO_S = 5.0

MOST_FILES = 22
MOST_CLASSES = 16
"""The bar for the third batch."""


class Walk(NamedTuple):
    """Functions that were called.

    Attributes:
        functions: ``(file, qualified name)`` of each function, sorted.
    """

    functions: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        """Paths of the files within the package."""
        return sorted({file for file, _ in self.functions})

    @property
    def classes(self) -> list[tuple[str, str]]:
        """Files and names of the classes."""
        return sorted({(file, home) for file, name in self.functions if (home := _class_of(name))})


class Recorder:
    """A profile function that records calls in this process, before the counted round and during it."""

    def __init__(self) -> None:
        self.before: set[CodeType] = set()
        self.round: set[CodeType] = set()
        # Set to add calls to; None to record nothing.
        self.current: set[CodeType] | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Record a call; resuming a generator is the same event."""
        if event == "call" and self.current is not None:
            self.current.add(frame.f_code)

    def begin_round(self) -> None:
        """Start to record calls of the round."""
        self.current = self.round
        sys.setprofile(self)

    def end_round(self) -> tuple[Walk, Walk]:
        """Stop recording; return the calls of the round, and all calls."""
        self.current = None
        sys.setprofile(None)
        return _walk(self.round), _walk(self.before | self.round)


class Batches(Dataset[tuple[torch.Tensor, int]]):
    """Samples that know their batch and wait for their turn; see NOTE [A reproducible walk].

    Args:
        numbers: Batch number of each index.
        recorder: Records calls; this dataset starts and stops worker 0's copy of it.
        report: File to which worker 0 writes its recorded calls.
    """

    def __init__(self, numbers: dict[int, int], recorder: Recorder, report: Path) -> None:
        self.numbers = numbers
        self.recorder = recorder
        self.report = report
        self.first_two = FORK.Barrier(2)
        self.third_is_asked_for = FORK.Event()
        self.reported = FORK.Event()
        self.worker = -1
        # Numbers of the batches that this worker has started.
        self.begun: list[int] = []

    def __len__(self) -> int:
        return BATCH_SIZE * NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = self.numbers.get(index)
        if number is not None and number not in self.begun:
            self.begun.append(number)
            self.begin_batch(number)
        return torch.full((3, 32, 32), float(index)), index

    def begin_batch(self, number: int) -> None:
        """Wait until the batch of this number may be made; in worker 0 begin or end the round."""
        if number < 2:
            # Too late: one worker makes both, and the count may differ a little.
            with suppress(threading.BrokenBarrierError):
                self.first_two.wait(FIRST_TWO_S)
        elif not self.third_is_asked_for.wait(WAIT_S):
            raise TimeoutError("the third batch was not asked for")
        num_begun = len(self.begun)
        if self.worker == 0 and num_begun == 2:
            self.recorder.begin_round()
        elif self.worker == 0 and num_begun == 3:
            unfinished = self.report.with_suffix(".part")
            unfinished.write_text(json.dumps(self.recorder.end_round()))
            unfinished.rename(self.report)
            self.reported.set()
        elif num_begun == 3:
            self.reported.wait(WAIT_S)

    def begin_worker(self, worker: int) -> None:
        """Remember the number of this worker."""
        self.worker = worker


def walk() -> tuple[Walk, Walk]:
    """Return the functions called for the third batch, and those called since the constructor."""
    numbers = {index: n // BATCH_SIZE for n, index in enumerate(_order())}
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        dataset = Batches(numbers, recorder, Path(folder, "report"))
        recorder.current = recorder.before
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            loader = _loader(dataset, num_workers=2, multiprocessing_context="fork")
            batches: Iterator[Any] = iter(loader)
            for _ in range(2):
                next(batches)
            timer = threading.Timer(0.3, dataset.third_is_asked_for.set)
            recorder.current = None
            timer.start()
            recorder.begin_round()
            next(batches)
            third, everything = recorder.end_round()
        finally:
            recorder.current = None
            threading.setprofile(None)
            sys.setprofile(None)
        # Before the loader is deleted, which ends worker 0.
        worker = _read(dataset.report)
        del batches, loader
    return _joined(third, worker[0]), _joined(everything, worker[1])


def _loader(dataset: Batches, **workers: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, seed=0, worker_init_fn=dataset.begin_worker, **workers
    )


def _order() -> list[int]:
    """Return the indices of the epoch, computed in another process so that this one's caches stay empty."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_send_order, args=(sender,))
    process.start()
    order: list[int] = receiver.recv()
    process.join()
    return order


def _send_order(sender: Any) -> None:
    loader = _loader(Batches({}, Recorder(), Path()))
    sender.send([int(index) for _, indices in loader for index in indices])


def _read(report: Path) -> tuple[Walk, Walk]:
    deadline = time.monotonic() + WAIT_S
    while not report.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("worker 0 made no third batch")
        time.sleep(0.01)
    third, everything = json.loads(report.read_text())
    return tuple(Walk([(file, name) for file, name in counts[0]]) for counts in (third, everything))  # type: ignore[return-value]


def _joined(a: Walk, b: Walk) -> Walk:
    return Walk(sorted({*a.functions, *b.functions}))


def _walk(codes: set[CodeType]) -> Walk:
    """Return the package's functions among code objects, without module and class bodies."""
    functions = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED:
            functions.add((str(path.relative_to(PACKAGE)), _named(code.co_qualname)))
    return Walk(sorted(functions))


def _named(name: str) -> str:
    """Return the name of the function that contains a comprehension or lambda; other names unchanged."""
    while name.endswith(">"):
        outer, _, _ = name.rpartition(".<locals>.")
        # At the top of a module.
        if not outer:
            return name
        name = outer
    return name


def _class_of(name: str) -> str | None:
    home, _, _ = name.rpartition(".")
    return None if not home or home.endswith("<locals>") else home


def main(rounds: int = 1) -> None:
    """Count once, because all rounds give the same numbers."""
    third, everything = walk()
    print(f"\nwhat a batch passes: {_sizes(third)}; from the constructor on: {_sizes(everything)}")
    judge("files that the third batch passes", [len(third.files)], at_most=MOST_FILES)
    judge("classes that the third batch passes", [len(third.classes)], at_most=MOST_CLASSES)


def _sizes(walk: Walk) -> str:
    return f"{len(walk.files)} files, {len(walk.classes)} classes, {len(walk.functions)} functions"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=walk.__doc__)
    parser.add_argument("--setup", action="store_true", help="count from the constructor on")
    parser.add_argument("--list", action="store_true", help="list the functions by file")
    arguments = parser.parse_args()
    counted = walk()[arguments.setup]
    print(_sizes(counted))
    if arguments.list:
        for file_name in counted.files:
            print(f"{file_name}\n    {', '.join(name for file, name in counted.functions if file == file_name)}")
