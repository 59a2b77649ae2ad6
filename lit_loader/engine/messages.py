"""What the main process and its worker processes say to each other; each message is one frame.

Main to worker: `BEGIN` a run, do a `TASK` of a run, `END` a run, `REPORT` when all that was taken is answered,
`STOP`; the last and `END` on a pipe of orders, heard at once, and `END` among the tasks too. Worker to main, one
for each task: its `RESULT`, `ERROR` instead of a result, `ENDED`: the worker's iterable dataset has no more,
`SKIPPED`: the run had ended; and `REPORTED`. The first buffer is a header; the task or the result follows, as the
transport encodes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from lit_loader.engine.task import BatchKey, Task
from lit_loader.transport import Buffer, Frame, decode, encode

__all__ = [
    "Header",
    "Kind",
    "pack_frame",
    "pack_header",
    "pack_task",
    "unpack_frame",
    "unpack_header",
    "unpack_task",
]

_HEADER = struct.Struct("<BQQi")
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<I")


class Kind(IntEnum):
    """Kinds of message."""

    BEGIN = 0
    TASK = 1
    END = 2
    STOP = 3
    RESULT = 4
    ERROR = 5
    ENDED = 6
    SKIPPED = 7
    REPORT = 8
    REPORTED = 9


_KINDS = tuple(Kind)


class Header(NamedTuple):
    """What a message says before its contents.

    Attributes:
        kind: Its kind.
        run: Number of the run.
        number: Number of the batch within the run.
        slot: Where the result goes. -1: it comes along; in the answer to a task that had a slot: the worker keeps it.
    """

    kind: Kind
    run: int = 0
    number: int = 0
    slot: int = -1


def pack_header(kind: Kind, run: int = 0, number: int = 0, slot: int = -1) -> bytes:
    """Return a header as bytes."""
    return _HEADER.pack(kind, run, number, slot)


def unpack_header(buffer: Buffer) -> Header:
    """Return the header that `pack_header` packed."""
    kind, *rest = _HEADER.unpack(buffer)
    return Header(_KINDS[kind], *rest)


def pack_task(header: Header, task: Task) -> list[Buffer]:
    """Return the frame of a task.

    Raises:
        Exception: Whatever pickling the index raises.
    """
    # as plain tuples: a pickle of our own classes takes four times as long
    key = None if task.key is None else tuple(task.key)
    return [pack_header(*header), *encode((task.index, key, *task[2:]))]


def unpack_task(frame: Frame) -> Task:
    """Return the task in a frame that `pack_task` made."""
    index, key, *rest = decode(frame[1:])
    return Task(index, None if key is None else BatchKey(*key), *rest)


def pack_frame(buffers: Sequence[Buffer]) -> bytes:
    """Return a small frame as one piece of bytes, for a queue that keeps messages apart."""
    lengths = b"".join(_LENGTH.pack(memoryview(buffer).nbytes) for buffer in buffers)
    return b"".join([_COUNT.pack(len(buffers)), lengths, *buffers])


def unpack_frame(data: bytes) -> Frame:
    """Return the frame that `pack_frame` packed."""
    view = memoryview(bytearray(data))  # an index may be a tensor, which can be written to
    (count,) = _COUNT.unpack_from(view)
    start = _COUNT.size + count * _LENGTH.size
    frame: Frame = []
    for (length,) in _LENGTH.iter_unpack(view[_COUNT.size : start]):
        frame.append(view[start : start + length])
        start += length
    return frame
