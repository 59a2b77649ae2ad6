"""Holes in sparse files: free the disk space of a part of a file."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

__all__ = ["punch_hole"]

_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of <linux/falloc.h>

# Python has no name for `fallocate(2)`. Other systems have no such function, and Windows not even a CDLL(None).
_FALLOCATE: Final = ctypes.CDLL(None, use_errno=True).fallocate if sys.platform == "linux" else None


def punch_hole(descriptor: int, offset: int, num_bytes: int) -> None:
    """Free the disk space of a range of a file, which reads as zeros then.

    Raises:
        OSError: If the file system cannot do it.
    """
    if _FALLOCATE is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    while _FALLOCATE(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(num_bytes)):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
