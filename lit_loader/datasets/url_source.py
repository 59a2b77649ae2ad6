"""Base class of sources whose root is a folder, or the URL of a store."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.formats.folder import is_image_name
from lit_loader.datasets.sources import FileSource, StageTables
from lit_loader.images import ImageReading
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.images import RemoteImages
from lit_loader.storage.mirror import Mirror, open_mirror
from lit_loader.storage.settings import is_public_option, remote_settings

__all__ = ["UrlSource"]

_MAX_AGE_S: Final = 600.0


class UrlSource(FileSource):
    """A source that reads a folder, or for the URL of a store the mirror of that URL.

    Owns: the store of the images of a URL.

    Attributes:
        root: The folder or URL.
        storage: Settings of the store, see `StorageSettings`; empty for a folder.
        cache_dir: Folder with the mirror and the cached images of a URL, or None for the user's cache folder.
        progress: Whether to show progress bars.
    """

    root: str | Path
    storage: Mapping[str, Any]
    cache_dir: str | None
    progress: bool

    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read the files of the folder or the mirror; see `FileSource.read`.

        Args:
            trust_cache: Open cached tables, and for a URL its mirror, without checking for changes.

        Raises:
            StorageError: The store cannot be read.
        """
        mirror = self.open_mirror(refresh=not trust_cache)
        if mirror is None:
            return self.read_folder(Path(self.root), trust_cache=trust_cache)
        with mirror.named_in_errors():
            key, tables = self.read_folder(mirror.folder, trust_cache=trust_cache)
        # Images may change although annotations do not.
        return (key, mirror.catalog.key), tables

    @abstractmethod
    def read_folder(self, folder: Path, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read all files of a folder; see `FileSource.read`."""

    def check_root(self) -> None:
        """Check ``root`` and ``storage``.

        Raises:
            SettingError: The URL or an option cannot be used, or a folder has options.
        """
        remote_settings(str(self.root), self.storage, cache_dir=self.cache_dir)

    def is_object(self, name: str) -> bool:
        """Return True if a file of this name stays in the store; other files are downloaded."""
        return is_image_name(name)

    def open_mirror(self, *, refresh: bool) -> Mirror | None:
        """Return the mirror of a URL, or None for a folder.

        Args:
            refresh: List the store again, unless this source has listed it in the last ten minutes.
        """
        settings = remote_settings(str(self.root), self.storage, cache_dir=self.cache_dir)
        if settings is None:
            return None
        mirror: Mirror | None = self.__dict__.get("_mirror")
        # A run prepares its data for every stage, and listing a million objects takes a minute.
        is_recent = time.monotonic() - self.__dict__.get("_time_listed", -math.inf) < _MAX_AGE_S
        if mirror is None or (refresh and not is_recent):
            # An `AutoSource` may have listed a folder around this one. Every process opens the same mirror.
            url = self.__dict__.get("_listed_url", settings.url)
            listed_settings = replace(settings, url=url)
            mirror = open_mirror(listed_settings, is_image=self.is_object, refresh=refresh, progress=self.progress)
            mirror = mirror.below(settings.url.removeprefix(url).strip("/") or ".")
            self.use_mirror(mirror, time.monotonic() if refresh else -math.inf)
        return mirror

    def use_mirror(self, mirror: Mirror, time_listed: float) -> None:
        """Use a mirror that was opened by another source.

        Args:
            mirror: The mirror of this source's URL, which may be a part of another one.
            time_listed: Time of its listing by ``time.monotonic``.
        """
        # Subclasses may be frozen dataclasses.
        self.__dict__.update(_mirror=mirror, _time_listed=time_listed, _listed_url=mirror.listed_url)

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return a reading that reads the images of a URL from its store, or ``reading`` for a folder."""
        mirror = self.open_mirror(refresh=False)
        if mirror is None:
            return reading
        store: RemoteImages | None = self.__dict__.get("_store")
        # A store with the same objects stays connected.
        if store is None or store.catalog.key != mirror.catalog.key:
            self.__dict__["_store"] = store = RemoteImages(mirror.catalog, mirror.settings)
        return StoredReading.extending(reading, {str(mirror.folder): store})

    def __getstate__(self) -> dict[str, Any]:
        # A pickle may be stored. Processes that load one take credentials from the environment.
        public = {name: value for name, value in self.storage.items() if is_public_option(str(name))}
        state = super().__getstate__() | {"storage": public}
        return {name: value for name, value in state.items() if name not in ("_mirror", "_time_listed", "_store")}
