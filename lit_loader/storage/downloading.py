"""Jobs that read a store: its listing, whole objects, and the first bytes of images."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from lit_loader.errors import LitLoaderError, SettingError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.foundation.files import new_file
from lit_loader.storage.jobs import Progress
from lit_loader.storage.listing import Listing
from lit_loader.storage.object_store import open_store, storage_error
from lit_loader.storage.settings import StorageSettings

__all__ = ["HEADER_BYTES", "download", "headers", "list_objects", "on_threads"]

HEADER_BYTES: Final = 64 << 10
"""First bytes of an image that `headers` fetches."""

_MAX_OBJECTS: Final = 50_000_000
_STREAM_BYTES: Final = 8 << 20
_PROGRESS_S: Final = 0.1


def list_objects(settings: StorageSettings, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the `Listing` of a store to the file ``request["path"]``."""
    obstore = require("obstore", "storage")

    keys: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    versions: list[str] = []
    report = _every(_PROGRESS_S, progress)
    try:
        for batch in obstore.list(open_store(settings), chunk_size=1000):
            for item in batch:
                keys.append(item["path"])
                sizes.append(item["size"])
                # Whole microseconds, because a float of seconds does not hold them.
                modified = item["last_modified"]
                times.append(int(modified.timestamp()) * 10**9 + modified.microsecond * 1000)
                versions.append(item["e_tag"] or "")
            report(len(keys), None)
            if len(keys) > _MAX_OBJECTS:
                message = f"{settings.url} has more than {_MAX_OBJECTS:,} objects"
                raise StorageError(message, remedy="give the folder of one data set, or pack its images into shards")
    except (LitLoaderError, SettingError):
        raise
    except Exception as error:
        raise storage_error(error, settings.url) from None
    arrays = {"sizes": np.array(sizes, dtype=np.int64), "times": np.array(times, dtype=np.int64)}
    Listing(keys=keys, versions=versions, **arrays).save(Path(request["path"]))
    return {"num_objects": len(keys)}


def download(settings: StorageSettings, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write whole objects to files, each atomically and with the time of the object.

    ``request`` has the path of the ``listing``, the ``rows`` of the objects, and the ``folder`` of the files.
    """
    return _fetch(settings, request, progress, limit=None)


def headers(settings: StorageSettings, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the first `HEADER_BYTES` of objects to files, followed by a hole up to the size of the object.

    ``request`` is as for `download`.
    """
    return _fetch(settings, request, progress, limit=HEADER_BYTES)


def _fetch(
    settings: StorageSettings, request: dict[str, Any], progress: Progress, *, limit: int | None
) -> dict[str, Any]:
    objects = Listing.load(Path(request["listing"])).select(np.array(request["rows"], dtype=np.int64))
    fetch = partial(_fetch_object, open_store(settings), settings.url, objects, Path(request["folder"]), limit)
    on_threads(fetch, range(len(objects)), settings.num_connections, progress)
    return {"num_objects": len(objects)}


def _fetch_object(store: Any, url: str, objects: Listing, folder: Path, limit: int | None, row: int) -> None:
    """Write one object, or its first bytes, to its file."""
    obstore = require("obstore", "storage")

    key = objects.keys[row]
    size = int(objects.sizes[row])
    num_bytes = size if limit is None else min(size, limit)
    options: dict[str, Any] = {"if_match": objects.versions[row]} if objects.versions[row] else {}
    # A range of an empty object is an error of the store.
    if 0 < num_bytes < size:
        options["range"] = (0, num_bytes)
    path = folder / key
    place = f"{url}/{printable(key)}"
    try:
        response = obstore.get(store, key, options=options)
        chunks = response.stream(min_chunk_size=_STREAM_BYTES)
        with new_file(path) as file:
            for chunk in chunks:
                file.write(chunk)
            if file.tell() != num_bytes:
                problem = f"{place}: expected {num_bytes} bytes, got {file.tell()}; the object has changed"
                raise StorageError(problem, remedy="list the data set again")
            file.truncate(size)
            file.flush()
            # Before the rename, so that a table that was read from this file does not look stale.
            os.utime(file.fileno(), ns=(int(objects.times[row]), int(objects.times[row])))
    except StorageError:
        raise
    except Exception as error:
        # Errors of this disk are no errors of the store.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{path} cannot be written ({error.strerror})") from None
        raise storage_error(error, place) from None


def on_threads(function: Callable[[int], object], numbers: Sequence[int], num_threads: int, progress: Progress) -> None:
    """Call a function with each number on several threads; the first error cancels calls that have not begun."""
    report = _every(_PROGRESS_S, progress)
    with ThreadPoolExecutor(max(1, min(num_threads, len(numbers)))) as pool:
        try:
            for done, future in enumerate(as_completed(_submitted(pool, function, numbers)), 1):
                future.result()
                report(done, len(numbers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    progress(len(numbers), len(numbers))


def _submitted(pool: ThreadPoolExecutor, function: Callable[[int], object], numbers: Iterable[int]) -> list[Any]:
    return [pool.submit(function, number) for number in numbers]


def _every(interval_s: float, progress: Progress) -> Progress:
    """Return a `Progress` that reports at most once in an interval."""
    last = 0.0

    def report(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval_s:
            last = now
            progress(done, total)

    return report
