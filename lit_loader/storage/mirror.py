"""Local folder for the URL of a data set: annotation files, and placeholders of its images.

NOTE [Mirror]
    ``CACHE_DIR/mirrors/HASH`` holds ``files``, the folder that readers get as root, ``listing.arrow``, the objects that
    it shows, and ``headers``, one byte for each object: 1 if its file begins with the bytes of the object. Files that
    are not images are downloaded whole. Images are sparse files with size and time of the object, so that listings,
    stamps and cached tables work as in any folder. `fill_headers` fetches the headers of those whose size is needed.
    Pixels are never read from here: sources of URLs return a reading that asks the image store.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import CacheError, LitLoaderError, SettingError, StorageError
from lit_loader.foundation.byte_sizes import byte_count, byte_words
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import cache_folder, file_lock, new_file
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.jobs import run_job
from lit_loader.storage.listing import Listing
from lit_loader.storage.settings import StorageSettings
from lit_loader.types import IndexArray

__all__ = ["Mirror", "fill_headers", "is_mirrored", "open_mirror"]

_logger = logging.getLogger(__name__)

_States = npt.NDArray[np.uint8]

# Files that often are next to a data set, and that readers of annotations never open; they also become placeholders.
_NOT_READ: Final = (
    *(".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".mp4", ".avi", ".mov", ".mkv", ".webm"),
    *(".npy", ".npz", ".pt", ".pth", ".ckpt", ".onnx", ".safetensors", ".h5", ".hdf5", ".parquet", ".tfrecord"),
)
_PLACE_OPTIONS: Final = ("endpoint", "account_name", "base_url")
_MAX_NAMES: Final = 3

# Mirrors that this process has opened, by folder: fetching a header needs their credentials.
_open_mirrors: dict[str, Mirror] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Mirror:
    """Local folder for a URL; see NOTE [Mirror].

    Args:
        settings: Settings of the store.
        folder: The folder that readers get as root.
        listing: Objects of the store.
        is_image: bool ``(num_objects,)``, True for images.
        listing_stamp: Inode and time of the file of the listing.
    """

    settings: StorageSettings
    folder: Path
    listing: Listing
    is_image: npt.NDArray[np.bool_]
    listing_stamp: tuple[int, int]

    @cached_property
    def image_rows(self) -> IndexArray:
        """Row of each image in the listing, int64 ``(num_images,)``."""
        return np.flatnonzero(self.is_image)

    @cached_property
    def catalog(self) -> Catalog:
        """Catalog of the images."""
        images = self.listing.select(self.image_rows)
        return Catalog(
            root=self.settings.url,
            objects=images.keys,
            versions=images.versions,
            object_of=np.arange(len(images), dtype=np.int32),
            starts=np.zeros(len(images), dtype=np.int64),
            lengths=images.sizes,
            path_hashes=Catalog.hash_paths(images.keys),
        )

    def below(self, folder: str) -> Mirror:
        """Return the mirror of a folder in this one.

        Args:
            folder: Path relative to this mirror; ``"."`` for the whole mirror.
        """
        if folder == ".":
            return self
        prefix = f"{folder}/"
        rows = np.array([row for row, key in enumerate(self.listing.keys) if key.startswith(prefix)], dtype=np.int64)
        listing = self.listing.select(rows)
        return replace(
            self,
            settings=replace(self.settings, url=f"{self.settings.url}/{folder}"),
            folder=self.folder / folder,
            listing=replace(listing, keys=[key.removeprefix(prefix) for key in listing.keys]),
            is_image=self.is_image[rows],
        )

    def shown(self, path: Path | str) -> str:
        """Return a text in which the URL replaces the path of the folder."""
        return str(path).replace(str(self.folder), self.settings.url)

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Name the URL instead of the folder in errors of the block."""
        try:
            yield
        except LitLoaderError as error:
            error.problem = self.shown(error.problem)
            error.remedy = self.shown(error.remedy)
            if getattr(error, "path", None) is not None:
                error.path = self.shown(error.path)  # type: ignore[attr-defined] # an AnnotationError
            error.args = (error.text(),)
            raise


