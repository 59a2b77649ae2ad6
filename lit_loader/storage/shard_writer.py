"""Write a shard: a tar file with the bytes of images and a JSON object for each, the same bytes every time.

NOTE [Layout of a shard]
    A shard is a WebDataset: the members of a sample have one name up to the first dot and follow each other, here
    ``00000012.jpg`` and ``00000012.json``. Headers have no owner, time or mode of the original file, so equal images
    give equal shards on every host.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.foundation.files import new_file
from lit_loader.storage.catalog import DIGEST_BYTES
from lit_loader.types import IndexArray

__all__ = ["Shard", "ShardImage", "image_digest", "member_bytes", "shard_capacity", "write_shard"]

_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = 2 * _BLOCK
_MODE: Final = 0o644


@dataclass(frozen=True, kw_only=True)
class ShardImage:
    """Image to write to a shard.

    Args:
        key: Name of its members up to the dot.
        extension: Extension of the image, without a dot.
        data: All bytes of its file.
        annotations: JSON object, encoded.
    """

    key: str
    extension: str
    data: bytes
    annotations: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """Images in a shard that was written.

    Args:
        num_bytes: Size of the shard.
        digest: Digest of all of its bytes in hexadecimal digits.
        starts: int64 ``(num_images,)``, first byte of each image.
        lengths: int64 ``(num_images,)``, number of bytes of each image.
        digests: uint8 ``(num_images, 16)``, `image_digest` of each image.
    """

    num_bytes: int
    digest: str
    starts: IndexArray
    lengths: IndexArray
    digests: npt.NDArray[np.uint8]


def image_digest(data: bytes) -> bytes:
    """Return 16 bytes that are different for different images."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def member_bytes(length: int) -> int:
    """Return the number of bytes that a member takes in a tar file, with its header."""
    return _BLOCK + -(-length // _BLOCK) * _BLOCK


def shard_capacity(shard_bytes: int) -> int:
    """Return the number of bytes that the members of a shard of at most ``shard_bytes`` may take."""
    return shard_bytes // tarfile.RECORDSIZE * tarfile.RECORDSIZE - _END


def write_shard(path: Path, images: Iterable[ShardImage]) -> Shard:
    """Write a shard; ``path`` appears when it is complete.

    Args:
        path: The file to create or replace.
        images: Its images, in order; one at a time is in memory.

    Raises:
        OSError: If the file cannot be written.
    """
    starts: list[int] = []
    lengths: list[int] = []
    digests: list[bytes] = []
    position = 0
    shard_digest = blake2b(digest_size=DIGEST_BYTES)
    with new_file(path, mode=_MODE) as file:
        for image in images:
            header = _header(f"{image.key}.{image.extension}", len(image.data))
            starts.append(position + len(header))
            lengths.append(len(image.data))
            digests.append(image_digest(image.data))
            record_header = _header(f"{image.key}.json", len(image.annotations))
            for part in (header, image.data, record_header, image.annotations):
                block = part + b"\0" * (-len(part) % _BLOCK)
                shard_digest.update(block)
                file.write(block)
                position += len(block)
        # Tar files end with two blocks of zeros, and are filled up to whole records.
        padding = b"\0" * (-(position + _END) % tarfile.RECORDSIZE + _END)
        shard_digest.update(padding)
        file.write(padding)
    return Shard(
        num_bytes=position + len(padding),
        digest=shard_digest.hexdigest(),
        starts=np.array(starts, np.int64),
        lengths=np.array(lengths, np.int64),
        digests=np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES),
    )


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = _MODE
    # GNU's format also holds a file of more than 8 GiB, and has no extended headers for these names.
    return info.tobuf(tarfile.GNU_FORMAT)
