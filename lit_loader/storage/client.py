"""Clients of the fetch process, and the streams that tell it in which order images are needed.

NOTE [A thread without references to its users]
    One daemon thread owns the connection and all streams. Facades (`StorageClient`, `SlotStream`) only append commands
    and wake it, so their methods may be called in finalizers and need no locks. The thread knows no facade, so clients
    and streams are closed when they are collected.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty
from typing import Any, Final

from lit_loader.errors import StorageError
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetch_link import Blocks, FetchLink, SlotOrder
from lit_loader.storage.protocol import MessageKind
from lit_loader.storage.settings import StorageSettings

__all__ = ["SlotStream", "StorageClient"]

_ANSWER_S: Final = 2.0
_MAX_QUESTIONS: Final = 6


class StorageClient:
    """Client of the fetch process of this host, which it starts if necessary; see NOTE [One fetch process a host].

    Runs in: the process that creates it; a forked copy is not usable, see `is_usable`.
    Owns: a thread and a connection, until `close`, until it is collected, or until the interpreter exits. The fetch
        process belongs to all its clients, and ends soon after the last one.

    Args:
        catalog: Where each image is.
        settings: How to reach the store, or None if only a running fetch process is to be used.
        folder: Folder of the cache.

    Raises:
        ImportError: If a fetch process must be started and obstore is not installed.
        CacheError: If the folder cannot be written.
        StorageError: If the fetch process cannot start; the message contains its reason.
    """

    def __init__(self, catalog: Catalog, settings: StorageSettings | None, folder: Path) -> None:
        self._pid = os.getpid()
        self._streams = count()
        self._window = 64 if settings is None else settings.window
        self._link = link = FetchLink(catalog, settings, folder)
        thread = threading.Thread(target=link.run, name="lit_loader_storage", daemon=True)
        try:
            link.connect()
            thread.start()
        except BaseException:
            link.disconnect()
            raise
        self._finalizer = weakref.finalize(self, _end, link, thread, self._pid)
        if link.ignored:
            names = ", ".join(link.ignored)
            rule = f"another run uses the same fetch process with other values of {names}, which stay in force"
            warnings.warn(f"{link.url}: {rule}", UserWarning, stacklevel=3)

    @property
    def error(self) -> Exception | None:
        """Error of the last attempt to start a fetch process, or None after a success."""
        return self._link.error

    @property
    def is_usable(self) -> bool:
        """True if the client is open, and belongs to this process."""
        return self._finalizer.alive and self._pid == os.getpid()

    def open_stream(self, num_prefetched: int = 0) -> SlotStream:
        """Return a new stream, without any slots yet.

        Args:
            num_prefetched: Number of samples that workers may read ahead of delivery; the window follows these.

        Raises:
            StorageError: If the fetch process has ended and cannot be started again.
        """
        if self._link.error is not None:
            raise self._link.error
        return SlotStream(self._link, next(self._streams), self._window + num_prefetched)

    def stats(self) -> dict[str, Any]:
        """Return the counters of the fetch process.

        Raises:
            StorageError: If it does not answer.
        """
        answers = self._link.answers
        with suppress(Empty):
            while True:
                # Of an earlier call that did not wait long enough.
                answers.get_nowait()
        for _ in range(_MAX_QUESTIONS):
            # A process that was killed takes a question with it, so the next one gets another.
            self._link.command(MessageKind.STATS, -1)
            with suppress(Empty):
                stats: dict[str, Any] = json.loads(answers.get(timeout=_ANSWER_S))
                return stats
        waited_s = _MAX_QUESTIONS * _ANSWER_S
        raise StorageError(f"{self._link.url}: the fetch process did not answer within {waited_s:.0f} s")

    def close(self) -> None:
        """Disconnect from the fetch process; streams end."""
        self._finalizer()


class SlotStream:
    """Order in which one loader needs images, sent to the fetch process.

    Runs in: any thread of the process of its client.
    Owns: its part of the connection, until `close` or until it is collected.
    """

    def __init__(self, link: FetchLink, number: int, window: int) -> None:
        self._link = link
        self._number = number
        # Each report wakes the thread, so they are sent in steps.
        self._step = max(1, window // 8)
        self._window = window
        self._next_report = 0
        self._order = SlotOrder(window)
        self._finalizer = weakref.finalize(self, link.command, MessageKind.CLOSE, number)
        # At exit the client disconnects, which ends all streams.
        self._finalizer.atexit = False

    def begin(self, blocks: Blocks) -> None:
        """Replace the order of the stream; the count of delivered samples begins at 0.

        Args:
            blocks: int32 arrays of slots, -1 for samples without an image of the store; they are computed in a thread
                when they are needed.
        """
        self._order = SlotOrder(self._window, blocks)
        self._next_report = self._step
        self._link.command(MessageKind.BEGIN, self._number, self._order)

    def extend(self, blocks: Blocks) -> None:
        """Append slots to the order."""
        self._order.pending_blocks.append(blocks)
        self._link.command(MessageKind.EXTEND, self._number)

    def delivered(self, total: int) -> None:
        """Tell how many samples were delivered since `begin`; takes under a microsecond in most calls."""
        self._order.num_delivered = total
        if total >= self._next_report:
            self._next_report = total + self._step
            self._link.wake()

    def close(self) -> None:
        """End the stream."""
        self._finalizer()


def _end(link: FetchLink, thread: threading.Thread, pid: int) -> None:
    """End the thread of a client, and close its descriptors."""
    if pid != os.getpid():
        # A forked process has copies of the descriptors, and not the thread.
        link.disconnect()
        return
    link.stop()
    # A finalizer may run in the thread itself, which closes the descriptors at its end.
    if thread is not threading.current_thread():
        thread.join()
