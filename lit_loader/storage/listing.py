"""Listing of a store: key, size, time and ETag of each object, as an Arrow file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lit_loader.errors import CacheError
from lit_loader.foundation.files import new_file
from lit_loader.types import IndexArray

__all__ = ["Listing"]

_SCHEMA = pa.schema(
    [("key", pa.large_string()), ("size", pa.int64()), ("time", pa.int64()), ("version", pa.large_string())]
)


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
