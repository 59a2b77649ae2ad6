"""WIDER FACE's ``wider_face_train_bbx_gt.txt``: the path of an image, the number of its faces, a line for each face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

from lit_loader.annotations.formats.folder import is_image_name
from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import numbers
from lit_loader.errors import AnnotationError

__all__ = ["WiderFaceReader"]

_FLAGS: Final = {
    "blur": ("clear", "normal", "heavy"),
    "expression": ("typical", "exaggerate"),
    "illumination": ("normal", "extreme"),
    "invalid": ("no", "yes"),
    "occlusion": ("none", "partial", "heavy"),
    "pose": ("typical", "atypical"),
}
"""Meaning of 0, 1, 2 for each flag, from the readme of the data set, in the order of a line."""

_NO_FACE: Final = ["0"] * 10
_END: Final = ".jpg"  # looks like another path, so that it completes the last image


@dataclass(frozen=True, kw_only=True)
class WiderFaceReader(Reader):
    """Reads WIDER FACE's own list of faces.

    A face is ``x y w h blur expression illumination invalid occlusion pose``. ``invalid`` is the difficult flag: such
    faces are not recognizable, and a detector should neither learn them nor be punished for missing them. The other
    five are attributes. After a count of 0 there may be one line of zeros. The event in a path (``0--Parade``) does
    not become an attribute.

    Args:
        image_dir: Folder that paths are relative to (``WIDER_train/images``), itself relative to the root.
        class_name: Class of every face.

    Source:
        Yang et al. 2016, WIDER FACE: A Face Detection Benchmark; the readme of ``wider_face_split``.
    """

    format: ClassVar[str] = "widerface"
    description: ClassVar[str] = "WIDER FACE's lists, wider_face_train_bbx_gt.txt and others; NAME: the file"

    image_dir: str = "."
    class_name: str = "face"

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images and faces of a list."""
        rows.declare(attributes={name: _FLAGS[name] for name in _FLAGS if name != "invalid"})
        block: list[tuple[int, str]] = []
        # A block ends where the next path begins, so the count is checked against the lines that follow.
        for line, text in chain(self.lines(rows, unit), [(0, _END)]):
            text = text.strip()
            if block and is_image_name(text):
                self._add(rows, block)
                block.clear()
            if text:
                block.append((line, text))

    def _add(self, rows: Rows, block: Sequence[tuple[int, str]]) -> None:
        """Add an image from its path, its count and its faces; a malformed line makes the whole image malformed."""
        path_line, path = block[0]
        line, count = block[1] if len(block) > 1 else (path_line, "")
        lines = block[2:]
        if count == "0" and [text.split() for _, text in lines] == [_NO_FACE]:
            lines = []
        faces = []
        try:
            if not is_image_name(path) or not count.isdecimal():
                rule = "expected the path of an image and the number of its faces, each on its own line"
                raise AnnotationError(f"{rule}; format 'class_list' reads paths alone")
            # Compared as text: a number of thousands of digits is slow to convert.
            if count.lstrip("0") != str(len(lines) or ""):
                raise AnnotationError(f"{len(lines)} faces follow the number {count[:20]}")
            for line, text in lines:
                faces.append((line, *_face(text.split())))
        except AnnotationError as error:
            rows.malformed(error.message, line=line)
            return
        image = rows.image(path, folder=self.image_dir, line=path_line)
        for line, box, flags in faces:
            # Not an attribute: data sets have a flag of this meaning.
            difficult = flags.pop("invalid") == "yes"
            name = self.class_name
            rows.object(image, class_name=name, box=box, difficult=difficult, attributes=flags, line=line)


def _face(fields: list[str]) -> tuple[list[float], dict[str, str]]:
    """Return the corners of a face, and its flags by name."""
    if len(fields) != 10:
        raise AnnotationError(f"{len(fields)} numbers; a face has 10: x y w h {' '.join(_FLAGS)}")
    flags = {}
    for (name, meanings), flag in zip(_FLAGS.items(), fields[4:], strict=True):
        if flag not in ("0", "1", "2")[: len(meanings)]:
            raise AnnotationError(f"{name} is {flag[:50]!r}; 0 to {len(meanings) - 1} expected")
        flags[name] = meanings[int(flag)]
    x, y, width, height = numbers(fields[:4])
    return [x, y, x + width, y + height], flags
