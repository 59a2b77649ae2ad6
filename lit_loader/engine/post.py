"""What a pool of processes sends and gets back: tasks, each batch with a slot to be written to, and results."""

from __future__ import annotations

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


class Post:
    """Packs tasks and opens results; every task is answered, so every slot comes back.

    Args:
        slots: Where results go; None: they come along.

    Runs in: the main process, under the pool's lock, but for `open`.
    """

    def __init__(self, slots: Slots | None) -> None:
        self.slots = slots
        self._tickets: dict[tuple[int, int], Ticket] = {}  # by run and number of the task that is out

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
        ticket = None if self.slots is None else self.slots.ticket()
        if ticket is None:
            return pack_task(header, task)
        self._tickets[key], header = ticket, header._replace(slot=ticket.number)
        del ticket  # an error that is kept until its turn keeps this frame
        try:
            return pack_task(header, task)
        except BaseException:
            del self._tickets[key]
            raise

    def drop(self, header: Header) -> None:
        """Forget a task that will not be answered."""
        self._tickets.pop((header.run, header.number), None)

    def unpack(self, frame: Frame) -> tuple[Header, Parcel]:
        """Return what a worker's message says."""
        header = unpack_header(frame[0])
        if header.kind is Kind.REPORTED:
            return header, Parcel([], None)
        ticket = self._tickets.pop((header.run, header.number), None)
        if ticket is not None and header.slot < 0:
            ticket.retire()
        return header, Parcel(frame[1:], ticket if header.kind is Kind.RESULT else None, header.number)

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
        self._tickets.clear()
        if self.slots is not None:
            self.slots.close()
