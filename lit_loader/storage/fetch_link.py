"""Connection of a training process to the fetch process of its host: starts it, restarts it, sends the orders.

NOTE [One fetch process a host]
    Every training process connects to the socket ``control`` of the cache. The first one finds no listener and starts a
    fetch process. Of several that were started at once, the one that gets the lock remains. When the fetch process
    ends, every client reads the end of its connection, and the same election follows. A client sends its settings
    first; a process that cannot serve them ends, if no other client uses it.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import LitLoaderError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetch_launch import FetchLaunch
from lit_loader.storage.greeting import Answer, Greeting
from lit_loader.storage.protocol import Holder, Message, MessageKind, Messages, boot_id, connect, encode_message
from lit_loader.storage.settings import StorageSettings

__all__ = ["Blocks", "FetchLink", "SlotOrder"]

MAX_AHEAD: Final = 4 << 20
"""Positions of a stream that are sent ahead of delivery."""

_START_S: Final = 60.0
_POLL_S: Final = 0.02
_MAX_RETRY_S: Final = 0.5
_STABLE_S: Final = 2.0
_MIN_LOST: Final = 3  # elections before a name in the lock file counts: the winner may not have written it yet

Blocks = Iterator[npt.NDArray[np.int32]]
"""Slots of consecutive samples, in blocks of any length."""


class SlotOrder:
    """The slots of a stream; the thread computes and sends them, and replays those that were not delivered.

    Args:
        window: Number of samples to keep ahead.
        blocks: The slots.

    Attributes:
        window: As the argument.
        pending_blocks: Slots that were not computed yet; `SlotStream.extend` appends to it.
        num_delivered: Set by the consumer.
        sent_blocks: Slots that were sent and not delivered yet, except for some in the first block.
        first: Position of the first of them, since `SlotStream.begin`.
        end: Position after the last of them.
        origin: Position at which the present connection began the stream.
        num_reported: Delivered samples that the fetch process knows of.
    """

    def __init__(self, window: int, blocks: Blocks | None = None) -> None:
        self.window = window
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


class FetchLink:
    """Connection that the thread of a client works on.

    Args:
        catalog: Where each image is.
        settings: How to reach the store, or None if only a running fetch process is to be used.
        folder: Folder of the cache.

    Attributes:
        folder: As the argument.
        url: URL of the store for messages.
        ignored: Names of settings that the fetch process does not follow.
        error: The error of the last attempt to start a fetch process, or None after a success.
        answers: Payloads of answers to STATS.
    """

    def __init__(self, catalog: Catalog, settings: StorageSettings | None, folder: Path) -> None:
        self.folder = folder
        self.url = printable(catalog.root)
        self.ignored: tuple[str, ...] = ()
        self.error: LitLoaderError | ImportError | None = None
        self._catalog = catalog
        self.answers: SimpleQueue[bytes] = SimpleQueue()
        self._settings = settings
        self._commands: deque[tuple[MessageKind, int, SlotOrder | None]] = deque()
        self._orders: dict[int, SlotOrder] = {}
        self._connection: socket.socket | None = None
        self._messages = Messages()
        self._closed = False
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)

    # -- in any thread ----------------------------------------------------------------------------------------

    def command(self, kind: MessageKind, stream: int, order: SlotOrder | None = None) -> None:
        """Let the thread do something for a stream."""
        self._commands.append((kind, stream, order))
        self.wake()

    def wake(self) -> None:
        """Wake the thread; also safe in finalizers and after the end."""
        # A full buffer wakes it as well.
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
        """Serve the connection until `stop`, and close it."""
        try:
            self._serve()
        finally:
            self.disconnect()

    def _serve(self) -> None:
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
            # Errors of any kind, because no other thread starts the fetch process again.
            except Exception as error:
                # The fetch process has ended, or could not be started; see NOTE [One fetch process a host].
                is_connected = self._connection is not None
                self._lose_connection()
                if isinstance(error, LitLoaderError | ImportError):
                    self.error = error
                elif not is_connected:
                    self.error = StorageError(f"{self.url}: a fetch process cannot be started: {error}")
                # A process that ends again and again is not started in a tight loop.
                is_early = time.monotonic() - connected_at < _STABLE_S
                retry_s = min(_MAX_RETRY_S, 2 * retry_s + 0.05) if is_early else 0.0
                self._wait(retry_s)

    def connect(self) -> None:
        """Connect to the fetch process, and start one if none listens.

        Raises:
            ImportError: If obstore is not installed.
            CacheError: If the folder cannot be written.
            StorageError: If it cannot start, or refuses the settings.
        """
        deadline = time.monotonic() + _START_S
        launch: FetchLaunch | None = None
        num_lost = 0
        try:
            while not self._closed:
                if self._greet(deadline):
                    self.error = None
                    return
                if launch is not None and launch.lost_election:
                    launch.close()
                    launch = None
                    num_lost += 1
                    self._check_holder(num_lost)
                    # The process with the lock may be ending, which takes long if much must be written to the disk.
                    time.sleep(min(_MAX_RETRY_S, num_lost * _POLL_S))
                launch = launch or self._launch()
                launch.check()
                if time.monotonic() > deadline:
                    raise self._silence()
                time.sleep(_POLL_S)
        finally:
            if launch is not None:
                launch.close()

    def _launch(self) -> FetchLaunch:
        if self._settings is None:
            problem = f"{self.url}: no fetch process runs on this host, and a copy of a data set has no credentials"
            raise StorageError(problem, remedy="create the data set in this process")
        return FetchLaunch(self._catalog, self._settings, self.folder)

    def _greet(self, deadline: float) -> bool:
        """Connect to a fetch process and send the settings; return False if none listens, or it ends instead.

        Raises:
            StorageError: If it refuses the settings, or does not answer.
        """
        try:
            self._connection = connection = connect(self.folder, "control", socket.SOCK_STREAM)
            connection.settimeout(max(_POLL_S, deadline - time.monotonic()))
            self._messages = Messages()
            connection.sendall(encode_message(MessageKind.HELLO, -1, Greeting.of(self._settings).encode()))
            answer = Answer.decode(self._next_message().payload)
            connection.settimeout(None)
        except TimeoutError:
            raise self._silence() from None
        except (FileNotFoundError, NotADirectoryError, PermissionError, ConnectionError):
            self._lose_connection()
            return False
        if answer.error:
            raise StorageError(f"{self.url}: {answer.error}")
        self.ignored = answer.ignored
        return True

    def _next_message(self) -> Message:
        while True:
            for message in self._messages.feed(self._read()):
                return message

    def _silence(self) -> StorageError:
        holder = Holder.read(self.folder)
        process = "the fetch process" if holder is None else f"the fetch process {holder.pid} on {holder.host}"
        problem = f"{self.url}: {printable(process)} does not answer after {_START_S:.0f} s"
        return StorageError(problem, remedy=f"end it if it hangs, see its messages in {self.folder}/log")

    def _check_holder(self, num_lost: int) -> None:
        """Check that the process with the lock is on this host.

        Raises:
            StorageError: If it is on another one, whose sockets and mapped pages do not reach this one.
        """
        holder = Holder.read(self.folder)
        if holder is None or num_lost < _MIN_LOST or holder.boot == boot_id():
            return
        problem = f"{self.folder} is used by process {holder.pid} on the host {holder.host}"
        raise StorageError(f"{self.url}: {printable(problem)}", remedy="choose cache_dir on a local disk of each host")

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
            self._send(MessageKind.BEGIN, stream, np.int64(order.window).tobytes())
            for block in order.sent_blocks:
                self._send(MessageKind.EXTEND, stream, block)

    def _follow_commands(self) -> None:
        while self._commands:
            kind, stream, order = self._commands[0]
            payload = b""
            if order is not None:
                self._orders[stream] = order
                payload = np.int64(order.window).tobytes()
            elif kind is MessageKind.CLOSE:
                self._orders.pop(stream, None)
            # The blocks of EXTEND are in the order, and sent by `_send_some`.
            if kind is not MessageKind.EXTEND:
                self._send(kind, stream, payload)
            # Only now: after a lost connection the command is repeated.
            self._commands.popleft()

    def _send_some(self) -> bool:
        """Report deliveries and send one block of each stream; return True if there is more to send."""
        for stream, order in self._orders.items():
            # Read once, because the consumer counts meanwhile.
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
        # Unlike `select`, it takes descriptors above 1,023.
        poll = select.poll()
        for end in (connection, self._wakened):
            if end is not None:
                poll.register(end, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout_s is None else 1000 * timeout_s)}
        if self._wakened.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakened.recv(4096)
        if connection is not None and connection.fileno() in ready:
            for message in self._messages.feed(self._read()):
                if message.kind is MessageKind.STATS:
                    self.answers.put(message.payload)

    def _read(self) -> bytes:
        """Return the next bytes of the connection."""
        if self._connection is None:
            raise ConnectionError("the client was closed")
        data = self._connection.recv(65536)
        if not data:
            raise ConnectionError("the fetch process has ended")
        return data
