"""Named arrays and a header as one Arrow file, written atomically, and mapped back without trusting it.

NOTE [One row of lists]
    The columns of a record batch have one length, and these arrays several (images, objects, bytes of names). So the
    file has a single row whose cells are large lists: each cell is one flat numpy array, whose buffer Arrow aligns and
    maps. The file's schema contains a JSON header and a checksum of header and buffers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lit_loader.errors import CacheError
from lit_loader.foundation.files import new_file

__all__ = ["read_arrays", "write_arrays"]

_Arrays = dict[str, npt.NDArray[Any]]


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any]) -> None:
    """Write vectors and a JSON header to ``path``.

    The file is written to a temporary name in the same folder and then renamed, so it is complete even if a writer is
    killed or several write at once.

    Args:
        path: The file; its folder is created if missing.
        arrays: One-dimensional arrays of numbers by name.
        header: Plain values; ``format`` (int) and ``key`` (str) are compared when the file is read.

    Raises:
        OSError: If the folder cannot be written.
    """
    encoded = json.dumps(header, sort_keys=True).encode()
    cells = []
    fields = []
    for name, array in arrays.items():
        offsets = np.array([0, len(array)], dtype=np.int64)
        cells.append(pa.LargeListArray.from_arrays(_arrow_array(offsets), _arrow_array(array)))
        fields.append(pa.field(name, cells[-1].type))
    metadata = {b"header": encoded, b"checksum": _checksum(encoded, arrays)}
    batch = pa.record_batch(cells, schema=pa.schema(fields, metadata=metadata))
    with new_file(path) as file, pa.PythonFile(file, mode="w") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def read_arrays(path: Path, *, format: int, key: str) -> tuple[_Arrays, dict[str, Any]]:
    """Map a file of `write_arrays` and return its vectors as read-only views, and its header.

    Arrow validates the structure, a checksum the content, and nothing is unpickled. The mapping stays open as long as
    any of the views exists.

    Args:
        path: The file.
        format: The ``format`` that its header must have.
        key: The ``key`` that its header must have.

    Raises:
        CacheError: If the file is missing, damaged, truncated or not a cache file, or its header has another format or
            key; that is checked before any buffer is read.
    """
    try:
        with pa.memory_map(str(path), "r") as source:
            reader = pa.ipc.open_file(source)
            metadata = reader.schema.metadata or {}
            # Format and key are checked before any buffer is touched, so a stale file costs no reading.
            encoded = metadata[b"header"]
            header = json.loads(encoded)
            if (header["format"], header["key"]) != (format, key):
                raise CacheError(f"{path} was made by another version or from other files", remedy="delete it")
            batch = reader.get_batch(0)
        batch.validate(full=True)
        arrays = {name: _view(path, batch, name) for name in batch.schema.names}
    except FileNotFoundError:
        raise CacheError(f"{path} does not exist", remedy="read the annotations again") from None
    except CacheError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{path} is damaged ({type(error).__name__}: {error})", remedy="delete it") from None
    # This reads the whole file once; it also brings its pages into memory.
    if _checksum(encoded, arrays) != metadata.get(b"checksum"):
        raise CacheError(f"{path} is damaged (its checksum does not match)", remedy="delete it")
    return arrays, header


def _arrow_array(array: npt.NDArray[Any]) -> Any:
    # `pa.array` here and `to_numpy` in `_view` would import pandas if it is installed, which takes half a second.
    buffer = pa.py_buffer(np.ascontiguousarray(array))
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, buffer])


def _checksum(header: bytes, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return a checksum of header and arrays."""
    # A CRC takes half the time of a cryptographic hash, which would not stop a forger either.
    checksum = zlib.crc32(header)
    for name in sorted(arrays):
        array = arrays[name]
        checksum = zlib.crc32(f"\0{name}\0{array.dtype.str}\0{array.size}\0".encode(), checksum)
        checksum = zlib.crc32(array.data if array.size else b"", checksum)
    return b"%08x" % checksum


def _view(path: Path, batch: Any, name: str) -> npt.NDArray[Any]:
    column = batch.column(name)
    values = column.flatten() if pa.types.is_large_list(column.type) and len(column) == 1 else None
    # numpy cannot view a column with nulls or of text, nor one of booleans, which are single bits.
    if values is None or not _is_numeric(values.type) or values.null_count or column.null_count:
        raise CacheError(f"{path} has a column {name!r} that is not one row of numbers", remedy="delete it")
    dtype = np.dtype(values.type.to_pandas_dtype())
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)


def _is_numeric(arrow_type: Any) -> bool:
    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))
