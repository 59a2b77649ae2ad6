"""Targets of packing: a folder of this host, or the URL of a store."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from lit_loader.foundation.files import cache_folder
from lit_loader.foundation.host import count_cores
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.jobs import run_job
from lit_loader.storage.listing import Listing
from lit_loader.storage.settings import StorageSettings
from lit_loader.storage.tar_index import open_tar
from lit_loader.storage.verifying import wrong_images

__all__ = ["CATALOG_FILE", "FolderTarget", "PackTarget", "StoreTarget", "set_file"]

CATALOG_FILE: Final = "catalog.arrow"
"""Name of the catalog of a packed set."""


def set_file(name: str) -> str:
    """Return the name of the file with the table of a set."""
    return f"{name}.arrow"


class PackTarget(ABC):
    """Place that a packed set is written to.

    Attributes:
        place: The folder or URL, for messages.
        work: Folder on this host for files that are not complete, and for the journal.
    """

    place: str
    work: Path

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each file of the set, by its name relative to the target."""

    @abstractmethod
    def put(self, names: Sequence[str]) -> None:
        """Move files from ``work`` to the target, one after the other.

        Raises:
            OSError: If a file cannot be written.
        """

    @abstractmethod
    def fetched(self, name: str) -> AbstractContextManager[Path]:
        """Return a context with the path on this host of an index file of the target."""

    @abstractmethod
    def differing(self, catalog: Catalog, *, progress: bool) -> dict[int, list[int]]:
        """Read all objects of a catalog; return those that differ by number, with the slots of their images."""


class FolderTarget(PackTarget):
    """A folder of this host; files move there by renaming, so they are complete as soon as they appear."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.place = str(folder)
        self.work = self._folder / ".packing"

    def sizes(self) -> Mapping[str, int]:
        """Return the size of each shard and index file."""
        paths = [*self._folder.glob("*.arrow"), *self._folder.glob("shards/*.tar")]
        return {path.relative_to(self._folder).as_posix(): path.stat().st_size for path in paths}

    def put(self, names: Sequence[str]) -> None:
        """Rename files of ``work``, one after the other."""
        for name in names:
            path = self._folder / name
            path.parent.mkdir(exist_ok=True)
            # Written with permissions for the user alone; who may read the folder may read the set. A link in a folder
            # of somebody else must not lead to another file.
            descriptor = os.open(self.work / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            os.fchmod(descriptor, self._folder.stat().st_mode & 0o666)
            os.close(descriptor)
            (self.work / name).replace(path)

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Yield the path of a file in the folder."""
        yield self._folder / name

    def differing(self, catalog: Catalog, *, progress: bool) -> dict[int, list[int]]:
        """Read all shards on several threads, see `PackTarget.differing`."""

        def compare(number: int) -> list[int] | None:
            with open_tar(self._folder / catalog.objects[number]) as (read_at, _):
                return wrong_images(catalog, number, read_at)

        numbers = range(len(catalog.objects))
        with ThreadPoolExecutor(count_cores()) as pool:
            results = zip(numbers, pool.map(compare, numbers), strict=True)
            return {number: slots for number, slots in results if slots is not None}


class StoreTarget(PackTarget):
    """The URL of a store; files are written on this host first, and uploaded by jobs."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        # A store of files, unlike others, needs its folder.
        if settings.url.startswith("file:"):
            Path(url2pathname(urlsplit(settings.url).path)).mkdir(parents=True, exist_ok=True)
        self.place = settings.url
        key = hashlib.blake2b(settings.url.encode(), digest_size=16).hexdigest()
        self.work = cache_folder(settings.cache_dir) / "packing" / key
        self._listing: Listing | None = None

    def sizes(self) -> Mapping[str, int]:
        """List the store."""
        with self._temporary_folder() as folder:
            run_job("list", self._settings, {"path": str(folder / "listing.arrow")}, progress=False)
            self._listing = listing = Listing.load(folder / "listing.arrow").usable(self.place)
        return dict(zip(listing.keys, listing.sizes.tolist(), strict=True))

    def put(self, names: Sequence[str]) -> None:
        """Upload files of ``work``, one after the other, and delete them here."""
        files = [(str(self.work / name), name) for name in names]
        run_job("upload", self._settings, {"files": files}, progress=False)
        for path, _ in files:
            Path(path).unlink()

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Download a file of the listing of `sizes`, and delete it at the end; mapped data stay."""
        assert self._listing is not None
        row = self._listing.keys.index(name)
        with self._temporary_folder() as folder:
            path = folder / "listing.arrow"
            self._listing.select(np.array([row])).save(path)
            request = {"listing": str(path), "folder": str(folder / "files")}
            run_job("download", self._settings, request, progress=False)
            yield folder / "files" / name

    def differing(self, catalog: Catalog, *, progress: bool) -> dict[int, list[int]]:
        """Read all shards in a job, see `PackTarget.differing`."""
        with self._temporary_folder() as folder:
            catalog.save(folder / CATALOG_FILE)
            request = {"catalog": str(folder / CATALOG_FILE)}
            answer = run_job("verify", self._settings, request, progress=progress)
        return {int(number): slots for number, slots in answer["differing"].items()}

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        self.work.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryDirectory(dir=self.work) as folder:
            yield Path(folder)
