"""Stores of images: return the bytes of an image, wherever they are."""

from __future__ import annotations

import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.errors import ImageError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import cache_folder
from lit_loader.storage.cache_file import CacheFile
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.client import SlotStream, StorageClient
from lit_loader.storage.fetch_launch import CATALOG_NAME, save_catalog
from lit_loader.storage.protocol import State, connect, encode_request
from lit_loader.storage.settings import StorageSettings

__all__ = ["ImageStore", "LocalImages", "RemoteImages", "StoredSamples"]

_MAX_OPEN_FILES: Final = 128
_MAX_SILENCE_S: Final = 20.0
"""Seconds without a sign of life of a fetch process after which a read fails; a client restarts one within two."""

_REQUEST_S: Final = 0.1
_MAX_SLEEP_S: Final = 0.005

# The ETag of S3 is a hash of the content. Other stores count versions, or use the time.
_CONTENT_TAG: Final = re.compile(r'"?[0-9a-f]{32}(-\d+)?"?')


class ImageStore(ABC):
    """Returns the bytes of stored images.

    Attributes:
        catalog: Where each image is.
    """

    catalog: Catalog

    @property
    def settings(self) -> StorageSettings | None:
        """Settings of the store, or None for images on this host and for copies of the store in other processes."""
        return None

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return all bytes of an image.

        Args:
            path: Path of the image in the annotation table, relative to its root.

        Raises:
            ImageError: If the image cannot be read; the message names its object.
        """

    @abstractmethod
    def peek(self, path: str) -> bytes | None:
        """Return all bytes of an image if they are on this host, else None."""

    @abstractmethod
    def copy_key(self, path: str) -> Hashable:
        """Return a value that is equal for copies of an image, as far as that is known without fetching it.

        Raises:
            OSError: If the image cannot be read.
        """

    def start(self) -> None:
        """Make the store usable by copies of it in other processes, such as workers that are forked afterwards."""
        return

    def open_stream(self, num_prefetched: int = 0) -> SlotStream | None:
        """Return a stream that tells the store which images are needed next, or None if it does not read ahead.

        Args:
            num_prefetched: Number of samples that workers may read ahead of delivery.
        """
        return None

    def slot(self, path: str) -> int:
        """Return the slot of an image in the catalog.

        Raises:
            ImageError: If the catalog has no such image.
        """
        slot = self.catalog.slot(path)
        if slot < 0:
            problem = f"{printable(path)} is not in the catalog of {printable(self.catalog.root)}"
            raise ImageError(problem, remedy="read the annotations again, because the set has changed since")
        return slot


class StoredSamples(NamedTuple):
    """Consecutive samples of a data set whose images are in one store.

    Attributes:
        first: Index of the first sample in the data set.
        slots: int32 ``(num_samples,)``, slot of each sample's image in the store's catalog, -1 for an image elsewhere.
        store: The store.
    """

    first: int
    slots: npt.NDArray[np.int32]
    store: ImageStore


class LocalImages(ImageStore):
    """Images that are ranges of local files, such as the members of tar files.

    Runs in: any process and thread; forked processes share its descriptors, whose positions are not used.
    Owns: at most 128 open files, until it is collected.

    Args:
        catalog: Where each image is; its root is a folder.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        # It has no lock that another thread could hold during a fork.
        self._open = lru_cache(maxsize=_MAX_OPEN_FILES)(_OpenFile)

    def __getstate__(self) -> dict[str, Any]:
        return {"catalog": self.catalog}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["catalog"])  # type: ignore[misc]

    def read(self, path: str) -> bytes:
        """Return all bytes of an image; see `ImageStore.read`."""
        slot = self.slot(path)
        catalog = self.catalog
        name = catalog.objects[catalog.object_of[slot]]
        # An index file may contain any name.
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ImageError(f"{printable(name)} leads out of the folder {printable(catalog.root)}")
        length = int(catalog.lengths[slot])
        try:
            data = self._open(f"{catalog.root}/{name}").read(int(catalog.starts[slot]), length)
        except OSError as error:
            raise ImageError(f"{catalog.object_name(slot)}: cannot be read: {error.strerror or error}") from error
        if len(data) != length:
            problem = f"{catalog.object_name(slot)}: the file ends after {len(data)} of {length} bytes of the image"
            raise ImageError(problem, remedy="make the index again if the file has changed")
        return data

    def peek(self, path: str) -> bytes | None:
        """Return all bytes of an image, or None if it cannot be read."""
        try:
            return self.read(path)
        except ImageError:
            return None

    def copy_key(self, path: str) -> Hashable:
        """Return a digest of the image's bytes."""
        digests = self.catalog.digests
        return blake2b(self.read(path)).digest() if digests is None else bytes(digests[self.slot(path)])


class _OpenFile:
    """An open file, closed with its last reference: a thread may still read when another one opens the next."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, or those before the end of the file."""
        # An index file may contain any length, and a buffer of that many bytes would be allocated.
        length = min(length, max(0, os.fstat(self._descriptor).st_size - start))
        data = chunk = os.pread(self._descriptor, length, start)
        # Network file systems may return less, and Linux returns at most 2 GiB.
        while chunk and len(data) < length:
            chunk = os.pread(self._descriptor, length - len(data), start + len(data))
            data += chunk
        return data


