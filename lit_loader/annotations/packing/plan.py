"""Plan of packed shards: which images go into which shard, and the bytes of each."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from lit_loader.annotations.fingerprint import table_digests
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING
from lit_loader.annotations.shard_records import RecordWriter
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.storage.shard_writer import ShardImage, member_bytes, shard_capacity
from lit_loader.types import IndexArray

__all__ = ["NewImages", "ShardPlan", "cuts", "image_file_stamp", "plan_key", "read_image", "shard_images"]


@dataclass(frozen=True, kw_only=True, eq=False)
class NewImages:
    """Images of a set that are to be packed.

    Attributes:
        table: Table of the set.
        rows: Rows of each image in the table.
        sizes: int64 ``(num_images, 2)``, number of bytes of the image file and of its record.
        times: int64 ``(num_images,)``, time of the last change of the image file in ns since 1970.
        first_number: Number of the first of these images in the set.
    """

    table: AnnotationTable
    rows: Sequence[Sequence[int]]
    sizes: IndexArray
    times: IndexArray
    first_number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardPlan:
    """Images of one shard: the positions ``begin`` to ``end`` of a set's new images."""

    name: str
    images: NewImages
    begin: int
    end: int

    def num_bytes(self) -> int:
        """Return the number of bytes of the images."""
        return int(self.images.sizes[self.begin : self.end, 0].sum())


def cuts(sizes: IndexArray, shard_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each shard: as many images as fit, at least one."""
    blocks = np.array([[member_bytes(length) for length in row] for row in sizes.tolist()], np.int64).reshape(-1, 2)
    ends = np.cumsum(blocks.sum(axis=1))
    begin = 0
    while begin < len(ends):
        start = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, start + shard_capacity(shard_bytes), side="right"))
        end = max(end, begin + 1)
        yield begin, end
        begin = end


def shard_images(plan: ShardPlan) -> Iterator[ShardImage]:
    """Yield the images of a shard."""
    images = plan.images
    writer = RecordWriter(images.table)
    for position in range(plan.begin, plan.end):
        row = images.rows[position][0]
        data = read_image(images.table, row)
        if len(data) != images.sizes[position, 0]:
            problem = (
                f"the image has {len(data)} bytes and had {images.sizes[position, 0]}; it changes while it is read"
            )
            raise AnnotationError(problem, path=images.table.image_path(row), remedy="pack again when it is complete")
        yield ShardImage(
            key=f"{images.first_number + position:08d}",
            extension=_extension(images.table.image_paths[row]),
            data=data,
            annotations=writer.encode(images.rows[position]),
        )


def read_image(table: AnnotationTable, row: int) -> bytes:
    """Return all bytes of an image file.

    Raises:
        AnnotationError: If the file cannot be read.
    """
    path = table.image_path(row)
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def image_file_stamp(table: AnnotationTable, row: int) -> tuple[int, int]:
    """Return the number of bytes of an image file, and the time of its last change in ns since 1970.

    Raises:
        AnnotationError: If the file is missing or not a regular file, or is an annotation file with the image in it.
    """
    path = table.image_path(row)
    if path.name.endswith(LABELME_ENDING):
        remedy = "write the images to files first, for example with lit-loader convert, and pack the result"
        raise AnnotationError("the image is embedded in an annotation file", path=path, remedy=remedy)
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    # Reading a named pipe would wait for a writer.
    if not stat.S_ISREG(state.st_mode):
        raise AnnotationError("expected an image file, got a folder or device", path=path)
    return state.st_size, state.st_mtime_ns


def _unreadable(path: Path, error: OSError) -> AnnotationError:
    settings = {"policy.missing_image": "drop"} if isinstance(error, FileNotFoundError) else None
    return AnnotationError(f"the image cannot be read ({error.strerror})", path=path, settings=settings)


def _extension(path: str) -> str:
    """Return the extension of the image file in lower case, without a dot, or ``img`` if it is not of images."""
    # Other extensions may be longer than the name in a header of a tar file.
    suffix = PurePosixPath(path).suffix.lower()
    return suffix[1:] if suffix in IMAGE_EXTENSIONS else "img"


def plan_key(plans: Sequence[ShardPlan], tables: Mapping[str, AnnotationTable], shard_bytes: int) -> str:
    """Return a key of all that decides on the bytes of shards and index, with size and time for each image."""
    digest = hashlib.blake2b(str(shard_bytes).encode(), digest_size=16)
    for plan in plans:
        digest.update(f"\0{plan.name} {plan.begin} {plan.end}".encode())
        digest.update(plan.images.sizes[plan.begin : plan.end].tobytes())
        digest.update(plan.images.times[plan.begin : plan.end].tobytes())
    for name, table in tables.items():
        texts = [name, json.dumps(table_digests(table), sort_keys=True), *table.class_names]
        digest.update("\0".join(texts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
