"""What the main process and its workers say to each other; each message is one frame.

Main to worker: `BEGIN` a run, do a `TASK` of a run, `END` a run, `STOP`. Worker to main: `RESULT` of a
task, `ERROR` instead of a result, `ENDED`: the worker's iterable dataset has no more.
The first buffer is a header; a task or a result follows it, encoded by the transport.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from lit_loader.transport import Buffer

__all__ = ["Header", "Kind", "pack_header", "unpack_header"]

_HEADER = struct.Struct("<BQQ")


class Kind(IntEnum):
    """Kinds of message."""

    BEGIN = 0
    TASK = 1
    END = 2
    STOP = 3
    RESULT = 4
    ERROR = 5
    ENDED = 6


class Header(NamedTuple):
    """Kind of a message, number of the run and of the task within it."""

    kind: Kind
    run: int
    number: int


def pack_header(kind: Kind, run: int = 0, number: int = 0) -> bytes:
    """Return a header as bytes."""
    return _HEADER.pack(kind, run, number)


def unpack_header(buffer: Buffer) -> Header:
    """Return the header that `pack_header` packed."""
    kind, run, number = _HEADER.unpack(buffer)
    return Header(Kind(kind), run, number)
