"""Fingerprints: a short hash of plain values and arrays, the same on every machine."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

__all__ = ["fingerprint_of"]


class _Hasher(Protocol):
    def update(self, data: Any, /) -> None: ...


def fingerprint_of(*parts: Any) -> str:
    """Return 32 hex digits for the parts; their order, number, types and an array's shape all matter.

    An array is read where it lies, a gigabyte a second; nothing is copied but what is not contiguous.

    Args:
        parts: None, bool, int, float, str, numpy arrays of numbers, and tuples of these.

    Raises:
        TypeError: If a part is anything else.
    """
    hasher = blake2b(digest_size=16)
    _feed(hasher, parts)
    return hasher.hexdigest()


def _feed(hasher: _Hasher, part: Any) -> None:
    if isinstance(part, tuple):
        hasher.update(b"t" + struct.pack("<Q", len(part)))
        for each in part:
            _feed(hasher, each)
    elif isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
        array = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<"))
        hasher.update(b"a")
        _feed(hasher, (array.dtype.str, part.shape))
        hasher.update(array.reshape(-1).data)
    elif part is None or isinstance(part, bool | int | float | str):
        text = part.hex() if isinstance(part, float) else str(part)
        data = text.encode()
        hasher.update(type(part).__name__[:1].encode() + struct.pack("<Q", len(data)) + data)
    else:
        raise TypeError(
            f"a fingerprint is made of None, bool, int, float, str, arrays of numbers and tuples, got "
            f"{type(part).__name__}; return these from `_identity`"
        )
