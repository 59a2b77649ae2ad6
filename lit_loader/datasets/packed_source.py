"""A source of packed sets: shards with an index, or WebDataset tar files without one."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.cache import cache_file, cache_key, keep, load_unchanged
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name, join_path
from lit_loader.annotations.packing.index import load_catalog, load_table
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.shard_records import table_of_samples
from lit_loader.datasets.format_source import FormatSource
from lit_loader.datasets.sources import Stage, StageTables, listed
from lit_loader.errors import AnnotationError, CacheError
from lit_loader.foundation.files import cache_folder
from lit_loader.images import ImageReading
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import ImageStore, LocalImages, RemoteImages
from lit_loader.storage.jobs import run_job
from lit_loader.storage.mirror import Mirror
from lit_loader.storage.pack_target import CATALOG_FILE, set_file
from lit_loader.storage.tar_index import open_tar
from lit_loader.storage.tar_samples import TarSamples, read_samples

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
        **settings: The other arguments of `FormatSource`, without ``format``, ``options``, ``stage_options``,
            ``policy`` and ``num_workers``, which are for annotation files.

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

    def is_object(self, name: str) -> bool:
        """Return True for tar files and images, which stay in a store."""
        return name.endswith(_TAR_ENDING) or is_image_name(name)

    def read_folder(self, folder: Path, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read index files, or the headers of tar files, and split the tables as `FormatSource` does."""
        place = _Place(self, Folder(folder), self.__dict__.get("_mirror"))
        self.__dict__["_place"] = place
        key, tables = super().read_folder(folder, trust_cache=trust_cache)
        return [*key, place.catalog.key], tables

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return a reading of the images in the shards, with the settings of ``reading``."""
        if "_place" not in self.__dict__:
            self.reopen()
        place: _Place = self.__dict__["_place"]
        store: ImageStore | None = self.__dict__.get("_store")
        # A store with the same images stays connected.
        if store is None or store.catalog.key != place.catalog.key:
            self.__dict__["_store"] = store = place.open_store()
        return StoredReading.extending(reading, {str(place.folder.root): store})

    def _read_list(self, folder: Folder, name: str, options: Mapping[str, Any]) -> AnnotationTable:
        place: _Place = self.__dict__["_place"]
        return place.table(name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_place"}


class _Place:
    """Snapshot of a source: the folder, its sets or tar files, and the catalog of their images.

    Args:
        source: The settings.
        folder: The folder, or the mirror of the URL with its index files.
        mirror: The mirror, or None for a folder of this host.
    """

    def __init__(self, source: PackedSource, folder: Folder, mirror: Mirror | None) -> None:
        self.folder = folder
        self._source = source
        self._mirror = mirror
        self._cache = cache_folder(source.cache_dir)
        self._class_names = None if source.class_names is None else list(source.class_names)
        self._versions: dict[str, str] = {}
        if mirror is not None:
            self._versions = dict(zip(mirror.listing.keys, mirror.listing.versions, strict=True))
        names = [name for stage in get_args(Stage) for name in listed(getattr(source, stage))]
        patterns = [name for name in names if _is_pattern(name)]
        if patterns and len(patterns) < len(names):
            message = f"the stages {names} are sets and tar files; give names of sets alone, or patterns alone"
            raise AnnotationError(message, path=str(source.root))
        self._has_index = not patterns
        # Their positions are the numbers of shards in all tables.
        self._tars = list(dict.fromkeys(tar for pattern in patterns for tar in self._matches(pattern)))

    def table(self, name: str) -> AnnotationTable:
        """Return the table of a set or of a pattern."""
        return self._set_table(name) if self._has_index else self._tar_table(name)

    @cached_property
    def catalog(self) -> Catalog:
        """Catalog of all images; in a packed set to be read after the tables, because it may grow meanwhile."""
        root = str(self.folder.root) if self._mirror is None else self._mirror.settings.url
        if not self._has_index:
            return self._tar_catalog(root)
        path = self.folder.root / CATALOG_FILE
        catalog = load_catalog(path)
        for key in catalog.objects:
            check_relative(key, source=path)
        missing = [key for key in catalog.objects if self._mirror is not None and key not in self._versions]
        if missing:
            message = f"{len(missing)} shards of the catalog are missing, such as {missing[0]!r}"
            raise AnnotationError(message, path=str(self._source.root), remedy="copy them again")
        self._check_ranges(catalog)
        return replace(catalog, root=root, versions=[self._versions.get(key, "") for key in catalog.objects])

    def _check_ranges(self, catalog: Catalog) -> None:
        """Raise AnnotationError if a shard is missing, or ends before one of its images."""
        sizes = np.array([self.folder.stamp(key)[0] for key in catalog.objects], np.int64)
        # The sum of a start and a length could overflow.
        rows = np.flatnonzero(catalog.lengths > sizes[catalog.object_of] - catalog.starts)
        if len(rows):
            name = catalog.objects[catalog.object_of[rows[0]]]
            message = f"{len(rows)} images end after their shards, such as one of {shorten(name)!r}"
            raise AnnotationError(message, path=str(self._source.root), remedy="copy the index and the shards again")

    def open_store(self) -> ImageStore:
        """Return a store of the images."""
        return LocalImages(self.catalog) if self._mirror is None else RemoteImages(self.catalog, self._mirror.settings)

    # -- sets with an index ---------------------------------------------------------------------------------------

    def _set_table(self, name: str) -> AnnotationTable:
        file = set_file(check_relative(name))
        if not self.folder.is_file(file):
            raise self._missing(name)
        return self._cached({"name": name}, [file], lambda: self._load_set(self.folder.root / file))

    def _load_set(self, path: Path) -> AnnotationTable:
        # Tables in the cache have the folder as their root, so that they can be pickled as the name of a file.
        table = replace(load_table(path), root=self.folder.root)
        if self._class_names is None:
            return table
        unknown = sorted(set(table.class_names) - set(self._class_names))
        if unknown:
            message = f"objects have the classes {unknown}, which class_names lacks; add them"
            raise AnnotationError(message, path=path)
        return table.with_class_names(self._class_names)

    def _missing(self, name: str) -> AnnotationError:
        ending = set_file("")
        files = [file for file in self.folder.files(".") if file.endswith(ending) and file != CATALOG_FILE]
        root = str(self._source.root)
        if not files:
            remedy = "pack it with lit-loader pack, or give a pattern of tar files, such as train='train-*.tar'"
            return AnnotationError(
                f"expected a packed set with {CATALOG_FILE}, found no index", path=root, remedy=remedy
            )
        sets = shorten(", ".join(file.removesuffix(ending) for file in sorted(files)))
        stage = next(stage for stage in get_args(Stage) if name in listed(getattr(self._source, stage)))
        message = f"the set {name!r} of {stage} does not exist; the sets are {sets}"
        return AnnotationError(message, path=root, remedy="give one of them", settings={stage: None})

    # -- tar files without an index -------------------------------------------------------------------------------

    def _matches(self, pattern: str) -> list[str]:
        """Return the names of the tar files that fit a pattern, sorted."""
        parent, name = posixpath.split(check_relative(pattern))
        files = self.folder.files(parent or ".")
        matches = [posixpath.join(parent, file) for file in files if fnmatchcase(file, name)]
        if not matches:
            tars = shorten(", ".join(sorted(file for file in files if file.endswith(_TAR_ENDING)))) or "none"
            message = f"no tar file fits {pattern!r}; the tar files there are: {tars}"
            remedy = "write numbers as * or [0-9], such as 'train-*.tar', instead of {0..9}" if "{" in name else ""
            raise AnnotationError(message, path=str(self._source.root), remedy=remedy)
        return sorted(matches)

    def _tar_table(self, pattern: str) -> AnnotationTable:
        tars = self._matches(pattern)

        def build() -> AnnotationTable:
            samples = self._samples(tars, with_annotations=True)
            paths = _image_paths(tars, samples)
            table = table_of_samples(self.folder, pattern, samples, paths, class_names=self._class_names)
            # All images stay in the table, in the order of the samples.
            numbers = np.array([self._tars.index(tar) for tar in tars], np.int32)
            return replace(table, shards=numbers[samples.object_of])

        return self._cached({"tars": tars, "all": self._tars}, tars, build)

    def _tar_catalog(self, root: str) -> Catalog:
        samples = self._samples(self._tars, with_annotations=False)
        return Catalog(
            root=root,
            objects=self._tars,
            versions=[self._versions.get(tar, "") for tar in self._tars],
            object_of=samples.object_of,
            starts=samples.starts,
            lengths=samples.lengths,
            path_hashes=Catalog.hash_paths(_image_paths(self._tars, samples)),
        )

    def _samples(self, tars: Sequence[str], *, with_annotations: bool) -> TarSamples:
        """Return the samples of tar files, whose headers are read if they have changed."""
        keys = {tar: self._keys({"samples": tar}, [tar])[0] for tar in tars}
        load = partial(self._load_samples, with_annotations=with_annotations)
        parts: dict[str, TarSamples] = {}
        for tar, key in keys.items():
            with suppress(CacheError):  # missing or damaged
                parts[tar] = load(key)
        missing = [tar for tar in tars if tar not in parts]
        if missing:
            self._index(missing, keys)
        return TarSamples.joined([parts[tar] if tar in parts else load(keys[tar]) for tar in tars])

    def _load_samples(self, key: str, *, with_annotations: bool) -> TarSamples:
        return TarSamples.load(cache_file(self._cache, key), key=key, with_annotations=with_annotations)

    def _index(self, tars: Sequence[str], keys: Mapping[str, str]) -> None:
        """Read the headers of tar files, and store their samples in the cache."""
        extensions = [extension.removeprefix(".") for extension in IMAGE_EXTENSIONS]
        files = [(tar, str(cache_file(self._cache, keys[tar])), keys[tar]) for tar in tars]
        if self._mirror is not None:
            rows = {key: row for row, key in enumerate(self._mirror.listing.keys)}
            request = {"tars": [(rows[tar], path, key) for tar, path, key in files], "image_extensions": extensions}
            request["listing"] = str(self._mirror.folder.parent / "listing.arrow")
            run_job("tar_samples", self._mirror.settings, request, progress=self._source.progress)
            return
        for tar, path, key in files:
            file = self.folder.root / tar
            with open_tar(file) as (read_at, num_bytes):
                samples = read_samples(read_at, num_bytes, name=str(file), image_extensions=frozenset(extensions))
            samples.save(Path(path), key=key)

    # -- the cache ------------------------------------------------------------------------------------------------

    def _keys(self, settings: Mapping[str, Any], files: Sequence[str]) -> tuple[str, str]:
        """Return the cache key of data read from files in their present state, and the key of the request for them."""
        versions = [self._versions.get(file, "") for file in files]
        stamps = [number for file in files for number in self.folder.stamp(file)]
        make_key = partial(cache_key, reader="packed", version=_VERSION, root=self.folder.root)
        request = {**settings, "class_names": self._class_names}
        key = make_key(settings=request | {"versions": versions}, files=files, stamps=stamps)
        return key, make_key(settings=request | {"files": list(files)})

    def _cached(
        self, settings: Mapping[str, Any], files: Sequence[str], build: Callable[[], AnnotationTable]
    ) -> AnnotationTable:
        """Return a table from the cache, or build it and store it there."""
        key, request = self._keys(settings, files)
        table = load_unchanged(folder=self._cache, key=key, request=request, root=self.folder.root)
        return keep(build(), folder=self._cache, key=key, request=request) if table is None else table


def _is_pattern(name: str) -> bool:
    return name.endswith(_TAR_ENDING)


def _image_paths(tars: Sequence[str], samples: TarSamples) -> list[str]:
    """Return the path of each image: its tar file without extension, and its name in there.

    Raises:
        UnsafePathError: If a name leads out of the tar file.
        AnnotationError: If a name occurs twice.
    """
    folders = [tar.removesuffix(_TAR_ENDING) for tar in tars]
    pairs = zip(samples.object_of.tolist(), samples.names, strict=True)
    paths = [join_path(folders[number], name, source=tars[number]) for number, name in pairs]
    if len(set(paths)) < len(paths):
        path, _ = Counter(paths).most_common(1)[0]
        number = paths.index(path)
        message = f"the tar file has an image {shorten(path)!r} twice"
        raise AnnotationError(message, path=tars[samples.object_of[number]], remedy="rename one of them")
    return paths
