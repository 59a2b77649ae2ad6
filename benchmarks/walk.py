"""How much of the package does one batch pass? Files and classes whose functions run, counted at run time.

    python -m benchmarks.walk [--setup] [--list]

A loader with two forked workers gives three batches of four samples. For the third batch this counts, in the main
process and in worker 0 together (what runs in both counts once):

    main process  from the call of next() that returns the third batch until it returns
    worker 0      one round of its loop: from the first sample of the second batch that it makes to the first
                  sample of its third

``--setup`` counts from the call of the constructor on, and in worker 0 from its fork on. ``--list`` prints the
functions.

A file counts if a function of it is called, a class if a function that its body defines is, properties included. A
generator that goes on is called. Comprehensions and lambdas belong to the function that they stand in. Not counted:
functions that were called before and still run, such as a worker's loop; what runs at import; and code without a file,
such as a dataclass's ``__init__``.

NOTE [The same walk every time]
    Which functions run depends on who waits for whom. So the first two batches wait for each other, which gives each
    worker one of them; and the following ones wait until the main process has asked for the third, which then is
    neither ready nor received with an earlier one. Worker 1 leaves the next batch to worker 0, which ends its round.
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
BATCH_SIZE, NUM_BATCHES = 4, 16
WAIT_S, FIRST_TWO_S = 60.0, 5.0

MOST_FILES, MOST_CLASSES = 22, 16
"""The bar for the third batch."""


class Walk(NamedTuple):
    """What was passed.

    Attributes:
        functions: ``(file, qualified name)`` of each function, sorted.
    """

    functions: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        """The files, by their paths in the package."""
        return sorted({file for file, _ in self.functions})

    @property
    def classes(self) -> list[tuple[str, str]]:
        """The classes, each with its file."""
        return sorted({(file, home) for file, name in self.functions if (home := _class_of(name))})


class Recorder:
    """A profile function that notes what is called in this process, before the round that is counted and in it."""

    def __init__(self) -> None:
        self.before: set[CodeType] = set()
        self.round: set[CodeType] = set()
        self.current: set[CodeType] | None = None  # neither, None: nothing is noted

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call, or that a generator goes on, which is the same event."""
        if event == "call" and self.current is not None:
            self.current.add(frame.f_code)

    def begin_round(self) -> None:
        """Note calls for the round from now on."""
        self.current = self.round
        sys.setprofile(self)

    def end_round(self) -> tuple[Walk, Walk]:
        """Note nothing from now on; return the round, and all from the start."""
        self.current = None
        sys.setprofile(None)
        return _walk(self.round), _walk(self.before | self.round)


class Batches(Dataset[tuple[torch.Tensor, int]]):
    """Samples that know the batch that they are for; see NOTE [The same walk every time].

    Args:
        numbers: The number of each index's batch.
        recorder: Notes what runs; worker 0's copy of it is begun and ended here.
        report: Where worker 0 writes what its copy noted.
    """

    def __init__(self, numbers: dict[int, int], recorder: Recorder, report: Path) -> None:
        self.numbers, self.recorder, self.report = numbers, recorder, report
        self.first_two, self.third_is_asked_for, self.reported = FORK.Barrier(2), FORK.Event(), FORK.Event()
        self.worker = -1
        self.begun: list[int] = []  # the numbers of the batches that this worker has begun

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
        """Note which worker this is."""
        self.worker = worker


def walk() -> tuple[Walk, Walk]:
    """Return what the third batch passes, and what passes from the constructor on."""
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
        worker = _read(dataset.report)
        del batches, loader
    return _joined(third, worker[0]), _joined(everything, worker[1])


def _loader(dataset: Batches, **workers: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=0,
        worker_init_fn=dataset.begin_worker,
        **workers,
    )


def _order() -> list[int]:
    """Return the indices in the order of the epoch; found in another process, to leave this one's caches empty."""
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
    return tuple(Walk([(file, name) for file, name in found[0]]) for found in (third, everything))  # type: ignore[return-value]


def _joined(a: Walk, b: Walk) -> Walk:
    return Walk(sorted({*a.functions, *b.functions}))


def _walk(codes: set[CodeType]) -> Walk:
    """Return the package's functions among code objects; module and class bodies are none."""
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED:
            found.add((str(path.relative_to(PACKAGE)), _named(code.co_qualname)))
    return Walk(sorted(found))


def _named(name: str) -> str:
    """Return the name of the function that a comprehension or lambda stands in; any other name as it is."""
    while name.endswith(">"):
        outer, _, _ = name.rpartition(".<locals>.")
        if not outer:  # at the top of a module
            return name
        name = outer
    return name


def _class_of(name: str) -> str | None:
    home, _, _ = name.rpartition(".")
    return None if not home or home.endswith("<locals>") else home


def main(rounds: int = 1) -> None:
    """Count once: the figures are the same in every round."""
    third, everything = walk()
    print(f"\nwhat a batch passes: {_sizes(third)}; from the constructor on: {_sizes(everything)}")
    judge("files that the third batch passes", [len(third.files)], at_most=MOST_FILES)
    judge("classes that the third batch passes", [len(third.classes)], at_most=MOST_CLASSES)


def _sizes(found: Walk) -> str:
    return f"{len(found.files)} files, {len(found.classes)} classes, {len(found.functions)} functions"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=walk.__doc__)
    parser.add_argument("--setup", action="store_true", help="count from the constructor on")
    parser.add_argument("--list", action="store_true", help="list the functions by file")
    given = parser.parse_args()
    counted = walk()[given.setup]
    print(_sizes(counted))
    if given.list:
        for each in counted.files:
            print(f"{each}\n    {', '.join(name for file, name in counted.functions if file == each)}")
