"""``.pts`` files (300-W, Menpo, 300-VW): ``version: 1``, ``n_points: 68``, and the points of one face in braces."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import numbers, read_bytes
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError, UnsafePathError

__all__ = ["MAX_PTS_BYTES", "PtsReader"]

MAX_PTS_BYTES: Final = 1024 * 1024
_ENDING: Final = ".pts"
_COUNT: Final = re.compile(r"n_points\s*:\s*\d{1,9}")
_POINT: Final = re.compile(r"\S+\s+\S+")
_EXPECTED: Final = {
    re.compile(r"version\s*:\s*1(?:\.0*)?"): "'version: 1'",
    _COUNT: "'n_points: <number>'",
    re.compile(r"\{"): "'{'",
    re.compile(r"\}"): "'}'",
    re.compile(""): "the end of the file",
}
"""The lines of a file with their descriptions; the lines of the points follow the first three."""


@dataclass(frozen=True, kw_only=True)
class PtsReader(Reader):
    """Reads one ``.pts`` file, the files of a folder, or those that match a pattern, sorted by name.

    NAME is a file, a folder, or a pattern such as ``"*/annot/*.pts"`` (``*``, ``?`` and ``[...]`` within a part, ``**``
    for any folders). The image of ``indoor_020.pts`` is the file ``indoor_020`` with any ending of
    ``IMAGE_EXTENSIONS``, in the same folder or in ``image_dir``. The box of a face is the tight box of its points.

    Args:
        image_dir: Folder of a file's image, relative to the folder of the file and under the root: ``"../imgs"`` for
            300-VW's ``<clip>/annot`` and ``<clip>/imgs``. None means the folder of the file.
        class_name: Class of every face.
        schema: Keypoint schema, as `keypoint_schema` takes it.
        one_based: Whether to subtract one from every coordinate. By default coordinates are kept as written; 300-W
            counts from one, as in MATLAB.

    Source:
        Sagonas et al. 2013, 300 Faces in-the-Wild Challenge: the annotations' format.
    """

    format: ClassVar[str] = "pts"
    description: ClassVar[str] = ".pts (300-W, Menpo), a file an object; NAME: their folder, or *.pts"

    image_dir: str | None = None
    class_name: str = "face"
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_68"
    one_based: bool = False

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the files that a name means."""
        return Inputs(files=folder.find_files(name, ending=_ENDING))

    def read(self, rows: Rows, unit: str) -> None:
        """Add the face of a file."""
        schema = keypoint_schema(self.schema)
        points = _read_points(rows.root, unit, num_points=len(schema.names)) - float(self.one_based)
        stem = unit.removesuffix(_ENDING)
        folder, _, name = stem.rpartition("/")
        # The user's own option may contain "..", but not lead out of the root.
        joined = posixpath.normpath(posixpath.join(folder, self.image_dir or "."))
        if joined.startswith(("..", "/")):
            reason = f"image_dir={self.image_dir!r} of {folder or '.'!r} leads out of the data set's root"
            raise UnsafePathError(f"{reason}; pass a higher root")
        rows.declare(keypoints=schema)
        # The name has no extension, so the image may have any.
        image = rows.image(name, folder=joined, image_id=stem)
        rows.object(image, class_name=self.class_name, box=None, points=points)


def _read_points(root: Path, name: str, *, num_points: int) -> npt.NDArray[np.float64]:
    """Return the points of a file, shape ``(num_points, 2)``, as written.

    Raises:
        AnnotationError: If the file holds anything else; names file and line.
    """
    path = root / name
    # An invalid byte is replaced, so that the error below names its line.
    content = read_bytes(root, name, max_bytes=MAX_PTS_BYTES).decode("utf-8-sig", "replace")
    stripped = (line.strip() for line in content.split("\n"))
    lines = [(number, text) for number, text in enumerate(stripped, 1) if text]
    points = []
    patterns = list(_EXPECTED)
    for i, pattern in enumerate([*patterns[:3], *[_POINT] * num_points, *patterns[3:]]):
        line, text = lines[i] if i < len(lines) else (lines[-1][0] if lines else 1, "")
        if not pattern.fullmatch(text):
            expected = _EXPECTED.get(pattern, f"point {i - 2} of {num_points}, as x and y")
            actual = shorten(repr(text)) if text else "the end of the file"
            raise AnnotationError(f"expected {expected}, got {actual}", path=path, line=line)
        # Compared before the points are read, because this message says more than a missing point.
        if pattern is _COUNT and int(text.partition(":")[2]) != num_points:
            raise AnnotationError(f"{text}; the schema has {num_points} points", path=path, line=line)
        if pattern is _POINT:
            points.append(numbers(text.split(), path=path, line=line))
    return np.array(points)
