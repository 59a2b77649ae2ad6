"""A worker's side of the slots and the main process's, both in this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from lit_loader import batch_memory
from lit_loader.collate import default_collate
from lit_loader.transport import (
    MemoryFile,
    Place,
    Placing,
    Slots,
    SlotWriter,
    Ticket,
    decode,
    encode,
    mapping,
)


def num_maps(inode: int | None = None) -> int:
    """Return how many mappings of files of slots this process has; of one file, if its inode is given."""
    with open("/proc/self/maps") as lines:
        found = [line.split()[4] for line in lines if "/memfd:lit_loader (deleted)" in line]
    return sum(inode is None or int(number) == inode for number in found)


def refuse_to_populate(monkeypatch: Any, code: int) -> list[int]:
    """Have the kernel refuse to bring pages in, with an error of its own; return a list of the sizes it was asked."""
    libc, asked = mapping._libc, []

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(libc, name)

        def madvise(self, address: int, size: int, advice: int) -> int:
            if advice != mapping._MADV_POPULATE_WRITE:
                return libc.madvise(address, size, advice)
            asked.append(size)
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(mapping, "_libc", Refusing())
    return asked


class Link:
    """A file of slots with its reader and its writer.

    Args:
        joins: Whether rows may serve as their stack.
        options: For `Slots`.
    """

    def __init__(self, *, joins: bool = True, **options: Any) -> None:
        self.file = MemoryFile()
        self.inode = os.fstat(self.file._fd).st_ino
        self.slots = Slots(self.file, **options)
        self.writer = SlotWriter(self.file, joins=joins)
        self.placing = Placing(self.writer)

    @property
    def used_bytes(self) -> int:
        """Memory that the file takes."""
        return os.fstat(self.file._fd).st_blocks * 512

    def send(self, data: Any) -> Any:
        """Return data that went through a slot."""
        ticket = self.slots.ticket()
        frame = self.write(ticket, lambda place: data)
        return self.read(ticket, frame)

    def collate(self, samples: Sequence[Any], collate_fn: Callable[[list[Any]], Any]) -> Any:
        """Return a batch of samples that were moved into a slot one by one."""
        ticket = self.slots.ticket()
        frame = self.write(
            ticket, lambda place: collate_fn([place(sample) for sample in samples]), len(samples)
        )
        return self.read(ticket, frame)

    def write(self, ticket: Ticket, make: Callable[[Placing], Any], num_rows: int = 1) -> list[memoryview]:
        """Return the frame of what a worker makes in a slot, as a pipe brings it."""
        self.placing.open(Place(ticket.number, num_rows=num_rows))
        try:
            return carried(encode(make(self.placing), self.writer.name))
        finally:
            self.placing.close()

    def read(self, ticket: Ticket, frame: list[memoryview]) -> Any:
        return decode(frame, partial(self.slots.read, ticket))

    def close(self) -> None:
        self.slots.close()


def carried(buffers: Sequence[Any]) -> list[memoryview]:
    """Return buffers as they come out of a pipe."""
    return [memoryview(bytearray(buffer)) for buffer in buffers]


def large(value: float, *shape: int) -> torch.Tensor:
    """Return a tensor that is worth a place in a slot."""
    return torch.full(shape or (64, 100), float(value))


def collate_in(link: Link) -> Callable[[list[Any]], Any]:
    """Return default collation that takes its memory from the link's slot, as in a worker."""

    def collate(samples: list[Any]) -> Any:
        with batch_memory.using(link.writer):
            return default_collate(samples)

    return collate
