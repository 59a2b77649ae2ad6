"""A source of packed sets: shards with an index, or WebDataset tar files without one."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.cache import cache_file, cache_folder, cache_key, keep, load_unchanged
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name
from lit_loader.annotations.packing import PACKED_KEY
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.shard_records import table_of_samples
from lit_loader.datasets.format_source import FormatSource
from lit_loader.datasets.sources import Stage, StageTables, listed
from lit_loader.errors import AnnotationError, CacheError
from lit_loader.images import ImageReading
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import ImageStore, LocalImages, RemoteImages
from lit_loader.storage.jobs import run_job
from lit_loader.storage.mirror import Mirror, open_mirror
from lit_loader.storage.pack_target import CATALOG_FILE, set_file
from lit_loader.storage.settings import is_url, storage_settings
from lit_loader.storage.tar_samples import TarSamples, read_samples
from lit_loader.storage.verifying import file_reader

__all__ = ["PackedSource"]

_VERSION: Final = 1
"""Increased when the same shards give another table, so that tables cached before are ignored."""

_TAR_ENDING: Final = ".tar"


@dataclass(frozen=True, kw_only=True)
class PackedSource(FormatSource):
    """A packed set that ``lit-loader pack`` wrote, or WebDataset tar files, in a folder or in object storage.

    A packed set has the tables and the images that were packed: equal samples, batches and checkpoints. A stage is the
    name of a set, such as ``"train"``.

    Of other tar files, a stage is a pattern such as ``"train-*.tar"``. Their headers are read once, and again if size
    or time of a file changes. A sample is consecutive members with one name up to the first dot: an image, recognized
    by its extension (``IMAGE_EXTENSIONS``), and its annotation: a ``json`` with ``boxes`` and the other fields of
    `lit_loader.annotations.shard_records`, or a ``cls`` with the name or the number of a class. The classes of numbers
    are ``"0"`` to the largest one unless ``class_names`` names them. The sizes of images that only have a class are
    unknown. Masks are in the tables of packed sets alone.

    Args:
        root: Folder, or URL of a folder in a store, such as ``s3://bucket/set``.
        train: Set or pattern to train on, or None.
        val: The same for validation, or a list of several.
        test: The same for testing, or a list of several.
        **settings: The other arguments of `FormatSource`, apart from those of annotation files: ``format``,
            ``options``, ``stage_options``, ``policy`` and ``num_workers``.

    Raises:
        AnnotationError: A set does not exist, a tar file is damaged, or an annotation cannot be used.
        StorageError: The store cannot be reached or refuses a request.
    """

    format: str = field(default="packed", init=False)
    train: str | None = "train"
    val: str | Sequence[str] | None = "val"
    test: str | Sequence[str] | None = "test"
    options: Mapping[str, Any] = field(default_factory=dict, init=False)
    stage_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, init=False)
    policy: Mapping[str, Any] = field(default_factory=dict, init=False)
    num_workers: int | None = field(default=None, init=False)

    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read index files, or the headers of tar files, and split the tables as `FormatSource` does."""
        self.__dict__["_place"] = place = _Place(self, trust_cache=trust_cache)
        key, tables = super().read(trust_cache=trust_cache)
        catalog = place.catalog()
        # Equal catalogs share a store, so that data sets made from it stay valid.
        if "_store" not in self.__dict__ or self.__dict__["_store"].catalog.key != catalog.key:
            self.__dict__["_store"] = place.store(catalog)
        return [*key, catalog.key], tables

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return a reading of the images in the shards, with the settings of ``reading``."""
        if "_store" not in self.__dict__:
            self.reopen()
        place: _Place = self.__dict__["_place"]
        return StoredReading.extending(reading, {str(place.folder.root): self.__dict__["_store"]})

    def _read_list(self, folder: Folder, name: str, options: Mapping[str, Any]) -> AnnotationTable:
        place: _Place = self.__dict__["_place"]
        return place.table(name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_place", "_store")}


class _Place:
    """Folder or URL of a source, as it is at one time.

    Args:
        source: The settings.
        trust_cache: Do not list the store again.

    Attributes:
        folder: The folder, or the local folder of the URL with its index files.
    """

    def __init__(self, source: PackedSource, *, trust_cache: bool) -> None:
        self._source = source
        self._mirror: Mirror | None = None
        root = str(source.root)
        if is_url(root):
            settings = storage_settings(root, source.storage, cache_dir=source.cache_dir)
            self._mirror = open_mirror(
                settings, is_image=_is_placeholder, refresh=not trust_cache, progress=source.progress
            )
        self.folder = Folder(root if self._mirror is None else self._mirror.folder)
        self._cache = cache_folder(source.cache_dir)
        self._versions: dict[str, str] = {}
        if self._mirror is not None:
            listing = self._mirror.listing
            self._versions = dict(zip(listing.keys, listing.versions, strict=True))
        names = [name for stage in get_args(Stage) for name in listed(getattr(source, stage))]
        self._tars = list(dict.fromkeys(tar for name in names if _is_pattern(name) for tar in self._matches(name)))
        # Catalogs of the tar files of each pattern.
        self._tar_catalogs: dict[str, Catalog] = {}
        self._uses_index = not all(map(_is_pattern, names))
        if self._uses_index and self._tars:
            remedy = "give the sets of the index alone, or patterns alone"
            raise AnnotationError(f"stages {names} are sets and tar files", path=root, remedy=remedy)

    def table(self, name: str) -> AnnotationTable:
        """Return the table of a set or of a pattern."""
        return self._tar_table(name) if _is_pattern(name) else self._set_table(name)

    def catalog(self) -> Catalog:
        """Return the catalog of all images of the sets that were read."""
        root = str(self._source.root) if self._mirror is not None else str(self.folder.root)
        if not self._uses_index:
            return _joined(list(self._tar_catalogs.values()), root, self._tars, self._tar_versions())
        # After the tables: a catalog may only grow, so it has all images of a table that was read before.
        catalog = Catalog.load(self.folder.root / CATALOG_FILE)
        for key in catalog.objects:
            check_relative(key, source=self.folder.root / CATALOG_FILE)
        if self._mirror is not None:
            missing = [key for key in catalog.objects if key not in self._versions]
            if missing:
                names = shorten(", ".join(missing[:3]))
                raise AnnotationError(f"{len(missing)} shards are missing in the store: {names}", path=root)
        return replace(catalog, root=root, versions=[self._versions.get(key, "") for key in catalog.objects])

    def store(self, catalog: Catalog) -> ImageStore:
        """Return the store of the images."""
        return LocalImages(catalog) if self._mirror is None else RemoteImages(catalog, self._mirror.settings)

    # -- sets with an index ---------------------------------------------------------------------------------------

    def _set_table(self, name: str) -> AnnotationTable:
        file = set_file(check_relative(name))
        if not self.folder.is_file(file):
            raise self._missing(name)
        class_names = None if self._source.class_names is None else list(self._source.class_names)
        settings: dict[str, Any] = {"name": name, "class_names": class_names}
        key, request = self._keys(settings, [file], [*self.folder.stamp(file)])
        root = self.folder.root
        table = load_unchanged(folder=self._cache, key=key, request=request, root=root)
        if table is not None:
            return table
        try:
            table = AnnotationTable.load(root / file, key=PACKED_KEY)
        except CacheError as error:
            remedy = "copy it again, or pack the set with this version"
            raise AnnotationError(error.problem, path=root / file, remedy=remedy) from None
        if class_names is not None:
            table = _with_class_names(table, class_names, root / file)
        # The table in the cache has the folder as its root, so that it can be pickled as the name of its file.
        return keep(replace(table, root=root), folder=self._cache, key=key, request=request)

    def _missing(self, name: str) -> AnnotationError:
        sets = [file.removesuffix(set_file("")) for file in self.folder.files(".") if file.endswith(set_file(""))]
        sets = [existing for existing in sorted(sets) if set_file(existing) != CATALOG_FILE]
        stages = [stage for stage in get_args(Stage) if name in listed(getattr(self._source, stage))]
        if sets:
            problem = f"there is no packed set {name!r}; the sets are {shorten(', '.join(sets))}"
            return AnnotationError(problem, path=str(self._source.root), settings={stages[0]: None})
        problem = f"there is no packed set {name!r}, because there is no index of a packed set"
        remedy = "give a pattern of tar files such as 'train-*.tar', or pack the set with lit-loader pack"
        return AnnotationError(problem, path=str(self._source.root), remedy=remedy)

    # -- tar files without an index -------------------------------------------------------------------------------

    def _matches(self, pattern: str) -> list[str]:
        """Return the names of the tar files that fit a pattern, sorted."""
        parent, name = posixpath.split(check_relative(pattern))
        files = self.folder.files(parent or ".")
        matches = [posixpath.join(parent, file) for file in files if fnmatchcase(file, name)]
        if not matches:
            tars = shorten(", ".join(sorted(file for file in files if file.endswith(_TAR_ENDING))[:20])) or "none"
            raise AnnotationError(f"no tar file fits {pattern!r}; there are {tars}", path=str(self._source.root))
        return sorted(matches)

    def _tar_versions(self) -> list[str]:
        return [self._versions.get(tar, "") for tar in self._tars]

    def _tar_table(self, pattern: str) -> AnnotationTable:
        tars = self._matches(pattern)
        root = self.folder.root
        stamps = [number for tar in tars for number in self.folder.stamp(tar)]
        versions = [self._versions.get(tar, "") for tar in tars]
        class_names = None if self._source.class_names is None else list(self._source.class_names)
        settings = {"versions": versions, "class_names": class_names}
        samples_key, _ = self._keys({"versions": versions}, tars, stamps)
        samples = self._samples(tars, samples_key)
        paths = _image_paths(tars, samples)
        key, request = self._keys(settings, tars, stamps)
        table = load_unchanged(folder=self._cache, key=key, request=request, root=root)
        if table is None:
            table, paths = table_of_samples(self.folder, pattern, samples, paths, class_names=class_names)
            # Paths in annotations become those of the images, and the catalog must have the same.
            shards = np.array([self._tars.index(tar) for tar in tars], np.int32)[samples.object_of]
            by_path = dict(zip(paths, shards.tolist(), strict=True))
            numbers = np.array([by_path[path] for path in table.image_paths], np.int32)
            table = keep(replace(table, shards=numbers), folder=self._cache, key=key, request=request)
        return table

    def _samples(self, tars: Sequence[str], key: str) -> TarSamples:
        """Return the samples of tar files, from the cache if possible."""
        path = cache_file(self._cache, key)
        try:
            return TarSamples.load(path, key=key)
        except CacheError:
            # Missing, or damaged and then replaced.
            pass
        extensions = [extension.removeprefix(".") for extension in IMAGE_EXTENSIONS]
        if self._mirror is None:
            return self._read_local(tars, path, key, frozenset(extensions))
        row_by_key = {name: row for row, name in enumerate(self._mirror.listing.keys)}
        request = {"listing": str(self._mirror.folder.parent / "listing.arrow"), "image_extensions": extensions}
        request |= {"rows": [row_by_key[tar] for tar in tars], "path": str(path), "key": key}
        run_job("tar_samples", self._mirror.settings, request, progress=self._source.progress)
        return TarSamples.load(path, key=key)
