"""Jobs on packed shards in a store: upload files, index tar files, compare shards with their digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lit_loader.errors import AnnotationError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.downloading import on_threads
from lit_loader.storage.jobs import ReportProgress
from lit_loader.storage.listing import Listing
from lit_loader.storage.object_store import open_store, storage_error
from lit_loader.storage.settings import StorageSettings
from lit_loader.storage.tar_index import ReadAt, windowed
from lit_loader.storage.tar_samples import read_samples
from lit_loader.storage.verifying import wrong_images

__all__ = ["tar_samples", "upload", "verify"]

_PART_BYTES: Final = 16 << 20
_NUM_PARTS: Final = 4
_MAX_THREADS: Final = 8


def upload(settings: StorageSettings, request: Mapping[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Upload files in their order; large ones in parts of 16 MiB.

    ``request["files"]`` are pairs of a file and its key. Later files are uploaded only after earlier ones have arrived.
    """
    obstore = require("obstore", "storage")

    store = open_store(settings)
    files = request["files"]
    for number, (path, key) in enumerate(files):
        progress(number, len(files))
        try:
            # A path, so that the file is read part by part.
            obstore.put(store, key, Path(path), chunk_size=_PART_BYTES, max_concurrency=_NUM_PARTS)
        except Exception as error:
            raise storage_error(error, f"{settings.url}/{printable(key)}") from None
    return {}


def tar_samples(settings: StorageSettings, request: Mapping[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Write the `TarSamples` of tar files.

    ``request`` has the path of the ``listing``, the ``image_extensions``, and the ``tars``: the row of each in the
    listing, and path and key of the file to write.
    """
    listing = Listing.load(Path(request["listing"]))
    store = open_store(settings)
    extensions = frozenset(request["image_extensions"])

    def index(number: int) -> None:
        row, path, cache_key = request["tars"][number]
        key = listing.keys[row]
        num_bytes = int(listing.sizes[row])
        place = f"{settings.url}/{printable(key)}"
        read_at = windowed(_object_reader(store, key, place, num_bytes))
        try:
            samples = read_samples(read_at, num_bytes, name=place, image_extensions=extensions)
        except AnnotationError as error:
            raise StorageError(error.text()) from None
        samples.save(Path(path), key=cache_key)

    on_threads(index, range(len(request["tars"])), min(settings.num_connections, _MAX_THREADS), progress)
    return {}


def verify(settings: StorageSettings, request: Mapping[str, Any], progress: ReportProgress) -> dict[str, Any]:
    """Compare all objects with the catalog in ``request["catalog"]``; the result is as of `wrong_images` by number."""
    catalog = Catalog.load(Path(request["catalog"]))
    store = open_store(settings)
    differing: dict[int, list[int]] = {}

    def compare(number: int) -> None:
        key = catalog.objects[number]
        read_at = _object_reader(store, key, f"{settings.url}/{printable(key)}", None)
        slots = wrong_images(catalog, number, read_at)
        if slots is not None:
            differing[number] = slots

    on_threads(compare, range(len(catalog.objects)), min(settings.num_connections, _MAX_THREADS), progress)
    return {"differing": {str(number): differing[number] for number in sorted(differing)}}


def _object_reader(store: Any, key: str, place: str, num_bytes: int | None) -> ReadAt:
    """Return a function that reads ranges of an object; the size is asked for if it is None."""
    obstore = require("obstore", "storage")

    try:
        size = obstore.head(store, key)["size"] if num_bytes is None else num_bytes
    except Exception as error:
        raise storage_error(error, place) from None

    def read_at(offset: int, length: int) -> bytes:
        # Stores refuse a range that begins at or after the end.
        length = min(length, size - offset)
        if length <= 0:
            return b""
        try:
            return bytes(obstore.get_range(store, key, start=offset, length=length))
        except Exception as error:
            raise storage_error(error, place) from None

    return read_at