class RemoteImages(ImageStore):
    """Images in object storage, read from the cache that the fetch process of this host fills.

    An image that was not fetched ahead is requested, so any image can be read at any time.

    Runs in: any process and thread. The process that creates it connects to the fetch process and starts it; workers
        and pickled copies only read. A pickled copy has the folder of the cache, and no credentials.
    Owns: its `StorageClient`, and a socket for requests.

    Args:
        catalog: Where each image is; its root is a URL.
        settings: How to reach the store.

    Attributes:
        folder: Folder of the cache.
    """

    def __init__(self, catalog: Catalog, settings: StorageSettings) -> None:
        self.catalog = catalog
        self.folder = cache_folder(settings.cache_dir) / "objects" / catalog.key
        self._settings: StorageSettings | None = settings
        self._client: StorageClient | None = None
        self._cache = CacheFile(self.folder, catalog)
        self._requests = _Requests(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        save_catalog(self.catalog, self.folder)
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder = state["folder"]
        self.catalog = Catalog.load(self.folder / CATALOG_NAME)
        self._settings = None
        self._client = None
        self._cache = CacheFile(self.folder, self.catalog)
        self._requests = _Requests(self.folder)

    @property
    def settings(self) -> StorageSettings | None:
        """Settings of the store, or None in a copy in another process."""
        return self._settings

    def start(self) -> None:
        """Connect this process to the fetch process of the host, which is started if there is none.

        Raises:
            ImportError: If obstore is not installed.
            CacheError: If the folder of the cache cannot be written.
            StorageError: If the fetch process cannot start; the message contains its reason.
        """
        client = self._client
        if client is None or not client.is_usable:
            self._client = StorageClient(self.catalog, self._settings, self.folder)

    def close(self) -> None:
        """Disconnect from the fetch process, which ends when no process is connected; the next use connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._requests.close()

    def open_stream(self, num_prefetched: int = 0) -> SlotStream | None:
        """Return a stream that tells the fetch process which images are needed next; see `start` for errors."""
        self.start()
        assert self._client is not None
        return self._client.open_stream(num_prefetched)

    def stats(self) -> dict[str, Any]:
        """Return the counters of the fetch process; see `start` for errors."""
        self.start()
        assert self._client is not None
        return self._client.stats()

    def read(self, path: str) -> bytes:
        """Return all bytes of an image, and wait until they are fetched if necessary; see `ImageStore.read`."""
        slot = self.slot(path)
        data = self._read_ready(slot)
        return self._wait_for(slot) if data is None else data

    def peek(self, path: str) -> bytes | None:
        """Return all bytes of an image if they are in the cache, else None."""
        slot = self.catalog.slot(path)
        return None if slot < 0 else self._read_ready(slot)

    def copy_key(self, path: str) -> Hashable:
        """Return a digest, or size and ETag if they say that contents are equal, else a value of this image alone."""
        catalog = self.catalog
        slot = self.slot(path)
        if catalog.digests is not None:
            return bytes(catalog.digests[slot])
        tag = catalog.versions[catalog.object_of[slot]]
        if catalog.holds_whole_objects and _CONTENT_TAG.fullmatch(tag):
            return int(catalog.lengths[slot]), tag.strip('"')
        # Images of two stores may have the same slot.
        return catalog.root, slot

    def _read_ready(self, slot: int) -> bytes | None:
        """Return an image that is in the cache, else None."""
        # A worker has a copy of a client of its parent, and need not connect.
        if self._client is None and self._settings is not None:
            self.start()
        return self._cache.try_read(slot)

    def _wait_for(self, slot: int) -> bytes:
        """Request an image until it is in the cache, and return it."""
        pause_s = 0.0002
        next_request = 0.0
        last_ticks = -1
        last_tick = time.monotonic()
        # A failure of an earlier time, while the store was away, must not be the answer to this request. The state of
        # the next failure has another generation.
        old_state = self._cache.state_byte(slot)
        while True:
            data = self._read_ready(slot)
            if data is not None:
                return data
            state = self._cache.state_byte(slot)
            is_failed = state % 4 == State.FAILED
            if is_failed and state != old_state:
                raise ImageError(f"{self.catalog.object_name(slot)}: {self._cache.error_text(slot)}")
            now = time.monotonic()
            if now >= next_request:
                # A pending image is requested as well: a process that was killed leaves it pending.
                next_request = now + _REQUEST_S
                if is_failed:
                    self._requests.send(encode_request(slot, forget=True))
                self._requests.send(encode_request(slot))
                # A process that was stopped still takes requests.
                num_ticks = self._cache.num_ticks()
                if num_ticks != last_ticks:
                    last_ticks = num_ticks
                    last_tick = now
                elif now - last_tick > _MAX_SILENCE_S:
                    raise self._silence(slot)
            time.sleep(pause_s)
            pause_s = min(_MAX_SLEEP_S, 1.5 * pause_s)

    def _silence(self, slot: int) -> ImageError:
        """Return the error of an image for which no fetch process works."""
        reason = None if self._client is None else self._client.error
        problem = f"{self.catalog.object_name(slot)}: no fetch process works for {_MAX_SILENCE_S:.0f} s"
        return ImageError(
            problem if reason is None else f"{problem}: {reason}",
            remedy=f"see its messages in {self.folder}/log, and end it if it hangs",
        )


class _Requests:
    """Socket for requests to the fetch process; connects again after another process was started.

    Datagrams are whole, so threads and forked processes can share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; the next request opens another one."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def send(self, request: bytes) -> None:
        """Send a request; it is lost if no fetch process listens."""
        # The second attempt is for a fetch process that was started since the first connection.
        for _ in range(2):
            connection = self._socket
            try:
                if connection is None:
                    connection = connect(self._folder, "requests", socket.SOCK_DGRAM)
                    connection.setblocking(False)
                    self._socket = connection
                connection.send(request)
            except BlockingIOError:
                # Its queue is full; requests are repeated.
                return
            except OSError:
                if connection is not None:
                    connection.close()
                self._socket = None
            else:
                return
