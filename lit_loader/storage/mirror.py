"""Local folder for the URL of a data set: annotation files, and placeholders of its images.

NOTE [Mirror]
    ``CACHE_DIR/mirrors/HASH`` holds ``files``, the folder that readers get as root, ``listing.arrow``, the objects that
    it shows, and ``headers``, one byte for each object: 0 for a placeholder, 1 if its file begins with the bytes of the
    object, 2 if it has all of them. Files that are not images are downloaded whole, first into the folder ``new``.
    Images are sparse files with size and time of the object, so that listings, stamps and cached tables work as in any
    folder. `fill_headers` fetches the headers of those whose size is needed. Pixels are never read from here: sources
    of URLs return a reading that asks the image store, and `ImageReading` refuses these files.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
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
from lit_loader.storage.mirror_files import compare_files, create_placeholders, remove_files
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
# Options and environment variables that lead to another store under the same URL. Names differ by prefix and ending.
_ADDRESS: Final = re.compile(
    "(?:aws_|google_|azure_storage_|azure_)?(endpoint|account_name|base_url|use_emulator|use_fabric_endpoint)(?:_url)?(_s3)?"
)
_ENVIRONMENT: Final = ("AWS_", "GOOGLE_", "AZURE_")
_MIRROR_PATH: Final = re.compile("/mirrors/[0-9a-f]{32}/files(?:/|$)")
_MAX_NAMES: Final = 3
_HEADER: Final = 1
_WHOLE: Final = 2

# Mirrors that this process has opened, by folder: fetching a header needs their credentials.
_open_mirrors: dict[str, Mirror] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Mirror:
    """Local folder for a URL; see NOTE [Mirror].

    Args:
        settings: Settings of the store.
        listed_url: The URL in ``settings``, or the URL of a folder around it that was listed instead.
        folder: The folder that readers get as root.
        listing: Objects of the store.
        is_image: bool ``(num_objects,)``, True for images.
        listing_stamp: Inode and time of the file of the listing.
    """

    settings: StorageSettings
    listed_url: str
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

        Raises:
            StorageError: If the folder has no objects.
        """
        if folder == ".":
            return self
        prefix = f"{folder}/"
        rows = np.array([row for row, key in enumerate(self.listing.keys) if key.startswith(prefix)], dtype=np.int64)
        listing = self.listing.select(rows)
        settings = replace(self.settings, url=f"{self.settings.url}/{folder}")
        if not len(listing):
            raise _no_objects(settings.url)
        return replace(
            self,
            settings=settings,
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
        StorageError: If the store cannot be read, or holds nothing under the URL, or has a key that obstore cannot
            list: with an empty part, a part ``.`` or ``..``, or a control character.
        SettingError: If an option is unknown, or files that are not images exceed ``annotation_budget``.

    Warns:
        UserWarning: If objects are left out, because their keys, sizes or times are not of files.
    """
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
        listed_url=settings.url,
        folder=place / "files",
        listing=listing,
        is_image=_mask(listing, is_image),
        listing_stamp=stamp,
    )
    _open_mirrors[str(mirror.folder)] = mirror
    return mirror


def is_mirrored(root: Path | str) -> bool:
    """Return True if a resolved path is a mirror's, also of another process, so its images may be placeholders."""
    return _MIRROR_PATH.search(str(root)) is not None


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
    # After the states: they may be of another listing with as many objects.
    if _stamp(place / "listing.arrow") == mirror.listing_stamp and states[rows].all():
        return
    with file_lock(place / "lock"):
        # Another process may have fetched them, or listed the store again.
        is_current = _stamp(place / "listing.arrow") == mirror.listing_stamp
        states = _states(place, len(mirror.listing))
        rows = rows[states[rows] == 0] if is_current else rows
        _fetch("headers", mirror.settings, place / "files", mirror.listing.select(rows), progress)
        if is_current:
            states[rows] = _HEADER
            _write_states(place, states)


# -- refreshing ---------------------------------------------------------------------------------------------------


def _refresh(settings: StorageSettings, place: Path, is_image: Callable[[str], bool], progress: bool) -> None:
    """List the store, and update the files of a mirror; the caller holds its lock."""
    with _temporary_file(place) as path:
        run_job("list", settings, {"path": str(path)}, progress=progress)
        listing = Listing.load(path).usable(settings.url).with_version_times()
    if not len(listing):
        raise _no_objects(settings.url)
    # All objects are listed, because sources of shards and of single images may share a mirror.
    stays = _mask(listing, lambda key: is_image(key) or key.lower().endswith(_NOT_READ))
    _check_budget(settings, listing.select(np.flatnonzero(~stays)))
    files = place / "files"
    rows, obsolete_files = compare_files(files, listing)
    states = _current_states(place, listing, rows)
    unchanged = np.zeros(len(listing), dtype=np.bool_)
    unchanged[rows] = states[rows] >= 0
    changed_files = np.flatnonzero(~stays & ~(unchanged & (states == _WHOLE)))
    _download(settings, place, listing.select(changed_files), progress)
    # From here to the end the files fit neither listing. After an interruption, the next refresh updates all of them.
    for name in ("listing.arrow", "headers"):
        (place / name).unlink(missing_ok=True)
    remove_files(files, obsolete_files)
    for row in changed_files.tolist():
        path = files / listing.keys[row]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (place / "new" / listing.keys[row]).replace(path)
    shutil.rmtree(place / "new", ignore_errors=True)
    create_placeholders(files, listing.select(np.flatnonzero(~unchanged & stays)))
    states[changed_files] = _WHOLE
    listing.save(place / "listing.arrow")
    _write_states(place, np.maximum(states, 0).astype(np.uint8))


def _download(settings: StorageSettings, place: Path, objects: Listing, progress: bool) -> None:
    """Write whole objects to the folder ``new``; files of an update that was broken off are not fetched again."""
    folder = place / "new"
    rows, obsolete_files = compare_files(folder, objects)
    remove_files(folder, obsolete_files)
    missing = np.setdiff1d(np.arange(len(objects)), rows)
    if len(missing):
        _fetch("download", settings, folder, objects.select(missing), progress)


def _current_states(place: Path, listing: Listing, rows: IndexArray) -> npt.NDArray[np.int16]:
    """Return the states of the files of some rows, and -1 for other rows and for files that have changed."""
    states = np.full(len(listing), -1, dtype=np.int16)
    try:
        old_listing = Listing.load(place / "listing.arrow")
    # There is none yet, or an update was broken off.
    except CacheError:
        return states
    old_states = _states(place, len(old_listing))
    old_rows = {key: row for row, key in enumerate(old_listing.keys)}
    for row in rows.tolist():
        old_row = old_rows.get(listing.keys[row])
        if old_row is not None and old_listing.versions[old_row] == listing.versions[row]:
            states[row] = old_states[old_row]
    return states


def _check_budget(settings: StorageSettings, files: Listing) -> None:
    """Raise SettingError if files are too large to be downloaded."""
    # Python's numbers: a sum of int64 may overflow.
    num_bytes = sum(files.sizes.tolist())
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


def _no_objects(url: str) -> StorageError:
    return StorageError(f"{url} holds no objects", remedy="check the bucket and the folder in the URL")


def _fetch(job: str, settings: StorageSettings, folder: Path, objects: Listing, progress: bool) -> None:
    """Run a job that writes objects to files in a folder of a mirror."""
    with _temporary_file(folder.parent) as path:
        objects.save(path)
        request: dict[str, Any] = {"listing": str(path), "folder": str(folder)}
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
    variables = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
    address: dict[str, str] = {}
    # Options take precedence over variables.
    for name, value in (*variables.items(), *settings.options.items()):
        if match := _ADDRESS.fullmatch(name.lower()):
            address["".join(filter(None, match.groups()))] = str(value).rstrip("/")
    words = [settings.url, *(f"{name}={value}" for name, value in sorted(address.items()))]
    return blake2b("\0".join(words).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
