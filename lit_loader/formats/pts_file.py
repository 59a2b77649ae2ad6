"""One ``.pts`` file: ``version: 1``, ``n_points: 68``, then the points between braces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.text_file import numbers, read_bytes, read_lines

__all__ = ["MAX_PTS_BYTES", "parse_pts"]

MAX_PTS_BYTES: Final = 1024 * 1024
_VERSION: Final = re.compile(r"version\s*:\s*1(?:\.0*)?")
_COUNT: Final = re.compile(r"n_points\s*:\s*(\d{1,9})")


def parse_pts(root: Path, name: str, *, num_points: int) -> npt.NDArray[np.float64]:
    """Return the points of a file, float64 ``(num_points, 2)``, as written.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        num_points: How many there must be.

    Raises:
        AnnotationError: If the file says anything else; names file and line.
        UnsafePathError: If the name or a symbolic link leads out of ``root``.
    """
    words = read_bytes(root, name, max_bytes=MAX_PTS_BYTES).split()
    head = [b"version:", b"n_points:", str(num_points).encode(), b"{", b"}"]
    if [*words[0:1], *words[2:5], *words[-1:]] == head and words[1] in (b"1", b"1.0"):
        try:
            return np.array([float(word) for word in words[5:-1]]).reshape(num_points, 2)
        except ValueError:
            pass  # read again, for the line
    return _parse_slowly(root, name, num_points)


def _parse_slowly(root: Path, name: str, num_points: int) -> npt.NDArray[np.float64]:
    path = root / name
    lines = ((line, text.strip()) for line, text in read_lines(root, name, max_bytes=MAX_PTS_BYTES))
    filled = [(line, text) for line, text in lines if text]
    last = filled[-1][0] if filled else 1
    filled += [(last, "")] * 3

    def wrong(place: int, expected: str) -> AnnotationError:
        line, text = filled[place]
        found = shorten(repr(text)) if text else "the end of the file"
        return AnnotationError(f"{found} stands where {expected} should", path=path, line=line)

    if not _VERSION.fullmatch(filled[0][1]):
        raise wrong(0, "'version: 1'")
    count = _COUNT.fullmatch(filled[1][1])
    if count is None:
        raise wrong(1, "'n_points: <number>'")
    if int(count[1]) != num_points:
        message = f"n_points is {int(count[1])}; the schema has {num_points} points"
        raise AnnotationError(message, path=path, line=filled[1][0])
    if filled[2][1] != "{":
        raise wrong(2, "'{'")
    points = []
    for place in range(3, 3 + num_points):
        texts = filled[place][1].split() if place < len(filled) else []
        if len(texts) != 2:
            raise wrong(min(place, len(filled) - 1), f"point {place - 2} of {num_points}, as x and y,")
        points.append(numbers(texts, path=path, line=filled[place][0]))
    if filled[3 + num_points][1] != "}":
        raise wrong(3 + num_points, "'}'")
    if filled[4 + num_points][1]:
        raise wrong(4 + num_points, "the end of the file")
    return np.array(points)
