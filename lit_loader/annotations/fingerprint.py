"""Fingerprint of an annotation table: hashes that tell which images and which kinds of annotations have changed.

It depends on neither the machine, the root, the cache nor the order of the objects of an image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import TextColumn
from lit_loader.annotations.key_sketch import KeySketch
from lit_loader.annotations.table import COLUMNS, AnnotationTable
from lit_loader.seeding import hash_u64, key64

__all__ = ["KIND_BY_COLUMN", "NOT_COMPARED", "TableFingerprint", "table_fingerprint", "text_digest"]

KIND_BY_COLUMN: Final = {
    "widths": "sizes",
    "heights": "sizes",
    "regions": "regions",
    "boxes": "boxes",
    "labels": "labels",
    "difficult": "flags",
    "truncated": "flags",
    "occluded": "flags",
    "crowd": "flags",
    "areas": "areas",
    "masks": "masks",
    "keypoints": "keypoints",
    "visibility": "keypoints",
}
"""Kind of annotation that each column belongs to; attributes are a kind of their own."""

NOT_COMPARED: Final = frozenset({"image_ids", "source_ids", "image_stamps", "category_ids", "object_ids"})
"""Columns without influence on the samples: numbers of the files, and the stamps that a cache compares."""

_U64: Final = np.uint64
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class TableFingerprint:
    """Hashes of a table.

    Attributes:
        num_images: Number of image files; several rows may describe one file.
        num_objects: Number of objects.
        digests: 16 hexadecimal digits for each of ``images`` (their paths), ``order`` (of the rows), ``content`` (all
            annotations of every image, except for masks), and each kind of annotation that the table has.
        sketch: Sketch of the paths, with the annotations of each image as its value.
    """

    num_images: int
    num_objects: int
    digests: dict[str, str]
    sketch: KeySketch


def table_fingerprint(table: AnnotationTable) -> TableFingerprint:
    """Return the fingerprint of a table; images are not opened.

    Takes about 0.3 s for 118,000 images with 860,000 objects.
    """
    path_hashes = _path_hashes(table.image_paths)
    image_hashes = _image_hashes(table)
    object_hashes = _object_hashes(table)
    sums = {kind: _sum_per_row(hashes, table) for kind, hashes in object_hashes.items()}
    # Per object, so that two objects which swap their labels differ.
    objects = np.zeros(table.num_objects, _U64)
    for kind, hashes in object_hashes.items():
        objects += hash_u64(key64("kind", kind), hashes)
    content = _sum_per_row(hash_u64(key64("object"), objects), table)
    for kind, hashes in image_hashes.items():
        content += hash_u64(key64("kind", kind), hashes)
    digests = {"order": hashlib.blake2b(path_hashes.astype("<u8").tobytes(), digest_size=8).hexdigest()}
    for kind, hashes in {**image_hashes, **sums, "content": content}.items():
        # A sum over the rows, which does not depend on their order; the path binds an annotation to its image.
        digests[kind] = _hex(hash_u64(key64(kind), path_hashes ^ hash_u64(0, hashes)))
    if table.masks is not None:
        digests["masks"] = _digest_of_arrays(table.masks.arrays().values())
    # Rows of one file, such as tiles or objects that are cut out, are one image.
    images, image_of_row = np.unique(path_hashes, return_inverse=True)
    values = np.zeros(len(images), _U64)
    np.add.at(values, image_of_row, hash_u64(key64("row"), content))
    digests["images"] = _hex(images)
    return TableFingerprint(
        num_images=len(images), num_objects=table.num_objects, digests=digests, sketch=KeySketch.of(images, values)
    )


def text_digest(value: object) -> str:
    """Return 16 hexadecimal digits of the ``repr`` of plain values."""
    return hashlib.blake2b(repr(value).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def _image_hashes(table: AnnotationTable) -> dict[str, _Words]:
    """Return a hash of each row of the table for each kind of annotation of images."""
    hashes = {"sizes": _row_hashes([table.widths, table.heights], table.num_images)}
    if table.regions is not None:
        hashes["regions"] = _row_hashes([table.regions], table.num_images)
    return hashes


def _object_hashes(table: AnnotationTable) -> dict[str, _Words]:
    """Return a hash of each object for each kind of annotation of objects, except for masks."""
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    for name, spec in COLUMNS.items():
        column = getattr(table, name)
        if spec.rows != "objects" or name in NOT_COMPARED or name == "masks" or column is None:
            continue
        # Names instead of numbers, because the numbers change with the order of the classes.
        column = _name_hashes(table.class_names)[column] if name == "labels" else column
        columns.setdefault(KIND_BY_COLUMN[name], []).append(column)
    for name, attribute in sorted(table.attributes.items()):
        # An object without a value has the id -1, which selects the last entry.
        values = _name_hashes([*attribute.names, ""])[attribute.ids]
        columns.setdefault("attributes", []).append(hash_u64(key64(_encodable(name)), values))
    return {kind: _row_hashes(parts, table.num_objects) for kind, parts in columns.items()}


def _row_hashes(columns: Sequence[npt.NDArray[Any]], num_rows: int) -> _Words:
    """Return a hash of each row of some columns, uint64 ``(num_rows,)``."""
    total = np.zeros(num_rows, _U64)
    position = 0
    for column in columns:
        words = _words(column).reshape(num_rows, -1 if num_rows else 0)
        for cells in words.T:
            # Multilinear hashing with odd, pseudorandom factors; a change of one cell always changes the sum.
            factor = _U64(key64("factor", position) | 1)
            total += cells.astype(_U64) * factor
            position += 1
    return hash_u64(key64("row hash"), total)


def _words(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bits of a column as unsigned integers; equal numbers have equal bits."""
    if column.dtype.kind == "f":
        # -0.0 becomes 0.0, and every NaN the same NaN.
        column = np.where(np.isnan(column), np.float32(np.nan), column + np.float32(0))
    words: npt.NDArray[Any] = np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}")
    return words


def _sum_per_row(hashes: _Words, table: AnnotationTable) -> _Words:
    """Return the sum of the hashes of each row's objects, uint64 ``(num_images,)``; 0 without objects."""
    # Differences of a running sum, which may wrap around; reduceat() has no empty rows.
    sums: _Words = np.concatenate([np.zeros(1, _U64), np.cumsum(hashes, dtype=_U64)])
    return sums[table.offsets[1:]] - sums[table.offsets[:-1]]


def _path_hashes(paths: Sequence[str]) -> _Words:
    """Return a hash of each path, uint64 ``(num_images,)``."""
    assert isinstance(paths, TextColumn)  # the table has converted them
    data = paths.data.tobytes()
    offsets = paths.offsets.tolist()
    hashes: list[bytes] = []
    previous_path = None
    start = 0
    for end in offsets[1:]:
        path = data[start:end]
        start = end
        # Rows of one image follow each other in tables of tiles and of single objects.
        hashes.append(hashes[-1] if path == previous_path else hashlib.blake2b(path, digest_size=8).digest())
        previous_path = path
    return np.frombuffer(b"".join(hashes), "<u8").astype(_U64)


def _name_hashes(names: Sequence[str]) -> _Words:
    return np.array([key64("name", _encodable(name)) for name in names], _U64)


def _encodable(name: str) -> str:
    # Names of folders that are not valid UTF-8 contain surrogates.
    return name.encode("utf-8", "backslashreplace").decode()


def _digest_of_arrays(arrays: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).data)
    return digest.hexdigest()


def _hex(hashes: _Words) -> str:
    """Return the sum of some hashes as 16 hexadecimal digits."""
    return f"{int(hashes.sum(dtype=_U64)):016x}"
