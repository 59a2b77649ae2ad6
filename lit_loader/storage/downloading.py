"""Jobs that read a store: its listing, whole objects, and the first bytes of images."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from lit_loader.errors import LitLoaderError, SettingError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.foundation.files import new_file
from lit_loader.storage.jobs import ReportProgress
from lit_loader.storage.listing import Listing
from lit_loader.storage.object_store import open_store, storage_error
from lit_loader.storage.settings import StorageSettings

__all__ = ["HEADER_BYTES", "download", "headers", "list_objects", "on_threads"]

HEADER_BYTES: Final = 64 << 10
"""First bytes of an image that `headers` fetches."""

_MAX_OBJECTS: Final = 50_000_000
_MAX_CHARACTERS: Final = 8_000_000_000
_MAX_INT64: Final = 2**63 - 1
_STREAM_BYTES: Final = 8 << 20
_PROGRESS_S: Final = 0.1


def list_objects(settings: StorageSettings, request: dict[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Write the `Listing` of a store to the file ``request["path"]``."""
    obstore = require("obstore", "storage")

    keys: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    versions: list[str] = []
    num_characters = 0
    report = _every(_PROGRESS_S, progress)
    try:
        for batch in obstore.list(open_store(settings), chunk_size=1000):
            for item in batch:
                keys.append(item["path"])
                # Sizes and times beyond int64 are left out later, with the reason.
                sizes.append(min(item["size"], _MAX_INT64))
                # Whole microseconds, because a float of seconds does not hold them.
                modified = item["last_modified"]
                time_ns = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
                times.append(max(-1, min(time_ns, _MAX_INT64)))
                versions.append(item["e_tag"] or "")
                num_characters += len(keys[-1]) + len(versions[-1])
            report(len(keys), None)
            if len(keys) > _MAX_OBJECTS or num_characters > _MAX_CHARACTERS:
                message = f"{settings.url} has more than {_MAX_OBJECTS:,} objects, or too long keys"
                raise StorageError(message, remedy="give the folder of one data set, or pack its images into shards")
    except (LitLoaderError, SettingError):
        raise
    # Panics of obstore are not of the class Exception.
    except BaseException as error:
        raise storage_error(error, settings.url) from None
    arrays = {"sizes": np.array(sizes, dtype=np.int64), "times": np.array(times, dtype=np.int64)}
    Listing(keys=keys, versions=versions, **arrays).save(Path(request["path"]))
    return {"num_objects": len(keys)}


def download(settings: StorageSettings, request: dict[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Write whole objects to files, each atomically and with the time of the object.

    ``request`` has the path of a ``listing`` of the objects, and the ``folder`` of the files.
    """
    return _fetch(settings, request, progress, headers_only=False)


def headers(settings: StorageSettings, request: dict[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Write as much of images to files as their headers need; a hole follows up to the size of the object.

    ``request`` is as for `download`. An image whose header needs more than `HEADER_BYTES` is written whole.
    """
    return _fetch(settings, request, progress, headers_only=True)


def _fetch(
    settings: StorageSettings, request: dict[str, Any], progress: ReportProgress, *, headers_only: bool
) -> dict[str, Any]:
    objects = Listing.load(Path(request["listing"]))
    fetch = partial(_fetch_object, open_store(settings), settings.url, objects, Path(request["folder"]), headers_only)
    on_threads(fetch, range(len(objects)), settings.num_connections, progress)
    return {"num_objects": len(objects)}


def _fetch_object(store: Any, url: str, objects: Listing, folder: Path, headers_only: bool, row: int) -> None:
    """Write one object, or the header of an image, to its file."""
    key = objects.keys[row]
    size = int(objects.sizes[row])
    path = folder / key
    place = f"{url}/{printable(key)}"
    read = partial(_chunks, store, key, size, objects.versions[row])
    try:
        with new_file(path) as file:
            pieces = _header(read, size) if headers_only and size > HEADER_BYTES else {0: read(0, size)}
            for start, chunks in pieces.items():
                file.seek(start)
                file.writelines(chunks)
            file.truncate(size)
            file.flush()
            # Before the rename, so that a table that was read from this file does not look stale.
            os.utime(file.fileno(), ns=(int(objects.times[row]), int(objects.times[row])))
    except StorageError as error:
        raise StorageError(f"{place}: {error.problem}", remedy=error.remedy) from None
    # Panics of obstore are not of the class Exception.
    except BaseException as error:
        # The disk of this host may be full.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{path} cannot be written ({error.strerror})") from None
        raise storage_error(error, place) from None


def _chunks(store: Any, key: str, size: int, version: str, start: int, stop: int) -> Iterator[Any]:
    """Yield the bytes of a range of an object, in chunks.

    Raises:
        StorageError: If the store sends more or less.
    """
    obstore = require("obstore", "storage")
    options: dict[str, Any] = {"if_match": version} if version else {}
    # A range of an empty object is an error of the store.
    if (start, stop) != (0, size):
        options["range"] = (start, stop)
    num_bytes = 0
    for chunk in obstore.get(store, key, options=options).stream(min_chunk_size=_STREAM_BYTES):
        num_bytes += len(chunk)
        # An object that has grown must not fill the disk.
        if num_bytes > stop - start:
            break
        yield chunk
    if num_bytes != stop - start:
        problem = f"expected {stop - start} bytes, got {num_bytes}; the object has changed since it was listed"
        raise StorageError(problem, remedy="start again, which lists the data set again")


def _header(read: Callable[[int, int], Iterator[Any]], size: int) -> dict[int, Iterable[Any]]:
    """Return the pieces of an image that its header needs, by their first byte.

    Headers are read with Pillow's functions, which must come to the same result as with the whole file.
    """
    head = b"".join(map(bytes, read(0, HEADER_BYTES)))
    if head.startswith((b"GIF8", b"BM")) or _has_jpeg_header(head):
        return {0: [head]}
    if head.startswith(b"\x89PNG"):
        # EXIF may be behind the pixels.
        tail_start = max(HEADER_BYTES, size - HEADER_BYTES)
        tail = b"".join(map(bytes, read(tail_start, size)))
        if b"eXIf" not in tail:
            return {0: [head], tail_start: [tail]}
    # TIFF and WebP have parts of their headers at the end.
    return {0: read(0, size)}


def _has_jpeg_header(head: bytes) -> bool:
    """Return True if the first bytes of a JPEG contain all segments before its pixels."""
    if not head.startswith(b"\xff\xd8\xff"):
        return False
    position = 2
    while position + 4 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if marker == 0xDA:  # start of scan
            return True
        # Fill bytes may precede a marker.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return False


def on_threads(
    function: Callable[[int], object], numbers: Sequence[int], num_threads: int, progress: ReportProgress
) -> None:
    """Call a function with each number on several threads; the first error cancels calls that have not begun."""
    report = _every(_PROGRESS_S, progress)
    with ThreadPoolExecutor(max(1, min(num_threads, len(numbers)))) as pool:
        try:
            for count, future in enumerate(as_completed(_submitted(pool, function, numbers)), 1):
                future.result()
                report(count, len(numbers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    progress(len(numbers), len(numbers))


def _submitted(pool: ThreadPoolExecutor, function: Callable[[int], object], numbers: Iterable[int]) -> list[Any]:
    return [pool.submit(function, number) for number in numbers]


def _every(interval_s: float, progress: ReportProgress) -> ReportProgress:
    """Return a `ReportProgress` that reports at most once in an interval."""
    last = 0.0

    def report(count: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval_s:
            last = now
            progress(count, total)

    return report
