"""Listing of a store: key, size, time and ETag of each object, as an Arrow file."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from lit_loader.errors import CacheError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import new_file
from lit_loader.types import IndexArray

__all__ = ["Listing"]

_SCHEMA = pa.schema(
    [("key", pa.large_string()), ("size", pa.int64()), ("time", pa.int64()), ("version", pa.large_string())]
)

_MAX_NAME_BYTES: Final = 255
_MAX_PATH_BYTES: Final = 3000
_MAX_DEPTH: Final = 100
# Common file systems have no larger files.
_MAX_SIZE: Final = 15 << 40
_SECOND: Final = 10**9
_MAX_TIME: Final = 7_258_118_400 * _SECOND
_MAX_NAMES: Final = 5
_SHOWN_LENGTH: Final = 100


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Objects of a store.

    Args:
        keys: Keys relative to the store's URL, which are not trusted.
        sizes: Bytes of each object, int64 ``(num_objects,)``.
        times: Time of the last change of each object in ns since 1970, int64 ``(num_objects,)``.
        versions: ETag of each object, or an empty string if it has none.
    """

    keys: Sequence[str]
    sizes: IndexArray
    times: IndexArray
    versions: Sequence[str]

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, rows: IndexArray) -> Listing:
        """Return some objects, in the order of ``rows``."""
        numbers = rows.tolist()
        return Listing(
            keys=[self.keys[row] for row in numbers],
            sizes=self.sizes[rows],
            times=self.times[rows],
            versions=[self.versions[row] for row in numbers],
        )

    def usable(self, url: str) -> Listing:
        """Return the objects that can be files below a folder by key, size and time, without those in hidden folders.

        Args:
            url: URL of the store, for the warning.

        Warns:
            UserWarning: If objects are left out; names some of their keys and the reason.
        """
        sizes = self.sizes.tolist()
        times = self.times.tolist()
        key_faults = list(map(_fault, self.keys))
        # Not a set of all folders, because keys may have 100 folders of their own.
        paths = sorted(key for key, fault in zip(self.keys, key_faults, strict=True) if fault is None)
        rows = []
        seen: set[str] = set()
        faults: dict[str, list[str]] = {}
        for row, (key, fault) in enumerate(zip(self.keys, key_faults, strict=True)):
            if key in seen:
                fault = "key is listed twice"
            elif fault is None and _is_folder(key, paths):
                # Consoles of stores create an empty object for a folder.
                if sizes[row] == 0:
                    continue
                fault = "key is also a folder"
            elif fault is None and not 0 <= sizes[row] <= _MAX_SIZE:
                fault = "size is more than 15 TiB"
            elif fault is None and not 0 <= times[row] <= _MAX_TIME:
                fault = "time is not between 1970 and 2200"
            seen.add(key)
            if fault is not None:
                faults.setdefault(fault, []).append(key)
            # As in a local folder, hidden folders belong to tools.
            elif "/." not in f"/{key.rpartition('/')[0]}":
                rows.append(row)
        for fault, keys in faults.items():
            names = ", ".join(repr(printable(key[:_SHOWN_LENGTH])) for key in keys[:_MAX_NAMES])
            message = f"{url}: {len(keys)} objects are left out, because their {fault}: {names}"
            warnings.warn(message, UserWarning, stacklevel=2)
        return self.select(np.array(rows, dtype=np.int64))

    def with_version_times(self) -> Listing:
        """Return the listing with times whose fraction of a second is a hash of that fraction and the ETag.

        Most stores list whole seconds, and an object may change twice in one.
        """
        seconds = self.times // _SECOND
        fractions = [
            int.from_bytes(blake2b(f"{time % _SECOND} {version}".encode(), digest_size=8).digest(), "little") % _SECOND
            for time, version in zip(self.times.tolist(), self.versions, strict=True)
        ]
        return replace(self, times=seconds * _SECOND + np.array(fractions, dtype=np.int64))

    def save(self, path: Path) -> None:
        """Write the listing to a file, atomically.

        Raises:
            OSError: If the file cannot be written.
        """
        batch = pa.record_batch([self.keys, self.sizes, self.times, self.versions], schema=_SCHEMA)
        with new_file(path) as file, pa.ipc.new_file(file, _SCHEMA) as writer:
            writer.write_batch(batch)

    @classmethod
    def load(cls, path: Path) -> Listing:
        """Read a file of `save`.

        Raises:
            CacheError: If the file is missing or damaged.
        """
        try:
            with pa.memory_map(str(path), "r") as source:
                table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
            if table.schema != _SCHEMA or any(column.null_count for column in table.columns):
                raise CacheError(f"{path} was written by another version; delete it")
            keys, sizes, times, versions = table.columns
            return cls(
                keys=keys.to_pylist(),
                sizes=np.array(sizes, dtype=np.int64),
                times=np.array(times, dtype=np.int64),
                versions=versions.to_pylist(),
            )
        except FileNotFoundError:
            raise CacheError(f"the listing {path} does not exist") from None
        except CacheError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CacheError(f"{path} is damaged ({type(error).__name__}: {error}); delete it") from None


def _is_folder(key: str, sorted_keys: Sequence[str]) -> bool:
    """Return True if a key is below another one."""
    place = bisect_left(sorted_keys, f"{key}/")
    return place < len(sorted_keys) and sorted_keys[place].startswith(f"{key}/")


def _fault(key: str) -> str | None:
    """Return the reason why a key is not the path of a file below a folder, or None."""
    parts = key.split("/")
    if "" in parts:
        return "key has an empty part"
    if "." in parts or ".." in parts:
        return "key has a part '.' or '..'"
    if "\\" in key or any(ord(character) < 32 or ord(character) == 127 for character in key):
        return "key has a backslash or a control character"
    if len(parts) > _MAX_DEPTH:
        return f"key has more than {_MAX_DEPTH} folders"
    # A key from a store is valid Unicode; one from elsewhere may not be.
    data = key.encode("utf-8", "surrogatepass")
    if len(data) > _MAX_PATH_BYTES or max(map(len, data.split(b"/"))) > _MAX_NAME_BYTES:
        return "key is too long for a path"
    return None
