"""Named numpy columns in one Arrow IPC file: written atomically, read back as views of the mapping."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from lit_loader.errors import CacheError

__all__ = ["Column", "ColumnFile", "read_columns", "write_columns"]

Column = npt.NDArray[Any]
ColumnFile = tuple[dict[str, Column], dict[str, Any]]

# NOTE [one row of lists]
# A record batch wants columns of one length; ours have many (images, objects, bytes of names). So the
# file holds a single row whose cells are large lists: each cell is one flat numpy array, whose buffer
# Arrow aligns and maps. The file's schema carries a JSON header and a digest of header and buffers.
_MAGIC = b"lit_loader.columns.1"
_MAX_HEADER_BYTES = 64 * 1024 * 1024


def _digest(header: bytes, columns: Mapping[str, Column]) -> bytes:
    digest = hashlib.blake2b(header, digest_size=16)
    for name in sorted(columns):
        column = columns[name]
        digest.update(f"\0{name}\0{column.dtype.str}\0{column.size}\0".encode())
        digest.update(column.data if column.size else b"")
    return digest.hexdigest().encode()


def write_columns(path: Path, columns: Mapping[str, Column], header: Mapping[str, Any]) -> None:
    """Write one-dimensional columns and a JSON header to ``path``.

    The file appears under its name complete or not at all: it is written to a temporary name in the same
    folder and then renamed, so a killed writer or several at once do no harm.

    Args:
        path: The file to write; its folder is made when missing.
        columns: Name to one-dimensional, contiguous array of a fixed-size number type (bool as uint8).
        header: Plain values.

    Raises:
        OSError: If the folder cannot be written.
    """
    encoded = json.dumps(header, sort_keys=True).encode()
    arrays, fields = [], []
    for name, column in columns.items():
        values = pa.array(column, from_pandas=False)
        offsets = pa.array([0, len(column)], type=pa.int64())
        arrays.append(pa.LargeListArray.from_arrays(offsets, values))
        fields.append(pa.field(name, arrays[-1].type))
    metadata = {b"magic": _MAGIC, b"header": encoded, b"digest": _digest(encoded, columns)}
    batch = pa.record_batch(arrays, schema=pa.schema(fields, metadata=metadata))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            pa.PythonFile(file, mode="w") as sink,
            pa.ipc.new_file(sink, batch.schema) as writer,
        ):
            writer.write_batch(batch)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_columns(path: Path, *, check: Callable[[Any], None] | None = None) -> ColumnFile:
    """Map a file of ``write_columns`` and return its columns as read-only views, and its header.

    Nothing in the file is trusted: its structure is validated by Arrow, its content by a digest, and
    nothing is unpickled. The mapping lives as long as any of the views.

    Args:
        path: The file.
        check: Called with the header before the buffers are looked at; may raise CacheError.

    Raises:
        CacheError: If there is no such file, or it is damaged, cut short or made by something else.
    """
    try:
        with pa.memory_map(str(path), "r") as source:
            reader = pa.ipc.open_file(source)
            metadata = reader.schema.metadata or {}
            if metadata.get(b"magic") != _MAGIC:
                raise CacheError(f"{path} was not written by this version; delete it")
            encoded = metadata[b"header"]
            if len(encoded) > _MAX_HEADER_BYTES:
                raise CacheError(f"{path} has a header of {len(encoded)} bytes; delete it")
            header = json.loads(encoded)
            if check is not None:
                check(header)
            if reader.num_record_batches != 1:
                raise CacheError(f"{path} has {reader.num_record_batches} record batches, not 1; delete it")
            batch = reader.get_batch(0)
        batch.validate(full=True)
        columns = {name: _view(path, batch, name) for name in batch.schema.names}
    except FileNotFoundError:
        raise CacheError(f"there is no cache file {path}; read the annotations again") from None
    except CacheError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{path} is damaged ({type(error).__name__}: {error}); delete it") from None
    if _digest(encoded, columns) != metadata.get(b"digest"):
        raise CacheError(f"{path} is damaged (its digest does not match); delete it")
    return columns, header


def _view(path: Path, batch: Any, name: str) -> Column:
    column = batch.column(name)
    if not pa.types.is_large_list(column.type) or len(column) != 1 or column.null_count:
        raise CacheError(f"{path}: column {name!r} is not one row of a large list; delete it")
    values = column.flatten()
    if values.null_count or not pa.types.is_primitive(values.type):
        raise CacheError(f"{path}: column {name!r} has nulls or no numbers; delete it")
    view: Column = values.to_numpy(zero_copy_only=True)
    return view
