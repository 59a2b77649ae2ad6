"""A pass whose batches are on a device when they are asked for: the next one is copied while this one is used.

NOTE [The order of events]
    taken         a batch comes from the pass and its copy is queued on the side stream
    handed over   the consumer's stream is told to wait for the copy, and the batch is returned
    left          the copy has ended: its source, a worker process's slot as a rule, is let go
    Before a batch is handed over, the next one is taken if that takes no waiting, so that its copy runs beside the
    consumer's step. An error or the end that comes up then is raised in its turn. No thread is needed.

NOTE [No further than the device]
    A consumer queues work and comes back long before the device has done it. Memory of the side stream cannot be
    used again until that work is done, so a consumer that runs on and on would fill the device with batches. The
    host therefore waits here while more than `MAX_QUEUED` batches are handed over and not begun: the device has
    enough to do meanwhile, and a batch's memory is there again.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Final

from lit_loader.device.moving import Moving
from lit_loader.device.pinning import Pinner
from lit_loader.device.streams import Backend, Event
from lit_loader.iterator import Run

__all__ = ["AheadRun", "MAX_QUEUED"]

MAX_QUEUED: Final = 2
"""Batches that are handed over and whose work the device has not begun; see NOTE [No further than the device]."""

# What a fork has copies of, never freed there: to free page-locked memory and events takes the device, which is the
# parent's alone.
_of_parents: list[Any] = []
# Sources of passes that were dropped when their copies could not be waited for: looked at again by later passes.
_unfinished: list[Moving] = []


class AheadRun:
    """Delivers the batches of a pass on a device; see NOTE [The order of events].

    Args:
        run: The pass.
        pinner: Pins what is not page-locked yet, before it is copied.
        backend: The device.
        from_slots: Whether batches may lie in page-locked slots.

    Runs in: the consumer's process and thread.
    Owns: the pass; a batch that was taken and not handed over; sources until their copies have ended.
    """

    def __init__(self, run: Run, pinner: Pinner, backend: Backend, *, from_slots: bool = False) -> None:
        self._run, self._pinner, self._backend = run, pinner, backend
        self._from_slots = from_slots
        self._taken: deque[Moving | Exception] = deque()
        self._leaving: deque[Moving] = deque()
        self._queued: deque[Event] = deque()
        self._pid = os.getpid()

    def next_batch(self) -> Any:
        """Return the next batch, on the device; errors are those of the pass, in their turn."""
        if os.getpid() != self._pid:
            self._forget()
            return self._run.next_batch()  # which says what it can do in a fork
        self._let_go()
        if not self._taken:
            self._taken.append(self._take())
        first = self._taken[0]
        if isinstance(first, Exception):
            self._taken.popleft()
            try:
                raise first
            finally:
                del first  # its traceback holds this frame
        if len(self._taken) == 1 and self._run.poll():
            self._look_ahead()
        self._taken.popleft()  # not before: a Ctrl-C in the look-ahead loses no batch
        while len(self._queued) >= MAX_QUEUED:
            self._queued.popleft().synchronize()
        self._queued.append(self._backend.record())
        try:
            return first.hand_over()
        finally:
            del first  # an error that came up ahead holds this frame, and is not to hold the source

    def poll(self) -> bool:
        """Whether `next_batch` would not wait for the pass."""
        return bool(self._taken) or self._run.poll()

    def close(self) -> None:
        """Drop the pass, and what was taken from it when its copy has ended."""
        try:
            if os.getpid() == self._pid:
                self._finish_copies()
        finally:
            self._forget()
            self._run.close()

    def _finish_copies(self) -> None:
        """Wait until every copy that was begun has ended, or keep its source.

        A finalizer may call this, in the middle of anything. While a graph is captured no event may be waited for, and
        a device that has failed answers with an error.
        """
        begun = {moving for moving in (*self._taken, *self._leaving) if isinstance(moving, Moving)}
        while _unfinished:
            begun.add(_unfinished.pop())
        for moving in begun:
            try:
                if not self._backend.is_capturing():
                    moving.wait_until_left()
                    continue
            except RuntimeError:
                pass
            _unfinished.append(moving)

    def _take(self) -> Moving:
        batch = self._pinner(self._run.next_batch())
        moving = Moving(batch, self._backend, from_slots=self._from_slots)
        self._leaving.append(moving)  # first: whatever interrupts the rest, the source is kept
        moving.begin()
        return moving

    def _look_ahead(self) -> None:
        try:
            self._taken.append(self._take())
        except Exception as error:
            self._taken.append(error)

    def _let_go(self) -> None:
        """Let go of the sources whose copies have ended; copies on one stream end in their order."""
        while self._leaving and self._leaving[0].has_left:
            self._leaving.popleft()

    def _forget(self) -> None:
        if os.getpid() != self._pid:
            _of_parents.append((list(self._taken), list(self._leaving), list(self._queued)))
        self._taken.clear()
        self._leaving.clear()
        self._queued.clear()
