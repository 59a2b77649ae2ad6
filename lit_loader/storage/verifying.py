"""Compare the bytes of packed shards with the digests in their catalog."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np

from lit_loader.storage.catalog import DIGEST_BYTES, Catalog
from lit_loader.storage.tar_index import ReadAt

__all__ = ["wrong_images"]

_READ_BYTES: Final = 8 << 20


def wrong_images(catalog: Catalog, number: int, read_at: ReadAt) -> list[int] | None:
    """Compare an object with the digests of a catalog.

    Args:
        catalog: The catalog, with digests of images and objects.
        number: Number of the object.
        read_at: Reads the object.

    Returns:
        None if the object has its digest; else the slots of the images that differ, an empty list if only headers or
        annotations differ.
    """
    assert catalog.digests is not None
    assert catalog.object_digests is not None
    slots = np.flatnonzero(catalog.object_of == number)
    slots = slots[np.argsort(catalog.starts[slots], kind="stable")]
    object_digest = blake2b(digest_size=DIGEST_BYTES)
    differing: list[int] = []
    # Bytes from `position` on that were read but belong to images that are not complete.
    buffer = b""
    position = 0
    pending = 0
    while data := read_at(position + len(buffer), _READ_BYTES):
        object_digest.update(data)
        buffer += data
        while pending < len(slots):
            slot = slots[pending]
            start = int(catalog.starts[slot]) - position
            end = start + int(catalog.lengths[slot])
            if end > len(buffer):
                break
            if blake2b(buffer[start:end], digest_size=DIGEST_BYTES).digest() != catalog.digests[slot].tobytes():
                differing.append(int(slot))
            pending += 1
        start = int(catalog.starts[slots[pending]]) - position if pending < len(slots) else len(buffer)
        consumed = min(max(start, 0), len(buffer))
        buffer = buffer[consumed:]
        position += consumed
    if object_digest.hexdigest() == catalog.object_digests[number]:
        return None
    # The object ends before its last images.
    return [*differing, *map(int, slots[pending:])]
