"""A worker's side of the slots and the main process's, both in this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from lit_loader.collate import default_collate
from lit_loader.engine import FetchSpec, WorkerSpec
from lit_loader.memory import MemoryFile, Slots, SlotWriter, Ticket, batch_memory, decode, encode, mapping


def num_maps(inode: int | None = None) -> int:
    """Return how many mappings of files of slots this process has; of one file, if its inode is given."""
    with open("/proc/self/maps") as lines:
        inodes = [int(line.split()[4]) for line in lines if "/memfd:lit_loader (deleted)" in line]
    return len(inodes) if inode is None else inodes.count(inode)


def refuse_to_populate(monkeypatch: Any, code: int) -> list[int]:
    """Let the kernel refuse to populate pages, with this error code; return the list of refused sizes."""
    libc = mapping._libc
    refused_sizes = []

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(libc, name)

        def madvise(self, address: int, size: int, advice: int) -> int:
            if advice != mapping._MADV_POPULATE_WRITE:
                return libc.madvise(address, size, advice)
            refused_sizes.append(size)
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(mapping, "_libc", Refusing())
    return refused_sizes


class Link:
    """A file of slots with its reader and its writer.

    Args:
        stacks_rows: Whether rows may serve as their stack.
        options: For `Slots`.
    """

    def __init__(self, *, stacks_rows: bool = True, **options: Any) -> None:
        self.file = MemoryFile()
        self.inode = os.fstat(self.file.fd).st_ino
        self.slots = Slots(self.file, **options)
        self.writer = SlotWriter(self.file, stacks_rows=stacks_rows)

    @property
    def used_bytes(self) -> int:
        """Memory that the file takes."""
        return os.fstat(self.file.fd).st_blocks * 512

    def send(self, data: Any) -> Any:
        """Return data that went through a slot."""
        ticket = self.slots.ticket()
        frame = self.write(ticket, lambda writer: data)
        return self.read(ticket, frame)

    def collate(self, samples: Sequence[Any], collate_fn: Callable[[list[Any]], Any]) -> Any:
        """Return a batch of samples that were made in a slot one by one."""
        ticket = self.slots.ticket()
        return self.read(
            ticket, self.write(ticket, lambda writer: collate_fn([made_in(writer, sample) for sample in samples]))
        )

    def write(self, ticket: Ticket, make: Callable[[SlotWriter], Any]) -> list[memoryview]:
        """Return the frame of what a worker makes in a slot, as a pipe brings it."""
        self.writer.open(ticket.number)
        try:
            return carried(encode(make(self.writer), self.writer.name))
        finally:
            self.writer.close()

    def read(self, ticket: Ticket, frame: list[memoryview]) -> Any:
        return decode(frame, partial(self.slots.read, ticket))

    def close(self) -> None:
        self.slots.close()


def made_in(writer: SlotWriter, sample: Any) -> Any:
    """Return a sample as if its large, plain tensors and arrays had been made in the slot, as a transform may do."""
    with batch_memory.using(writer):
        return _made(sample)


def _made(data: Any) -> Any:
    if type(data) is torch.Tensor and data.layout is torch.strided and data.is_contiguous():
        is_more = data.requires_grad or data.is_conj() or data.__dict__
        return data if is_more else batch_memory.empty(data.shape, data.dtype).copy_(data)
    if type(data) is np.ndarray and data.flags.c_contiguous and data.flags.writeable:
        in_torch = data.dtype in (np.dtype("f4"), np.dtype("f8"), np.dtype("i8"))
        in_torch = in_torch and min(data.strides, default=0) >= 0  # an empty array may have other strides
        return _made(torch.from_numpy(data)).numpy() if in_torch else data
    if type(data) in (tuple, list):
        return type(data)(_made(item) for item in data)
    return {key: _made(value) for key, value in data.items()} if type(data) is dict else data


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


def worker_spec(dataset: Any) -> WorkerSpec:
    """Return the settings of one worker process with default collation; a stream's tasks have no keys."""
    fetch = FetchSpec(
        dataset=dataset,
        batched=True,
        collate_fn=default_collate,
        builtin_collate=True,
        drop_last=False,
        on_bad_sample="raise",
        stream_state=False,
    )
    is_keyed = not isinstance(dataset, IterableDataset)
    return WorkerSpec(
        fetch=fetch, num_workers=1, base_seed=0, worker_init_fn=None, keyed=is_keyed, default_dtype=torch.float32
    )
