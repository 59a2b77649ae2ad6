"""Process that reads stored images ahead of need: ``python -m lit_loader.storage.fetch_process FOLDER``.

NOTE [Life of a fetch process]
    The settings, with credentials, arrive as a line of JSON on standard input, because command lines and environments
    can be read by others. The process that gets the lock of the folder serves all training processes of the host that
    use the cache. It ends some seconds after the last one has closed its connection, or when the folder is deleted. A
    client with other settings (corrected credentials, another budget) that is the only one ends it at once, and starts
    another one. Otherwise its options are taken over, and its limits ignored, which the answer tells.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lit_loader.errors import CacheError, LitLoaderError, SettingError
from lit_loader.foundation.interrupts import end_process
from lit_loader.storage.cache_file import CacheWriter
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetching import Fetcher, Neighbours, request_distances
from lit_loader.storage.greeting import Answer, Greeting
from lit_loader.storage.protocol import (
    EXIT_FAILED,
    EXIT_LOCKED,
    Holder,
    Message,
    MessageKind,
    Messages,
    State,
    boot_id,
    decode_request,
    encode_message,
    socket_address,
)
from lit_loader.storage.schedule import Schedule
from lit_loader.storage.settings import StorageSettings, hide_secrets

__all__ = ["FetchProcess"]

_GRACE_S: Final = 10.0
_TICK_S: Final = 0.5
_MAX_IN_FLIGHT_BYTES: Final = 512 << 20
_MAX_TRIES: Final = 5
_RETRY_S: Final = 0.5
_MAX_LOG_BYTES: Final = 1 << 20


class FetchProcess:
    """Serve the training processes of a host until the last one has gone.

    Owns: the lock and sockets of the folder, the cache's files, and the threads of a `Fetcher`.

    Args:
        folder: Folder of the cache, with ``catalog.arrow``; the caller has its lock.
        settings: The store, and the limits.
        lock: Descriptor of the lock file.
    """

    def __init__(self, folder: Path, settings: StorageSettings, lock: int) -> None:
        self._folder = folder
        self._greeting = Greeting.of(settings)
        self._num_connections = settings.num_connections
        self._lock = lock
        catalog = Catalog.load(folder / "catalog.arrow")
        budget = settings.cache_budget
        if not (budget is None or (isinstance(budget, int) and budget >= 0)):
            raise CacheError(f"expected cache_budget as a number of bytes, got {budget!r}")
        self._cache = CacheWriter(folder, catalog, budget)
        self._neighbours = Neighbours(catalog)
        self._least_reach, self._horizon = request_distances(
            self._neighbours, self._cache.sizes, self._cache.budget, window=0
        )
        self._schedule = Schedule(self._cache)
        self._fetcher = Fetcher(settings, self._cache)
        self._num_jobs = 0
        self._in_flight_bytes = 0
        self._requests: deque[int] = deque()
        self._retries: deque[tuple[float, list[int], int]] = deque()
        self._counts: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._messages: dict[socket.socket, Messages] = {}
        self._last_client = time.monotonic()
        self._is_stopped = False

    def run(self) -> None:
        """Serve until the process is no longer needed."""
        control = self._listen("control", socket.SOCK_STREAM)
        control.listen(64)
        requests = self._listen("requests", socket.SOCK_DGRAM)
        for file in (control, requests, self._fetcher.wakeup):
            self._selector.register(file, selectors.EVENT_READ)
        next_tick = time.monotonic()
        while not self._is_stopped:
            for key, _ in self._selector.select(_TICK_S):
                if key.fileobj is control:
                    self._accept(control)
                elif key.fileobj is requests:
                    self._receive_requests(requests)
                elif key.fileobj is not self._fetcher.wakeup:
                    assert isinstance(key.fileobj, socket.socket)
                    self._receive(key.fileobj)
            self._finish_jobs()
            self._start_jobs()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK_S
                self._cache.tick()
                self._schedule.expire_requests()
                self._schedule.restore_budget()
                if not self._is_needed():
                    break
        # No client must wait for an answer while the cache is written to the disk, which may take long. The sockets
        # keep their names, because another process may have bound them after the folder was deleted.
        for listener in (control, requests, *self._messages):
            listener.close()
        self._fetcher.close()
        # A thread may still write an image, which would then not be on the disk.
        if not self._num_jobs:
            self._cache.close()

    def stop(self) -> None:
        """End `run` at the next opportunity; called by a signal."""
        self._is_stopped = True

    def _listen(self, name: str, kind: socket.SocketKind) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, kind)
        # Of an earlier process; this one has the lock.
        (self._folder / name).unlink(missing_ok=True)
        with socket_address(self._folder, name) as address:
            listener.bind(address)
        listener.setblocking(False)
        return listener

    def _is_needed(self) -> bool:
        now = time.monotonic()
        if self._messages or self._num_jobs:
            self._last_client = now
        try:
            is_same = (self._folder / "lock").stat().st_ino == os.fstat(self._lock).st_ino
        except OSError:
            is_same = False
        return is_same and now - self._last_client < _GRACE_S

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            # An answer to a client that does not read it must not block the others.
            connection.settimeout(1.0)
            self._selector.register(connection, selectors.EVENT_READ)
            self._messages[connection] = Messages()

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 20)
            for message in self._messages[connection].feed(data):
                self._handle(connection, message)
        except (OSError, ValueError, KeyError):
            # Not a client of this version; without its connection it starts over.
            data = b""
        if not data:
            self._selector.unregister(connection)
            self._messages.pop(connection, None)
            for key in [key for key in self._schedule.streams if key[0] is connection]:
                self._schedule.remove(key)
            connection.close()

    def _handle(self, connection: socket.socket, message: Message) -> None:
        key = (connection, message.stream)
        if message.kind == MessageKind.EXTEND:
            self._schedule.extend(key, np.frombuffer(message.payload, dtype="<i4").astype(np.int32))
        elif message.kind == MessageKind.DELIVERED:
            self._schedule.deliver(key, int.from_bytes(message.payload, "little", signed=True))
        elif message.kind == MessageKind.BEGIN:
            window = int.from_bytes(message.payload, "little", signed=True)
            self._schedule.begin(key, max(window, self._least_reach))
        elif message.kind == MessageKind.CLOSE:
            self._schedule.remove(key)
        elif message.kind == MessageKind.HELLO:
            answer = self._greet(Greeting.decode(message.payload))
            connection.sendall(encode_message(MessageKind.HELLO, message.stream, answer.encode()))
        elif message.kind == MessageKind.STATS:
            payload = json.dumps(self.stats()).encode()
            connection.sendall(encode_message(MessageKind.STATS, message.stream, payload))

    def _greet(self, client: Greeting) -> Answer:
        """Compare the settings of a new client with the settings of this process.

        Raises:
            ConnectionError: If the client shall start another process.
        """
        differences = self._greeting.differences(client)
        if differences and len(self._messages) == 1:
            self.stop()
            raise ConnectionAbortedError
        if "options" in differences:
            assert client.settings is not None
            assert self._greeting.settings is not None
            settings = replace(self._greeting.settings, options=client.settings.options)
            try:
                self._fetcher.open(settings)
            except (LitLoaderError, SettingError) as error:
                return Answer(error=hide_secrets(str(error), settings.options))
            self._greeting = replace(self._greeting, settings=settings)
            differences.remove("options")
        return Answer(ignored=tuple(differences))

    def stats(self) -> Mapping[str, Any]:
        """Return counters of the process since its start, as JSON data; sizes in bytes."""
        return {
            "budget": self._cache.budget,
            "cached_bytes": self._cache.used_bytes,
            "cpu_us": int(time.process_time() * 1e6),
            "failed_images": self._counts["failed"],
            "fetched_bytes": self._fetcher.num_bytes,
            "fetched_images": self._counts["fetched"],
            "hits": self._counts["hits"],
            "peak_cached_bytes": self._cache.peak_bytes,
            "pid": os.getpid(),
            "requests": self._fetcher.num_requests,
            "requested_images": self._counts["requested"],
            "retries": self._counts["retries"],
            "stalls": self._counts["stalls"],
        }

    def _receive_requests(self, requests: socket.socket) -> None:
        for _ in range(256):
            try:
                slot, is_forgotten = decode_request(requests.recv(64))
            except BlockingIOError:
                return
            except ValueError:
                continue
            if not 0 <= slot < len(self._cache.states):
                continue
            if is_forgotten:
                self._cache.forget(slot)
            elif self._cache.state(slot) == State.ABSENT and slot not in self._requests:
                self._requests.append(slot)

    def _start_jobs(self) -> None:
        """Start requests of readers, then of the streams."""
        while self._requests:
            slot = self._requests[0]
            if self._cache.state(slot) == State.ABSENT:
                if not self._schedule.reserve(slot, 0, is_requested=True):
                    # All images are on their way; the first one that arrives makes room.
                    break
                self._counts["requested"] += 1
                self._start([slot], is_urgent=True)
            self._requests.popleft()
        blocked: set[int] = set()
        while self._num_jobs < 2 * self._num_connections and self._in_flight_bytes < _MAX_IN_FLIGHT_BYTES:
            streams = [
                stream
                for stream in self._schedule.streams.values()
                if id(stream) not in blocked and stream.issued < min(stream.end, stream.delivered + stream.reach)
            ]
            if not streams:
                return
            # Ranks and runs with the least in front of them come first.
            stream = min(streams, key=lambda stream: stream.issued - stream.delivered)
            slot, distance, num_hits = self._schedule.next_absent(stream, stream.reach)
            self._counts["hits"] += num_hits
            if slot < 0:
                continue
            if not self._schedule.reserve(slot, distance):
                self._counts["stalls"] += 1
                blocked.add(id(stream))
                continue
            self._start(self._with_neighbours(slot), is_urgent=False)

    def _with_neighbours(self, slot: int) -> list[int]:
        """Return a PENDING image with the neighbours that are needed soon, after making them PENDING."""
        if not self._neighbours.exist:
            return [slot]
        near = self._neighbours.of(slot)
        distances = self._schedule.distances(near)
        is_due = (distances <= self._horizon) & self._cache.mask(State.ABSENT, near)
        is_due[near == slot] = True
        run = self._neighbours.around(slot, near, is_due)
        distance_of = dict(zip(near.tolist(), distances.tolist(), strict=True))
        # Outwards from the image, so that neighbours without room leave the others in one range.
        first = end = run.index(slot)
        while first > 0 and self._schedule.reserve(run[first - 1], distance_of[run[first - 1]]):
            first -= 1
        while end < len(run) - 1 and self._schedule.reserve(run[end + 1], distance_of[run[end + 1]]):
            end += 1
        return run[first : end + 1]

    def _start(self, slots: list[int], *, is_urgent: bool, num_tries: int = 0) -> None:
        job = self._fetcher.submit(slots, is_urgent=is_urgent, num_tries=num_tries)
        self._num_jobs += 1
        self._in_flight_bytes += job.num_bytes

    def _finish_jobs(self) -> None:
        for job in self._fetcher.finished():
            self._num_jobs -= 1
            self._in_flight_bytes -= job.num_bytes
            pending = [slot for slot in job.slots if self._cache.state(slot) == State.PENDING]
            for slot in job.slots:
                if slot not in pending:
                    self._schedule.note_ready(slot)
            self._counts["fetched"] += len(job.slots) - len(pending)
            if pending and job.is_disk_full and job.num_tries < _MAX_TRIES:
                self._retries.append((time.monotonic() + _RETRY_S, pending, job.num_tries + 1))
            elif pending:
                assert job.error is not None
                self._counts["failed"] += len(pending)
                for slot in pending:
                    self._cache.fail(slot, job.error)
        while self._retries and self._retries[0][0] <= time.monotonic():
            self._retry(*self._retries.popleft()[1:])

    def _retry(self, slots: list[int], num_tries: int) -> None:
        """Fetch images again that did not fit onto the disk, after evicting as many bytes."""
        num_bytes = sum(int(self._cache.sizes[slot]) for slot in slots)
        self._schedule.shrink_by(num_bytes)
        self._counts["retries"] += 1
        self._start(slots, is_urgent=True, num_tries=num_tries)


def _main(folder: Path) -> int:
    os.umask(0o077)
    settings = StorageSettings.from_json(json.loads(sys.stdin.buffer.readline()))
    launcher = -1
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return EXIT_LOCKED
        Holder(boot_id(), socket.gethostname(), str(os.getpid())).write(lock)
        # Ctrl-C is for the training process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The training process reads standard error until this one listens.
        launcher = os.dup(sys.stderr.fileno())
        _redirect_output(folder)
        process = FetchProcess(folder, settings, lock)
    except Exception as error:
        is_known = isinstance(error, LitLoaderError | SettingError | ImportError | OSError)
        text = hide_secrets(str(error) if is_known else traceback.format_exc(), settings.options) + "\n"
        # Readers in other processes know only the log.
        sys.stderr.write(text)
        if launcher >= 0:
            os.write(launcher, text.encode(errors="backslashreplace"))
        return EXIT_FAILED
    os.close(launcher)
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    process.run()
    return 0


def _redirect_output(folder: Path) -> None:
    """Append later output to a file: the training process that reads the pipe may end before this one."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > _MAX_LOG_BYTES:
        os.ftruncate(log, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


if __name__ == "__main__":
    code = _main(Path(sys.argv[1]))
    sys.stderr.flush()
    # Threads may wait for a store that does not answer.
    end_process(code)