def open_mirror(settings: StorageSettings, *, is_image: Callable[[str], bool], refresh: bool, progress: bool) -> Mirror:
    """Return the mirror of a URL; create it if there is none.

    Of several processes of a host one lists the store, while the others wait and use its listing.

    Args:
        settings: Settings of the store.
        is_image: Returns True for the name of an image file; other files are downloaded.
        refresh: List the store, and update what has changed there. Otherwise open an existing mirror unchanged.
        progress: Whether to draw progress bars on a terminal.

    Raises:
        StorageError: If the store cannot be read, or holds nothing under the URL.
        SettingError: If an option is unknown, or files that are not images exceed ``annotation_budget``.

    Warns:
        UserWarning: If keys in the store are not paths of files, which leaves out their objects.
    """
    for parent in list(_open_mirrors.values()):
        folder = settings.url.removeprefix(f"{parent.settings.url}/")
        if folder != settings.url and _name(replace(settings, url=parent.settings.url)) == _name(parent.settings):
            return open_mirror(parent.settings, is_image=is_image, refresh=refresh, progress=progress).below(folder)
    # Resolved, as readers resolve their root.
    place = cache_folder(settings.cache_dir).resolve() / "mirrors" / _name(settings)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    start = time.time_ns()
    on_wait = partial(_logger.info, "waiting for another process to list %s", settings.url)
    with file_lock(place / "lock", on_wait=on_wait):
        listing_path = place / "listing.arrow"
        time_listed = listing_path.stat().st_mtime_ns if listing_path.exists() else 0
        if time_listed == 0 or (refresh and time_listed < start):
            _refresh(settings, place, is_image, progress)
        listing = Listing.load(listing_path)
        stamp = _stamp(listing_path)
    mirror = Mirror(
        settings=settings,
        folder=place / "files",
        listing=listing,
        is_image=_mask(listing, is_image),
        listing_stamp=stamp,
    )
    _open_mirrors[str(mirror.folder)] = mirror
    return mirror


def is_mirrored(root: Path | str) -> bool:
    """Return True if a folder is in a mirror that this process has opened."""
    return any(f"{root}/".startswith(f"{folder}/") for folder in _open_mirrors)


def fill_headers(root: Path | str, paths: Sequence[str], *, progress: bool) -> None:
    """Fetch the headers of images whose files are placeholders of a mirror; other files are left alone.

    Args:
        root: Folder that the paths are relative to.
        paths: Paths of image files.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        StorageError: If an object cannot be read.
    """
    for folder, mirror in list(_open_mirrors.items()):
        prefix = f"{folder}/"
        # A path may be absolute.
        files = (os.path.join(root, path) for path in paths)  # noqa: PTH118 # a Path for each would take longer
        keys = [file.removeprefix(prefix) for file in files if file.startswith(prefix)]
        if keys:
            slots = mirror.catalog.slots(keys)
            _fill(mirror, mirror.image_rows[np.unique(slots[slots >= 0])], progress)


def _fill(mirror: Mirror, rows: IndexArray, progress: bool) -> None:
    place = mirror.folder.parent
    states = _states(place, len(mirror.listing))
    if states[rows].all():
        return
    with file_lock(place / "lock"):
        # Another process may have fetched them, or listed the store again.
        is_current = _stamp(place / "listing.arrow") == mirror.listing_stamp
        states = _states(place, len(mirror.listing))
        rows = rows[states[rows] == 0] if is_current else rows
        _fetch("headers", mirror.settings, place, mirror.listing.select(rows), progress)
        if is_current:
            states[rows] = 1
            _write_states(place, states)


# -- refreshing ---------------------------------------------------------------------------------------------------


def _refresh(settings: StorageSettings, place: Path, is_image: Callable[[str], bool], progress: bool) -> None:
    """List the store, and update the files of a mirror; the caller holds its lock."""
    with _temporary_file(place) as path:
        run_job("list", settings, {"path": str(path)}, progress=progress)
        listing = Listing.load(path).usable(settings.url)
    if not len(listing):
        raise StorageError(f"{settings.url} holds no objects", remedy="check the bucket and the folder in the URL")
    # All objects are listed, because sources of shards and of single images may share a mirror.
    stays = _mask(listing, lambda key: is_image(key) or key.lower().endswith(_NOT_READ))
    _check_budget(settings, listing.select(np.flatnonzero(~stays)))
    unchanged, states = _unchanged_rows(place, listing)
    # From here to the end the files fit neither listing. After an interruption, the next refresh updates all of them.
    for name in ("listing.arrow", "headers"):
        (place / name).unlink(missing_ok=True)
    changed_files = np.flatnonzero(~unchanged & ~stays)
    if len(changed_files):
        _fetch("download", settings, place, listing.select(changed_files), progress)
    states[changed_files] = 1
    _create_placeholders(place / "files", listing.select(np.flatnonzero(~unchanged & stays)))
    listing.save(place / "listing.arrow")
    _write_states(place, states)


