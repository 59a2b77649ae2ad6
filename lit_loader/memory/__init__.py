"""Transport of batches from worker processes to the main one: pickled, with large tensors in shared memory."""

from __future__ import annotations

from lit_loader.memory.mapping import MemoryFile, PageLock, memory_for
from lit_loader.memory.serialization import Buffer, RebuildError, decode, describe_unsendable, encode
from lit_loader.memory.slot_writer import SlotKeptError, SlotWriter
from lit_loader.memory.slots import Slots, Ticket, open_slots

__all__ = [
    "Buffer",
    "MemoryFile",
    "PageLock",
    "RebuildError",
    "SlotKeptError",
    "SlotWriter",
    "Slots",
    "Ticket",
    "decode",
    "describe_unsendable",
    "encode",
    "memory_for",
    "open_slots",
]
