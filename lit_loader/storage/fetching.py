"""Requests to a store: which images share one, and the threads that send them."""

from __future__ import annotations

import errno
import os
import queue
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.storage.cache_file import CacheWriter
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.object_store import open_store, storage_error
from lit_loader.storage.settings import StorageSettings, hide_secrets
from lit_loader.types import IndexArray

__all__ = ["Fetcher", "Job", "Neighbours", "REQUEST_BYTES", "request_distances"]

REQUEST_BYTES: Final = 4 << 20
"""Images of one object share a request within a range of about this size."""

_HORIZON_BYTES: Final = 2 << 30  # neighbours that are needed within this many bytes of the order share a request
_MAX_GAP: Final = 4096  # bytes between two images of a request: headers and padding of a tar file, but no image
_MAX_RETRIES: Final = "30"  # 14 s in the median of the random waits
_MAX_DENIED: Final = 6  # requests with credentials that the store refuses, while a file gives new ones
_DENIED_S: Final = 2.0
_MIN_FINISHED: Final = 16
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def request_distances(neighbours: Neighbours, sizes: IndexArray, budget: int, window: int) -> tuple[int, int]:
    """Return how many samples ahead an image is fetched, and how many ahead its neighbours may be to share the request.

    Args:
        neighbours: Images that are near each other.
        sizes: Bytes of each image on the disk, int64 ``(num_images,)``.
        budget: Largest number of bytes of the cache.
        window: Number of samples that are kept ahead.
    """
    if not neighbours.exist:
        return window, window
    num_bytes = _HORIZON_BYTES
    if budget < int(sizes.sum()):
        # Images that are fetched early take the place of images that could stay.
        num_bytes = min(num_bytes, budget // 2)
    horizon = num_bytes // max(1, int(sizes.mean()))
    # Images of a new block are needed in any order, so its requests have to begin before its first sample.
    return max(window, horizon // 4), horizon


class Neighbours:
    """Images that are near each other in one object.

    Args:
        catalog: The images.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        images = np.bincount(catalog.object_of, minlength=len(catalog.objects))
        self.exist = bool(images.max(initial=0) > 1)
        if not self.exist:
            return
        # Within a fixed grid of ranges, so that a request leaves no fragments for later ones.
        cells = catalog.starts // REQUEST_BYTES
        self._order = np.lexsort((catalog.starts, catalog.object_of)).astype(np.int32)
        objects = catalog.object_of[self._order]
        is_first = (np.diff(objects, prepend=-1) != 0) | (np.diff(cells[self._order], prepend=-1) != 0)
        self._firsts = np.append(np.flatnonzero(is_first), len(objects))
        self._places = np.empty(len(objects), dtype=np.int32)
        self._places[self._order] = np.arange(len(objects), dtype=np.int32)

    def of(self, slot: int) -> npt.NDArray[np.int32]:
        """Return the slots that may share a request with a slot, which is one of them, by their first byte."""
        cell = np.searchsorted(self._firsts, self._places[slot], side="right") - 1
        return self._order[self._firsts[cell] : self._firsts[cell + 1]]

    def around(self, slot: int, slots: npt.NDArray[np.int32], is_due: npt.NDArray[np.bool_]) -> list[int]:
        """Return the slots around one that are due, without a large gap between them.

        Args:
            slot: The slot.
            slots: Its neighbours of `of`.
            is_due: Which of them shall be fetched.
        """
        ends = self._catalog.starts[slots] + self._catalog.lengths[slots]
        is_near = self._catalog.starts[slots[1:]] - ends[:-1] <= _MAX_GAP
        place = int(np.flatnonzero(slots == slot)[0])
        is_joined = is_due[1:] & is_due[:-1] & is_near
        breaks = np.flatnonzero(~is_joined)
        split = int(np.searchsorted(breaks, place))
        first = int(breaks[split - 1]) + 1 if split else 0
        end = int(breaks[split]) + 1 if split < len(breaks) else len(slots)
        run: list[int] = slots[first:end].tolist()
        return run


@dataclass
class Job:
    """A request to the store.

    Attributes:
        slots: PENDING images of one object, by their first byte.
        num_bytes: Size of the range of bytes.
        num_tries: How often the images were fetched before, when the disk was full.
        error: Why it failed, or None. Images that could be written before are READY, the others still PENDING.
        is_disk_full: Whether it failed because the bytes could not be written to this host's disk.
    """

    slots: Sequence[int]
    num_bytes: int
    num_tries: int = 0
    error: str | None = None
    is_disk_full: bool = False


class Fetcher:
    """Threads that fetch images into the cache.

    Owns: its threads, and a socket that becomes readable when jobs are finished.

    Args:
        settings: The store.
        cache: The cache.

    Attributes:
        wakeup: Readable when `finished` has something to return.
        signal: The other end of `wakeup`, for the threads.
        num_requests: Number of requests that were sent.
        num_bytes: Number of bytes that were received.
    """

    def __init__(self, settings: StorageSettings, cache: CacheWriter) -> None:
        self._cache = cache
        self._catalog = cache.catalog
        catalog = cache.catalog
        images = np.bincount(catalog.object_of, minlength=len(catalog.objects))
        # Of an object with one image from its first byte on, everything is fetched: its size then shows a change.
        self._is_whole = (images[catalog.object_of] == 1) & (catalog.starts == 0)
        self._store_lock = threading.Lock()
        self.open(settings)
        self._urgent: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        # True for each job of both queues, False for a thread to end
        self._tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._finished: deque[Job] = deque()
        self._is_signalled = False
        self.wakeup, self.signal = socket.socketpair()
        self.num_requests = 0
        self.num_bytes = 0
        for number in range(settings.num_connections):
            try:
                threading.Thread(target=self._run, name="lit_loader_fetch", daemon=True).start()
            except RuntimeError:
                # The system limits the threads of a user; those that were started do the work.
                if not number:
                    raise StorageError("the system starts no thread", remedy="raise the limit of processes") from None
                break

    def open(self, settings: StorageSettings) -> None:
        """Open the store, also with other options than before; requests that were sent keep theirs.

        Raises:
            SettingError: If an option is unknown or has a wrong value.
            StorageError: If the store cannot be opened.
        """
        if not settings.url.startswith("file:"):
            # By its own default of 10, obstore gives up on a store that is away for 3 s.
            settings = replace(settings, options={"max_retries": _MAX_RETRIES, **settings.options})
        store = open_store(settings)
        with self._store_lock:
            self._settings = settings
            self._store = store

    def submit(self, slots: Sequence[int], *, is_urgent: bool, num_tries: int = 0) -> Job:
        """Fetch PENDING images of one object, in a request before all others if it is urgent."""
        starts = self._catalog.starts
        ends = [int(starts[slot]) + int(self._catalog.lengths[slot]) for slot in slots]
        job = Job(slots, max(ends) - int(starts[slots[0]]), num_tries)
        (self._urgent if is_urgent else self._waiting).append(job)
        self._tickets.put(True)
        return job

    def finished(self) -> list[Job]:
        """Return the jobs that have finished since the last call."""
        with suppress(BlockingIOError):
            self.wakeup.recv(64, socket.MSG_DONTWAIT)
        # Before the jobs are taken: a thread that finishes one later signals again.
        self._is_signalled = False
        jobs = []
        while self._finished:
            jobs.append(self._finished.popleft())
        return jobs

    def close(self) -> None:
        """Let the threads end; one that waits for the store ends after that."""
        for _ in range(self._settings.num_connections):
            self._tickets.put(False)

    def _run(self) -> None:
        while self._tickets.get():
            try:
                job = self._urgent.popleft()
            except IndexError:
                job = self._waiting.popleft()
            try:
                self._fetch(job)
            except OSError as error:
                job.is_disk_full = error.errno in _DISK_FULL
                job.error = self._describe(error, job)
            # A panic in Rust is not an Exception, and must not end the thread.
            except BaseException as error:
                job.error = self._describe(error, job)
            self._finished.append(job)
            # One wakeup for several jobs, unless threads have nothing to do before it.
            if not self._is_signalled and (len(self._finished) >= _MIN_FINISHED or not self._waiting):
                self._is_signalled = True
                self.signal.send(b"x")

    def _fetch(self, job: Job) -> None:
        slot = job.slots[0]
        start = int(self._catalog.starts[slot])
        is_whole = bool(self._is_whole[slot])
        # Stores refuse ranges without bytes.
        data = memoryview(self._get(job, start, is_whole) if job.num_bytes else b"")
        for slot in job.slots:
            first = int(self._catalog.starts[slot]) - start
            self._cache.write(slot, data[first : first + int(self._catalog.lengths[slot])])

    def _get(self, job: Job, start: int, is_whole: bool) -> Any:
        """Return the bytes of a job, of the size and version of the catalog."""
        index = int(self._catalog.object_of[job.slots[0]])
        name = self._catalog.objects[index]
        version = self._catalog.versions[index]
        options: dict[str, Any] = {}
        if not is_whole:
            options["range"] = (start, start + job.num_bytes)
        if version and not version.startswith("W/"):
            # Weak ETags never match; they are compared below.
            options["if_match"] = version if version.startswith('"') else f'"{version}"'
        result = self._send(name, options)
        meta = result.meta
        first, end = result.range
        if is_whole and meta["size"] != job.num_bytes:
            raise StorageError(_changed(f"{meta['size']} instead of {job.num_bytes} bytes"))
        if end - first != job.num_bytes:
            raise StorageError(_changed(f"it ends {job.num_bytes - end + first} bytes too early"))
        e_tag = meta.get("e_tag")
        if version and e_tag and e_tag.strip('"') != version.strip('"'):
            raise StorageError(_changed(f"ETag {printable(e_tag)} instead of {printable(version)}"))
        data = result.bytes()
        if len(data) != job.num_bytes:
            raise StorageError(f"expected {job.num_bytes} bytes, got {len(data)}")
        self.num_bytes += len(data)
        return data

    def _send(self, name: str, options: dict[str, Any]) -> Any:
        """Send a request, again with new credentials if a file gives them."""
        for attempt in range(_MAX_DENIED):
            store = self._store
            self.num_requests += 1
            try:
                return store.get(name, options=options or None)
            except Exception as error:
                is_denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
                if not is_denied or "credentials_file" not in self._settings.options or attempt == _MAX_DENIED - 1:
                    raise
            time.sleep(_DENIED_S * attempt / _MAX_DENIED)
            with self._store_lock:
                if self._store is store:
                    self._store = open_store(self._settings)
        raise AssertionError("the last attempt raises")

    def _describe(self, error: BaseException, job: Job) -> str:
        """Return the message of an error, with the URL of its object, and without credentials."""
        name = self._catalog.objects[int(self._catalog.object_of[job.slots[0]])]
        url = re.sub(r"[?#].*", "", f"{self._settings.url}/{printable(name)}")
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            text = f"{url}: cannot write to the cache {self._cache.folder} ({os.strerror(error.errno)})"
        elif type(error).__name__ == "PreconditionError":
            text = f"{url} {_changed('its ETag is another one')}"
        elif isinstance(error, StorageError):
            text = f"{url} {error}"
        else:
            text = str(storage_error(error, url))
        return hide_secrets(printable(text), self._settings.options)


def _changed(detail: str) -> str:
    return f"has changed while the run was reading it ({detail}); restart the run to use the new version"
