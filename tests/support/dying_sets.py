"""Data sets whose workers die at chosen points, each point once: who came first is known by a file."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.engine.channels import FrameWriter
from lit_loader.memory import SlotWriter

__all__ = ["Dying", "Waiting", "backend_of", "die", "first_time", "poison_pipe", "poison_slot"]


def first_time(marks: Path, name: str) -> bool:
    """Return whether this is the first call, over all processes."""
    try:
        os.close(os.open(marks / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die(how: str = "kill") -> None:
    """End this process."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    elif how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    os._exit(7)


class Dying(Dataset):
    """Samples that draw from three generators; those of some indices end their worker the first time."""

    def __init__(self, size: int, marks: Path, deaths: dict[int, str] | None = None, side: int = 40) -> None:
        self.size = size
        self.marks = marks
        self.deaths = deaths or {}
        self.side = side

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, object]:
        sample = {
            "index": index,
            "noise": torch.rand(3, self.side, self.side),
            "array": np.random.random(5),
            "number": random.random(),
        }
        if index in self.deaths and first_time(self.marks, f"death-{index}"):
            die(self.deaths[index])
        return sample


class Waiting(Dying):
    """Sample ``at`` waits for the file "go" the first time, and then ends its worker."""

    def __init__(self, *arguments: Any, at: int) -> None:
        super().__init__(*arguments)
        self.at = at

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == self.at and first_time(self.marks, "waits"):
            while not (self.marks / "go").exists():
                time.sleep(0.001)
            die("exit")
        return super().__getitem__(index)


def backend_of(loader: DataLoader[Any]) -> Any:
    """Return the backend of a loader whose workers have started and stay."""
    return loader._worker_manager.backend


def poison_slot(marks: Path, num_tensors: int) -> None:
    """Let the calling worker die in the middle of writing to shared memory, after it has made some tensors there."""
    empty = SlotWriter.empty
    counter = count()

    def dying(self: SlotWriter, *arguments: object) -> object:
        tensor = empty(self, *arguments)
        if tensor is not None and next(counter) == num_tensors and first_time(marks, "slot"):
            tensor.view(torch.uint8).view(-1)[: tensor.nbytes // 2] = 255
            die()
        return tensor

    SlotWriter.empty = dying


def poison_pipe(marks: Path, num_messages: int) -> None:
    """Let the calling worker die with half of a message in the pipe, after it has sent some."""
    send = FrameWriter.send
    counter = count()

    def dying(self: FrameWriter, buffers: list[bytes]) -> None:
        if next(counter) != num_messages or not first_time(marks, "pipe"):
            send(self, buffers)
            return
        pipe = self.fd
        read_end, self.fd = os.pipe()
        send(self, buffers)
        message = os.read(read_end, 1 << 20)
        os.write(pipe, message[: max(1, len(message) // 2)])
        die()

    FrameWriter.send = dying
