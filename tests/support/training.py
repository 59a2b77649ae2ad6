"""Training runs to be interrupted: ``python -m tests.support.training`` forks one for each line that it reads.

A run is this very interpreter, with everything imported, in a session of its own: it ends as a script does, by an
exception that nobody caught, and all its processes can be found. Lines are JSON: arguments of the loader, ``way``
("whole" or "break": epochs are broken off) and ``stderr`` (a file). For each line two come back: the run's process, and
how it ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader

NUM_EPOCHS = 4


class Images(Dataset[torch.Tensor]):
    """Large enough for shared memory, and a few milliseconds of work."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((3, 64, 64), float(index))


def train(arguments: dict[str, Any], way: str) -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(Images(), batch_size=4, seed=1, num_workers=2, **arguments)
    weight = torch.zeros(3)
    for epoch in range(NUM_EPOCHS):
        for number, batch in enumerate(loader):
            weight += batch.mean((0, 2, 3))
            if way == "break" and number > epoch:
                break
    time.sleep(60)  # the end, with workers that live on if they are to


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def become_a_run() -> dict[str, Any]:
    """Fork for each line; return what it says in the fork, and never in the parent."""
    for line in sys.stdin:
        told = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            file = os.open(told.pop("stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 2)
            os.close(file)
            os.close(0)
            os.close(reader)
            os.write(writer, b"!")
            os.close(writer)
            return told
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in the background
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork")  # unless a run's arguments say otherwise
    told = become_a_run()
    train(told.pop("arguments"), told.pop("way"))
