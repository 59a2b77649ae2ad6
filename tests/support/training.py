"""Training runs to be interrupted: ``python -m tests.support.training`` forks one for each line that it reads.

A run is a fork of this interpreter, with everything imported, in a separate session: it ends like a script, by an
uncaught exception, and all its processes can be found. Lines are JSON: arguments of the loader, ``way`` ("whole" or
"break", which leaves epochs early) and ``stderr`` (a file). Each line is answered by two: the process id of the run,
and its exit code.
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
    time.sleep(60)  # after the last epoch, with persistent workers alive


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def become_a_run() -> dict[str, Any]:
    """Fork for each line; return its content in the fork, and never return in the parent."""
    for line in sys.stdin:
        arguments = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            file = os.open(arguments.pop("stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 2)
            os.close(file)
            os.close(0)
            os.close(reader)
            os.write(writer, b"!")
            os.close(writer)
            return arguments
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in background processes of a shell
    multiprocessing.set_start_method("fork")  # unless a run's arguments say otherwise
    run = become_a_run()
    train(run["arguments"], run["way"])