def _unchanged_rows(place: Path, listing: Listing) -> tuple[npt.NDArray[np.bool_], _States]:
    """Remove files that the listing does not have; return the rows whose files need no update, and their states."""
    unchanged = np.zeros(len(listing), dtype=np.bool_)
    states = np.zeros(len(listing), dtype=np.uint8)
    files = place / "files"
    files.mkdir(exist_ok=True, mode=0o700)
    old_rows: dict[str, int] = {}
    with suppress(CacheError):
        old_listing = Listing.load(place / "listing.arrow")
        old_states = _states(place, len(old_listing))
        old_rows = {key: row for row, key in enumerate(old_listing.keys)}
    row_by_key = {key: row for row, key in enumerate(listing.keys)}
    # The folder is the truth: an update may have been broken off.
    for key, size, mtime in list(_files(str(files))):
        row = row_by_key.get(key)
        if row is None:
            _remove(files, key)
            continue
        old_row = old_rows.get(key)
        is_same_file = (size, mtime) == (listing.sizes[row], listing.times[row])
        if is_same_file and old_row is not None and old_listing.versions[old_row] == listing.versions[row]:
            unchanged[row] = True
            states[row] = old_states[old_row]
    return unchanged, states


def _remove(files: Path, key: str) -> None:
    """Remove a file, and the folders that are empty then."""
    path = files / key
    path.unlink()
    with suppress(OSError):
        for parent in path.relative_to(files).parents:
            if str(parent) != ".":
                (files / parent).rmdir()


def _files(root: str, folder: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time (ns) of all files below a folder."""
    with os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(root, f"{folder}{entry.name}/")
            else:
                state = entry.stat(follow_symlinks=False)
                yield f"{folder}{entry.name}", state.st_size, state.st_mtime_ns


def _create_placeholders(files: Path, images: Listing) -> None:
    folders: set[str] = set()
    sizes = images.sizes.tolist()
    times = images.times.tolist()
    for key, size, mtime in zip(images.keys, sizes, times, strict=True):
        path = f"{files}/{key}"
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders.add(folder)
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not written in place, because another run may be reading the header of the old object.
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 # a Path for each would take longer
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, size)
            os.utime(descriptor, ns=(mtime, mtime))
        finally:
            os.close(descriptor)


def _check_budget(settings: StorageSettings, files: Listing) -> None:
    """Raise SettingError if files are too large to be downloaded."""
    num_bytes = int(files.sizes.sum())
    budget = byte_count(settings.annotation_budget, argument="storage.annotation_budget")
    assert budget is not None
    if num_bytes <= budget:
        return
    largest = np.argsort(-files.sizes, kind="stable")[:_MAX_NAMES].tolist()
    names = ", ".join(f"{printable(files.keys[row])} ({byte_words(int(files.sizes[row]))})" for row in largest)
    total = f"{byte_words(num_bytes)} of {len(files)} files that are not images"
    rule = f"is less than the {total} in {settings.url}, such as {names}"
    raise SettingError(
        "storage.annotation_budget",
        settings.annotation_budget,
        rule,
        "give the URL of a folder without them",
        settings={"storage.annotation_budget": byte_words(num_bytes + num_bytes // 4)},
    )


def _fetch(job: str, settings: StorageSettings, place: Path, objects: Listing, progress: bool) -> None:
    """Run a job that writes objects to the files of a mirror."""
    with _temporary_file(place) as path:
        objects.save(path)
        request: dict[str, Any] = {"listing": str(path), "folder": str(place / "files")}
        run_job(job, settings, request, progress=progress)


@contextmanager
def _temporary_file(place: Path) -> Iterator[Path]:
    path = place / f".{token_hex(8)}.arrow"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _mask(listing: Listing, is_image: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    return np.fromiter(map(is_image, listing.keys), dtype=np.bool_, count=len(listing))


def _states(place: Path, num_objects: int) -> _States:
    """Return the states of the files; all 0 if they are missing or of another listing."""
    with suppress(FileNotFoundError):
        states = np.frombuffer((place / "headers").read_bytes(), dtype=np.uint8)
        if len(states) == num_objects:
            return states.copy()
    return np.zeros(num_objects, dtype=np.uint8)


def _write_states(place: Path, states: _States) -> None:
    with new_file(place / "headers") as file:
        file.write(states.tobytes())


def _stamp(path: Path) -> tuple[int, int]:
    try:
        state = path.stat()
    # An update was broken off.
    except FileNotFoundError:
        return 0, 0
    return state.st_ino, state.st_mtime_ns


def _name(settings: StorageSettings) -> str:
    """Return the name of a mirror's folder: a hash of the URL and the store's address."""
    place = [settings.url, *(f"{name}={settings.options.get(name, '')}" for name in _PLACE_OPTIONS)]
    return blake2b("\0".join(place).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
