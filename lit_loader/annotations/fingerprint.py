"""Digests of an annotation table, which tell two runs which kinds of its contents differ."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.table import COLUMNS, AnnotationTable

__all__ = ["KINDS", "annotation_digest", "table_digests", "text_digest"]

_KIND_BY_COLUMN: Final = {
    "image_paths": "image paths",
    **dict.fromkeys(["widths", "heights"], "sizes"),
    **dict.fromkeys(["difficult", "truncated", "occluded", "crowd"], "flags"),
    "visibility": "keypoints",
}
# Numbers, sizes and lines of the files, and the stamps that a cache compares, have no influence on samples.
_NOT_COMPARED: Final = {
    *("image_ids", "source_ids", "image_stamps", "image_places", "file_sizes"),
    *("category_ids", "object_ids", "object_places", "shards"),
}
_KINDS: Final = {name: _KIND_BY_COLUMN.get(name, name) for name in COLUMNS if name not in _NOT_COMPARED}

KINDS: Final = (*dict.fromkeys(_KINDS.values()), "attributes")
"""Kinds of content: names of columns, or of groups of columns."""


def table_digests(table: AnnotationTable) -> dict[str, str]:
    """Return 16 hexadecimal digits for each kind of content that a table has; images are not opened.

    Digests depend on the order of images and objects, but not on the root, the cache or the order of the classes.
    """
    arrays: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, kind in _KINDS.items():
        # Names instead of numbers, because the numbers change with the order of the classes.
        column = _name_hashes(table.class_names)[table.labels] if name == "labels" else getattr(table, name)
        if column is not None:
            arrays.setdefault(kind, {}).update(COLUMNS[name].to_arrays(name, column))
    # An object that moves to another image may change only the offsets.
    arrays["boxes"]["offsets"] = table.offsets
    for name, attribute in sorted(table.attributes.items()):
        arrays.setdefault("attributes", {})[name] = _name_hashes(attribute.names)[attribute.ids]
    return {kind: _arrays_digest(columns) for kind, columns in arrays.items()}


def annotation_digest(table: AnnotationTable, row: int) -> bytes:
    """Return a digest of the objects of an image; images with equal objects in any order have the same.

    Digests of two tables are comparable if the tables have the same classes and attribute values.

    Args:
        table: The table.
        row: Row of the image.
    """
    objects = table.objects(row)
    columns = {name: getattr(table, name) for name in _KINDS if COLUMNS[name].rows == "objects"}
    arrays = [column[objects] for column in columns.values() if isinstance(column, np.ndarray)]
    arrays += [attribute.ids[objects] for _, attribute in sorted(table.attributes.items())]
    count = objects.stop - objects.start
    # One row of bytes for each object. 0 + -0.0 is 0.0, which is equal but has other bytes.
    # The number of columns is explicit, since -1 cannot be inferred for an image without objects.
    numbers = [
        np.ascontiguousarray(array + array.dtype.type(0)).reshape(count, math.prod(array.shape[1:])) for array in arrays
    ]
    texts = [b"".join(array[position].tobytes() for array in numbers) for position in range(count)]
    if table.masks is not None:
        for position in range(count):
            mask = table.masks.take(np.array([objects.start + position]))
            texts[position] += _arrays_digest(COLUMNS["masks"].to_arrays("masks", mask)).encode()
    return hashlib.blake2b(b"".join(sorted(texts)), digest_size=16).digest()


def text_digest(text: str) -> str:
    """Return 16 hexadecimal digits of a text."""
    return hashlib.blake2b(_encoded(text), digest_size=8).hexdigest()


def _name_hashes(names: Sequence[str]) -> npt.NDArray[np.uint64]:
    # An object without a value has the id -1, which selects the last entry.
    return np.array([int(text_digest(name), 16) for name in (*names, "")], np.uint64)


def _arrays_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, array in arrays.items():
        # The length keeps values of one array from counting as values of the next.
        digest.update(_encoded(f"{name} {array.size} "))
        digest.update(array.data)
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    # Names of folders that are not valid UTF-8 contain surrogates.
    return text.encode("utf-8", "backslashreplace")
