"""The connection of a training process to the fetch process of its host: starts it, restarts it, tells it the order.

NOTE [One fetch process a host]
    Every training process connects to the socket ``control`` of the cache. The first one finds no listener and starts a
    fetch process. Of several that were started at once, the one that gets the lock remains. When the fetch process
    ends, every client reads the end of its connection, and the same election follows.

NOTE [A thread without references to its users]
    One daemon thread owns the connection and all streams. Facades (`StorageClient`, `SlotStream`) only append commands
    and wake it, so their methods may be called in finalizers and need no locks. The thread knows no facade, so clients
    and streams are closed when they are collected.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import CacheError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetch_launch import FetchLaunch
from lit_loader.storage.protocol import Message, MessageKind, Messages, connect, encode_message
from lit_loader.storage.settings import StorageSettings

__all__ = ["CATALOG_NAME", "SlotStream", "StorageClient", "save_catalog"]

CATALOG_NAME: Final = "catalog.arrow"
MAX_AHEAD: Final = 4 << 20
"""Positions of a stream that are sent ahead of delivery."""

_START_S: Final = 60.0
_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.02
_MAX_RETRY_S: Final = 1.5
_STABLE_S: Final = 10.0

Blocks = Iterator[npt.NDArray[np.int32]]
"""Slots of consecutive samples, in blocks of any length."""


def save_catalog(catalog: Catalog, folder: Path) -> None:
    """Create the folder of a cache, accessible only to the user, and write its catalog if it is missing.

    Raises:
        CacheError: If the folder cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / CATALOG_NAME).exists():
            catalog.save(folder / CATALOG_NAME)
    except OSError as error:
        remedy = "free disk space, or choose another cache_dir"
        raise CacheError(f"{folder} cannot be written: {error.strerror or error}", remedy=remedy) from error


