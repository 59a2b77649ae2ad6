"""How a batch gets from a worker process to the main one: in a slot of shared memory, or as frames on a pipe."""

from __future__ import annotations

from lit_loader.transport.frames import Buffer, Frame, FrameReader, FrameWriter
from lit_loader.transport.interrupts import interrupt_again
from lit_loader.transport.memory_file import MemoryFile
from lit_loader.transport.page_lock import PageLock
from lit_loader.transport.pickled import RebuildError, decode, encode, pickle_small
from lit_loader.transport.placing import Placing
from lit_loader.transport.poller import READABLE, WRITABLE, Poller, new_poller
from lit_loader.transport.slot_writer import Place, SlotKeptError, SlotWriter
from lit_loader.transport.slots import Slots, Ticket, open_slots
from lit_loader.transport.unsendable import describe_unsendable

__all__ = [
    "Buffer",
    "Frame",
    "FrameReader",
    "FrameWriter",
    "MemoryFile",
    "PageLock",
    "Place",
    "Placing",
    "Poller",
    "READABLE",
    "RebuildError",
    "SlotKeptError",
    "SlotWriter",
    "Slots",
    "Ticket",
    "WRITABLE",
    "decode",
    "describe_unsendable",
    "encode",
    "interrupt_again",
    "new_poller",
    "open_slots",
    "pickle_small",
]
