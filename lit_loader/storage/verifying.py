"""Compare the bytes of packed shards with the digests in their catalog."""

from __future__ import annotations

from collections import deque
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
        None if the object and all of its images have their digests; else the slots of the images that differ, an empty
        list if only headers or annotations differ.
    """
    assert catalog.digests is not None
    assert catalog.object_digests is not None
    slots = np.flatnonzero(catalog.object_of == number)
    pending = deque(slots[np.argsort(catalog.starts[slots], kind="stable")].tolist())
    object_digest = blake2b(digest_size=DIGEST_BYTES)
    digest = blake2b(digest_size=DIGEST_BYTES)
    differing: list[int] = []
    position = 0
    # First byte that may belong to the next image.
    free = 0
    while data := read_at(position, _READ_BYTES):
        object_digest.update(data)
        stop = position + len(data)
        while pending:
            slot = pending[0]
            start = int(catalog.starts[slot])
            end = start + int(catalog.lengths[slot])
            # A range in another image is forged.
            if start >= free:
                digest.update(data[max(start - position, 0) : max(end - position, 0)])
                if end > stop:
                    break
                free = end
                if digest.digest() != catalog.digests[slot].tobytes():
                    differing.append(slot)
                digest = blake2b(digest_size=DIGEST_BYTES)
            else:
                differing.append(slot)
            pending.popleft()
        position = stop
    # The object ends before its last images.
    differing += pending
    is_whole = object_digest.hexdigest() == catalog.object_digests[number]
    return None if is_whole and not differing else differing
