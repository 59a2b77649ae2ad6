"""What a pool of processes sends and gets back: tasks, each batch with a slot to be written to, and results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lit_loader.engine.messages import Header, Kind, pack_task, unpack_header
from lit_loader.engine.task import Task
from lit_loader.engine.unsendable import not_rebuilt
from lit_loader.transport import Buffer, Frame, MemoryFile, RebuildError, Slots, Ticket, decode

__all__ = ["Parcel", "Post"]


class Parcel(NamedTuple):
    """What a worker sent, as it came.

    Attributes:
        frame: The encoded object.
        ticket: Keeps the slot that parts of it are in; None: it is all here.
        number: The batch's number in its pass.
    """

    frame: Frame
    ticket: Ticket | None
    number: int = 0


@dataclass(slots=True)
class _Out:
    """A batch that is out."""

    ticket: Ticket
    missing: int  # answers to its pieces
    layout: bytes  # of its rows, the same for all of its pieces


class Post:
    """Packs tasks and opens results; every task is answered, so every slot comes back.

    Args:
        slots: Where results go; None: they come along.

    Runs in: the main process, under the pool's lock, but for `open`.
    """

    def __init__(self, slots: Slots | None) -> None:
        self.slots = slots
        self._out: dict[tuple[int, int], _Out] = {}
        self._layout = b""  # of samples, as a worker told it

    @property
    def file(self) -> MemoryFile | None:
        """The slots' memory, for the workers."""
        return None if self.slots is None else self.slots.file

    def pack(self, header: Header, task: Task) -> list[Buffer]:
        """Return the frame of a task, with a slot for its result.

        Raises:
            Exception: Whatever pickling the index raises.
        """
        key = (header.run, header.number)
        out = self._out.get(key)
        if out is None and header.piece == 0 and self.slots is not None:
            ticket = self.slots.ticket()
            if ticket is not None:
                layout = self._layout if header.num_pieces > 1 else b""
                out = self._out[key] = _Out(ticket, header.num_pieces, layout)
        try:
            if out is None:
                return pack_task(header, task)
            return pack_task(header._replace(slot=out.ticket.number), task, out.layout)
        except BaseException:
            self._answered(key, header.num_pieces - header.piece)  # nor will those that follow it be sent
            raise

    def drop(self, header: Header) -> None:
        """Forget a task that will not be answered."""
        self._answered((header.run, header.number), 1)

    def unpack(self, frame: Frame) -> tuple[Header, Parcel]:
        """Return what a worker's message says."""
        header = unpack_header(frame[0])
        if header.kind is Kind.REPORTED:
            return header, Parcel([], None)
        ticket = self._answered((header.run, header.number), 1)
        if header.kind is Kind.RESULT and frame[1].nbytes:
            self._layout = bytes(frame[1])
        return header, Parcel(frame[2:], ticket if header.kind is Kind.RESULT else None, header.number)

    def open(self, parcel: Parcel) -> Any:
        """Return the object that was sent.

        Raises:
            UnsendableBatchError: If it cannot be made again here.
        """
        look_up = (
            None if parcel.ticket is None or self.slots is None else partial(self.slots.read, parcel.ticket)
        )
        try:
            return decode(parcel.frame, look_up)
        except RebuildError as error:
            raise not_rebuilt(parcel.number, error) from error.__cause__

    def close(self) -> None:
        """Give the slots back; batches that the consumer holds stay."""
        self._out.clear()
        if self.slots is not None:
            self.slots.close()

    def _answered(self, key: tuple[int, int], count: int) -> Ticket | None:
        out = self._out.get(key)
        if out is None:
            return None
        out.missing -= count
        if out.missing <= 0:
            del self._out[key]
        return out.ticket
