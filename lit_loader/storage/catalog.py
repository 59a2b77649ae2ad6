"""Catalog of the stored images of a data set: the object of each image, and its range of bytes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import CacheError
from lit_loader.foundation.array_file import read_arrays, write_arrays
from lit_loader.foundation.escaping import printable
from lit_loader.types import IndexArray

__all__ = ["Catalog", "DIGEST_BYTES"]

DIGEST_BYTES: Final = 16
"""Bytes of the digest of an image."""

_FORMAT: Final = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """Object and range of bytes of each image of a data set.

    A row of the catalog is called the slot of its image. Images are found by the hash of their path, because tables
    that are derived from each other (samples, tiles, splits) share images, and name them by path.

    Args:
        root: Folder or URL that the names of objects are relative to; no credentials.
        objects: Name of each object, with ``/`` between its parts: an image file, or a shard with many images.
        versions: ETag of each object, or an empty string if it has none.
        object_of: int32 ``(num_images,)``, the object of each image.
        starts: int64 ``(num_images,)``, its first byte in the object.
        lengths: int64 ``(num_images,)``, its number of bytes.
        path_hashes: uint64 ``(num_images,)``, `hash_paths` of its path in the annotation table.
        digests: uint8 ``(num_images, 16)``, digest of the bytes of each image, or None.
        object_digests: Digest of each whole object in hexadecimal digits, or None.
        table_digests: Of a packed set, the digest of the file with the table of each set, by the set's name; or None.
    """

    root: str
    objects: Sequence[str]
    versions: Sequence[str]
    object_of: npt.NDArray[np.int32]
    starts: IndexArray
    lengths: IndexArray
    path_hashes: npt.NDArray[np.uint64]
    digests: npt.NDArray[np.uint8] | None = None
    object_digests: Sequence[str] | None = None
    table_digests: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        sorted_hashes = self.path_hashes[self._order]
        if (sorted_hashes[1:] == sorted_hashes[:-1]).any():
            raise CacheError(f"two images of {self.root} have the same path, or the same hash of 64 bits")

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def _order(self) -> IndexArray:
        return np.argsort(self.path_hashes, kind="stable")

    @cached_property
    def _sorted_hashes(self) -> npt.NDArray[np.uint64]:
        return self.path_hashes[self._order]

    @cached_property
    def key(self) -> str:
        """32 hexadecimal digits that change with the objects, their versions and the ranges."""
        digest = blake2b(self.root.encode("utf-8", "surrogateescape"), digest_size=16)
        for names in (self.objects, self.versions):
            digest.update("\0".join([str(len(names)), *names]).encode("utf-8", "surrogateescape"))
        for array in (self.object_of, self.starts, self.lengths, self.path_hashes):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def slots(self, paths: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the slot of each image, int32 ``(len(paths),)``, -1 for a path that is not in the catalog."""
        return self.slots_of_hashes(self.hash_paths(paths))

    def slots_of_hashes(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the slot of each hash of a path, -1 if it is not in the catalog."""
        if not len(self):
            return np.full(len(hashes), -1, dtype=np.int32)
        places = np.searchsorted(self._sorted_hashes, hashes)
        places[places == len(self)] = 0
        slots = self._order[places]
        return np.where(self._sorted_hashes[places] == hashes, slots, -1).astype(np.int32)

    def slot(self, path: str) -> int:
        """Return the slot of an image, -1 if it is not in the catalog."""
        digest = np.uint64(
            int.from_bytes(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
        )
        # Of one path, this takes a tenth of the time of `slots`.
        place = int(self._sorted_hashes.searchsorted(digest))
        return int(self._order[place]) if place < len(self) and self._sorted_hashes[place] == digest else -1

    def object_name(self, slot: int) -> str:
        """Return the address of the object of an image for messages, with its range of bytes if it is a part."""
        name = printable(f"{self.root}/{self.objects[self.object_of[slot]]}")
        if self.holds_whole_objects:
            return name
        start = int(self.starts[slot])
        return f"{name}, bytes {start} to {start + int(self.lengths[slot]) - 1}"

    @cached_property
    def holds_whole_objects(self) -> bool:
        """True if every image is an object of its own, and False if objects are shards."""
        return len(self.objects) == len(self) and not self.starts.any()

    @staticmethod
    def hash_paths(paths: Sequence[str]) -> npt.NDArray[np.uint64]:
        """Return the hash of each path, uint64 ``(len(paths),)``."""
        digests = b"".join(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest() for path in paths)
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)

    def save(self, path: Path) -> None:
        """Write the catalog to an Arrow file.

        Raises:
            OSError: If the file cannot be written.
        """
        header = {
            "format": _FORMAT,
            "key": "",
            "root": self.root,
            "objects": list(self.objects),
            "versions": list(self.versions),
            "object_digests": None if self.object_digests is None else list(self.object_digests),
            "table_digests": None if self.table_digests is None else dict(self.table_digests),
        }
        arrays = {name: getattr(self, name) for name in ("object_of", "starts", "lengths", "path_hashes")}
        if self.digests is not None:
            arrays["digests"] = self.digests.reshape(-1)
        write_arrays(path, arrays, header)

    @classmethod
    def load(cls, path: Path) -> Catalog:
        """Map a file of `save`.

        Raises:
            CacheError: If the file is missing or damaged, or its columns contradict each other.
        """
        arrays, header = read_arrays(path, format=_FORMAT, key="")
        try:
            names = ("root", "objects", "versions", "object_digests", "table_digests")
            values: dict[str, Any] = arrays | {name: header[name] for name in names}
            if "digests" in arrays:
                values["digests"] = arrays["digests"].reshape(len(arrays["lengths"]), DIGEST_BYTES)
            catalog = cls(**values)
            _check(catalog)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CacheError(f"{path} is damaged ({type(error).__name__}: {error})", remedy="delete it") from None
        return catalog


def _check(catalog: Catalog) -> None:
    """Raise ValueError if columns contradict each other."""
    types = {"object_of": np.int32, "starts": np.int64, "lengths": np.int64, "path_hashes": np.uint64}
    for name, kind in types.items():
        column = getattr(catalog, name)
        if column.dtype != kind or len(column) != len(catalog):
            raise ValueError(f"column {name} is {column.dtype} of {len(column)} rows, expected {kind.__name__}")
    names = [*catalog.objects, *catalog.versions]
    if not isinstance(catalog.root, str) or not all(isinstance(name, str) for name in names):
        raise TypeError("root, objects and versions must be strings")
    if len(catalog.objects) != len(catalog.versions):
        raise ValueError(f"{len(catalog.objects)} objects have {len(catalog.versions)} versions")
    if catalog.digests is not None and catalog.digests.dtype != np.uint8:
        raise TypeError(f"digests are {catalog.digests.dtype}, expected uint8")
    object_digests = catalog.object_digests
    if object_digests is not None and not (
        len(object_digests) == len(catalog.objects) and all(isinstance(digest, str) for digest in object_digests)
    ):
        raise ValueError("object_digests must be a string for each object")
    table_digests = catalog.table_digests
    if table_digests is not None and not all(isinstance(digest, str) for digest in table_digests.values()):
        raise TypeError("table_digests must be strings")
    if len(catalog) and not 0 <= catalog.object_of.min() <= catalog.object_of.max() < len(catalog.objects):
        raise ValueError(f"an image is in an object outside of 0 to {len(catalog.objects) - 1}")
    if len(catalog) and (catalog.starts.min() < 0 or catalog.lengths.min() < 0):
        raise ValueError("an image has a negative start or length")