class StorageClient:
    """Connection of this process to the fetch process of its host; see the notes of this module.

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
        save_catalog(catalog, folder)
        self._pid = os.getpid()
        self._streams = count()
        self._window = 64 if settings is None else settings.window
        self._link = link = _Link(folder, settings, printable(catalog.root))
        try:
            link.connect()
        except BaseException:
            link.disconnect()
            raise
        thread = threading.Thread(target=link.run, name="lit_loader_storage", daemon=True)
        self._finalizer = weakref.finalize(self, _end, link, thread, self._pid)
        thread.start()

    @property
    def is_usable(self) -> bool:
        """True if the client is open, and belongs to this process."""
        return self._finalizer.alive and self._pid == os.getpid()

    def open_stream(self) -> SlotStream:
        """Return a new stream, without any slots yet.

        Raises:
            StorageError: If the fetch process has ended and cannot be started again.
        """
        if self._link.error is not None:
            raise self._link.error
        return SlotStream(self._link, next(self._streams), self._window)

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
        self._link.command(MessageKind.STATS, -1)
        try:
            stats: dict[str, Any] = json.loads(answers.get(timeout=_ANSWER_S))
        except Empty:
            raise StorageError(f"{self._link.url}: the fetch process did not answer within {_ANSWER_S:.0f} s") from None
        return stats

    def close(self) -> None:
        """Disconnect from the fetch process; streams end."""
        self._finalizer()


class SlotStream:
    """The order in which one loader needs images, as it is sent to the fetch process.

    Runs in: any thread of the process of its client.
    Owns: its part of the connection, until `close` or until it is collected.
    """

    def __init__(self, link: _Link, number: int, window: int) -> None:
        self._link = link
        self._number = number
        # Each report wakes the thread, so they are sent in steps.
        self._step = max(1, window // 8)
        self._next_report = 0
        self._order = _Order()
        self._finalizer = weakref.finalize(self, link.command, MessageKind.CLOSE, number)
        # At exit the client disconnects, which ends all streams.
        self._finalizer.atexit = False

    def begin(self, blocks: Blocks) -> None:
        """Replace the order of the stream; the count of delivered samples begins at 0.

        Args:
            blocks: int32 arrays of slots, -1 for samples without an image of the store; they are computed in a thread
                when they are needed.
        """
        self._order = _Order(blocks)
        self._next_report = self._step
        self._link.command(MessageKind.RESTART, self._number, self._order)

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


class _Order:
    """The slots of a stream; the thread computes and sends them, and replays those that were not delivered.

    Attributes:
        pending_blocks: Slots that were not computed yet; `SlotStream.extend` appends to it.
        num_delivered: Set by the consumer.
        sent_blocks: Slots that were sent and not delivered yet, except for some in the first block.
        first: Position of the first of them, since `SlotStream.begin`.
        end: Position after the last of them.
        origin: Position at which the present connection began the stream.
        num_reported: Delivered samples that the fetch process knows of.
    """

    def __init__(self, blocks: Blocks | None = None) -> None:
        self.pending_blocks: deque[Blocks] = deque([] if blocks is None else [blocks])
        self.num_delivered = 0
        self.sent_blocks: deque[npt.NDArray[np.int32]] = deque()
        self.first = 0
        self.end = 0
        self.origin = 0
        self.num_reported = 0

    @property
    def has_work(self) -> bool:
        """True if more slots can be sent."""
        return bool(self.pending_blocks) and self.end - self.num_delivered < MAX_AHEAD

    def next_block(self) -> npt.NDArray[np.int32] | None:
        """Compute the next block, or return None if there is none."""
        while self.pending_blocks:
            try:
                block = next(self.pending_blocks[0], None)
            except Exception:
                # The loader computes the same order, and raises the same error in the thread of its consumer.
                block = None
            if block is not None:
                self.sent_blocks.append(block)
                self.end += len(block)
                return block
            self.pending_blocks.popleft()
        return None

    def drop_delivered(self) -> None:
        """Forget blocks that were delivered completely."""
        while self.sent_blocks and self.first + len(self.sent_blocks[0]) <= self.num_delivered:
            self.first += len(self.sent_blocks.popleft())


class _Link:
    """State of a client that its thread works on.

    Args:
        folder: Folder of the cache.
        settings: How to reach the store, or None if only a running fetch process is to be used.
        url: URL of the store for messages.

    Attributes:
        error: Why there is no fetch process now, or None.
        answers: Payloads of answers to STATS.
    """

    def __init__(self, folder: Path, settings: StorageSettings | None, url: str) -> None:
        self.folder = folder
        self.url = url
        self.error: StorageError | ImportError | None = None
        self.answers: SimpleQueue[bytes] = SimpleQueue()
        self._settings = settings
        self._commands: deque[tuple[MessageKind, int, _Order | None]] = deque()
        self._orders: dict[int, _Order] = {}
        self._connection: socket.socket | None = None
        self._messages = Messages()
        self._closed = False
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)

    # -- in any thread ----------------------------------------------------------------------------------------

    def command(self, kind: MessageKind, stream: int, order: _Order | None = None) -> None:
        """Let the thread do something for a stream."""
        self._commands.append((kind, stream, order))
        self.wake()

    def wake(self) -> None:
        """Wake the thread; also safe in finalizers and after the end."""
        # A full buffer wakes it, too.
        with suppress(OSError):
            self._waker.send(b"\0")

    def stop(self) -> None:
        """Let the thread end."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            # The thread may be sending to a process that was stopped. Other copies of the descriptor, in forked
            # processes, would keep the connection open after a mere close.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.wake()

    def disconnect(self) -> None:
        """Close all descriptors of this process."""
        for end in (self._connection, self._waker, self._wakened):
            if end is not None:
                end.close()
        self._connection = None
        self._orders.clear()

    # -- in the thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the connection until `stop`."""
        retry_s = 0.0
        connected_at = time.monotonic()
        while not self._closed:
            try:
                if self._connection is None:
                    self.connect()
                    connected_at = time.monotonic()
                    self._replay()
                self._follow_commands()
                self._wait(0 if self._send_some() else None)
            except (OSError, ValueError, ImportError) as error:
                # The fetch process has ended, or could not be started; see NOTE [One fetch process a host].
                self._lose_connection()
                if isinstance(error, StorageError | ImportError):
                    self.error = error
                # A process that ends again and again is not started in a tight loop.
                is_early = time.monotonic() - connected_at < _STABLE_S
                retry_s = min(_MAX_RETRY_S, 2 * retry_s + 0.1) if is_early else 0.0
                self._wait(retry_s)

    def connect(self) -> None:
        """Connect to the fetch process, and start one if none listens.

        Raises:
            ImportError: If obstore is not installed.
            StorageError: If it cannot start.
        """
        deadline = time.monotonic() + _START_S
        launch: FetchLaunch | None = None
        try:
            while not self._closed:
                try:
                    self._connection = connect(self.folder, "control", socket.SOCK_STREAM)
                except (FileNotFoundError, ConnectionRefusedError):
                    pass
                else:
                    self._messages = Messages()
                    self.error = None
                    return
                if launch is None or launch.lost_election:
                    launch = self._launch(launch)
                launch.check()
                if time.monotonic() > deadline:
                    raise StorageError(f"{self.url}: the fetch process does not answer after {_START_S:.0f} s")
                time.sleep(_POLL_S)
        finally:
            if launch is not None:
                launch.close()

    def _launch(self, lost: FetchLaunch | None) -> FetchLaunch:
        """Start a fetch process, after one that has lost the election."""
        if lost is not None:
            lost.close()
        if self._settings is None:
            problem = f"{self.url}: no fetch process runs on this host, and a copy of a data set has no credentials"
            raise StorageError(problem, remedy="create the data set in this process")
        return FetchLaunch(self.folder, self._settings, self.url)

    def _lose_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _replay(self) -> None:
        """Tell a new fetch process the streams, from the samples on that were not delivered."""
        for stream, order in self._orders.items():
            order.drop_delivered()
            order.origin = order.first
            order.num_reported = order.first
            for block in order.sent_blocks:
                self._send(MessageKind.EXTEND, stream, block)

    def _follow_commands(self) -> None:
        while self._commands:
            kind, stream, order = self._commands[0]
            if order is not None:
                self._orders[stream] = order
            elif kind is MessageKind.CLOSE:
                self._orders.pop(stream, None)
            # The blocks of EXTEND are in the order, and sent by `_send_some`.
            if kind is not MessageKind.EXTEND:
                self._send(kind, stream)
            # Only now: after a lost connection the command is repeated.
            self._commands.popleft()

    def _send_some(self) -> bool:
        """Report deliveries and send one block of each stream; return True if there is more to send."""
        for stream, order in self._orders.items():
            # Read once, because the consumer goes on counting.
            num_delivered = order.num_delivered
            if num_delivered > order.num_reported:
                self._send(MessageKind.DELIVERED, stream, np.int64(num_delivered - order.origin).tobytes())
                order.num_reported = num_delivered
                order.drop_delivered()
            if order.has_work and (block := order.next_block()) is not None:
                self._send(MessageKind.EXTEND, stream, block)
        return any(order.has_work for order in self._orders.values())

    def _send(self, kind: MessageKind, stream: int, payload: bytes | npt.NDArray[np.int32] = b"") -> None:
        if self._connection is None:
            raise ConnectionError("the client was closed")
        self._connection.sendall(encode_message(kind, stream, payload))

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for a command or an answer; read answers.

        Raises:
            ConnectionError: If the fetch process has ended.
        """
        connection = self._connection
        ends = [end for end in (connection, self._wakened) if end is not None]
        ready = select.select(ends, [], [], timeout_s)[0]
        if self._wakened in ready:
            with suppress(BlockingIOError):
                self._wakened.recv(4096)
        if connection in ready and connection is not None:
            data = connection.recv(65536)
            if not data:
                raise ConnectionError("the fetch process has ended")
            for message in self._messages.feed(data):
                self._receive(message)

    def _receive(self, message: Message) -> None:
        if message.kind is MessageKind.STATS:
            self.answers.put(message.payload)


def _end(link: _Link, thread: threading.Thread, pid: int) -> None:
    """End the thread of a client, and close its descriptors."""
    if pid != os.getpid():
        # A forked process has copies of the descriptors, and not the thread.
        link.disconnect()
        return
    link.stop()
    # A finalizer may run in the thread itself.
    if thread is not threading.current_thread():
        thread.join()
    link.disconnect()
