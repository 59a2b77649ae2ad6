"""What the consumer holds, when it forks.

NOTE [Forks]
    A forked process sees the batches that its parent holds, and the parent cannot know for how long. So before a fork
    the memory of every batch that is held becomes the parent's own, at the same addresses, and is copied on write as
    all memory is; its slot is free from then on. Where there is no memory for that copy, the slot is never used again.
    Between that and the fork no thread can take hold of another batch.
    A fork by other means than ``os.fork`` (in C, without Python's hooks) is not noticed.

Runs in: the thread that forks.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

__all__ = ["FORKS_ARE_NOTICED", "make_private_before_forks"]

FORKS_ARE_NOTICED: Final = hasattr(os, "register_at_fork")
"""Whether `make_private_before_forks` does anything."""


class Holder(Protocol):
    """Knows who holds memory that is shared.

    Attributes:
        lock: Held while somebody takes hold of a batch.
    """

    lock: threading.RLock

    def make_private(self) -> None:
        """Make what is held this process's own."""


# References without callbacks: in one of Python's own, Ctrl-C would be printed and lost.
_holders: list[weakref.ref[Holder]] = []
_turn = threading.RLock()  # of one thread at a time to fork
_forking: list[Holder] = []  # whose locks it has


def make_private_before_forks(holder: Holder) -> None:
    """See NOTE [Forks]; for as long as the holder lives."""
    with _turn:
        _holders[:] = [known for known in _holders if known() is not None]
        _holders.append(weakref.ref(holder))


def _before() -> None:
    _turn.acquire()
    for known in _holders:
        holder = known()
        if holder is None:
            continue
        holder.lock.acquire()
        _forking.append(holder)
        holder.make_private()


def _after() -> None:
    while _forking:
        _forking.pop().lock.release()
    _turn.release()


if FORKS_ARE_NOTICED:
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
