"""How a batch gets from a worker process to the main one: in a slot of shared memory, or as frames on a pipe."""

from __future__ import annotations

from lit_loader.transport.frames import Buffer, Frame, FrameReader, FrameWriter
from lit_loader.transport.layout import Layout
from lit_loader.transport.memory_file import MemoryFile
from lit_loader.transport.page_lock import PageLock
from lit_loader.transport.pickled import RebuildError, decode, encode, pickle_small
from lit_loader.transport.placing import Placing
from lit_loader.transport.slot_writer import Place, SlotWriter
from lit_loader.transport.slots import Slots, Ticket, open_slots
from lit_loader.transport.unsendable import describe_unsendable

__all__ = [
    "Buffer",
    "Frame",
    "FrameReader",
    "FrameWriter",
    "Layout",
    "MemoryFile",
    "PageLock",
    "Place",
    "Placing",
    "RebuildError",
    "SlotWriter",
    "Slots",
    "Ticket",
    "decode",
    "describe_unsendable",
    "encode",
    "open_slots",
    "pickle_small",
]
