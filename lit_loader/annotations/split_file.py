"""Split file: a JSON file that names the part of each image of a data set, whatever the format of its annotations.

NOTE [Split file]
    ``{"lit_loader_split": 1, "folds": true, "parts": ["0", "1"], "images": [["a.jpg", 0], ["b.jpg", 1]]}`` and further
    keys that are not read. Images are named by their paths relative to the root of the data set, so the file is valid
    for any format and on any machine. It is read entry by entry, and no further than the images that the data set has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.formats.coco.reader import SURROGATE
from lit_loader.annotations.formats.json_file import RepeatedKey, read_entries
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import new_file

__all__ = ["MAX_PARTS", "SplitFile"]

MAX_PARTS: Final = 1000
"""Largest number of splits or folds."""

_VERSION: Final = 1
_VERSION_KEY: Final = "lit_loader_split"
# Keys that are read, and whether their value is a list.
_IS_LIST: Final = {_VERSION_KEY: False, "folds": False, "parts": True, "images": True}
_MAX_PART_NAME: Final = 100


@dataclass(frozen=True, kw_only=True)
class SplitFile:
    """Part of each image of a data set; see NOTE [Split file].

    Attributes:
        parts: Names of the parts.
        is_folds: True if each part is a fold of a cross-validation, False if it is a split such as ``train``.
        part_by_image: Position of its part in ``parts`` for each image path.

    Raises:
        ValueError: If a path is not Unicode.
    """

    parts: tuple[str, ...]
    is_folds: bool
    part_by_image: Mapping[str, int]

    def __post_init__(self) -> None:
        for image in self.part_by_image:
            # A byte that is not UTF-8 becomes half of a surrogate pair, which readers of JSON refuse.
            if SURROGATE.search(image):
                raise ValueError(f"the image {image!r} is not Unicode, which JSON requires; rename its file")

    @property
    def key(self) -> str:
        """Digest that is equal for files with the same parts of the same images, in any order of the images."""
        digest = hashlib.blake2b(digest_size=16)
        # With positions, because a run selects a fold by its position and a split by its name.
        digest.update(json.dumps([self.is_folds, self.parts, sorted(self.part_by_image.items())]).encode())
        return digest.hexdigest()

    def write(self, path: Path | str, settings: Mapping[str, Any]) -> None:
        """Write the file; the same split gives the same bytes.

        Args:
            path: The file, which appears only when it is complete.
            settings: How the split was made, as JSON data for people who read the file.

        Raises:
            OSError: If the file cannot be written.
        """
        head = {_VERSION_KEY: _VERSION, "folds": self.is_folds, "parts": self.parts, "made with": settings}
        text = json.dumps(head, indent=1)
        lines = [json.dumps([image, part], ensure_ascii=False) for image, part in sorted(self.part_by_image.items())]
        # One line for each image, so that people can read and compare the file.
        images = ",\n".join(lines)
        data = f'{text[:-2]},\n "images": [\n{images}\n]\n}}\n'.encode()
        with new_file(Path(path), mode=0o666) as file:
            file.write(data)

    @classmethod
    def read(cls, path: Path | str, *, max_images: int) -> SplitFile:
        """Read a file.

        Args:
            path: The file.
            max_images: Number of images that the data set has; a file with more of them is refused.

        Raises:
            AnnotationError: If the file cannot be read or is not a split file.
            UnsafePathError: If the path of an image leads out of the root.
        """
        file = _Parser(Path(path).absolute(), max_images)
        read_entries(file.path.parent, file.path.name, file.take)
        return cls(parts=file.checked_parts(), is_folds=file.is_folds(), part_by_image=file.part_by_image)


class _Parser:
    """Content of a split file while it is read.

    Args:
        path: The file, for messages.
        max_images: As for `SplitFile.read`.
    """

    def __init__(self, path: Path, max_images: int) -> None:
        self.path = path
        self.part_by_image: dict[str, int] = {}
        self._max_images = max_images
        self._head: dict[str, Any] = {}

    def take(self, key: str, first: int, entries: Sequence[Any]) -> None:
        """Add entries of a list of the file, or, with ``first`` -1, a value that is not a list."""
        is_list = first >= 0
        if key in _IS_LIST and is_list != _IS_LIST[key]:
            value = shorten(repr(list(entries) if is_list else entries[0]))
            raise self._error(f"{key!r} must {'be' if _IS_LIST[key] else 'not be'} a list, got {value}")
        if key == "images":
            for position, entry in enumerate(entries, first):
                self._add_image(position, entry)
        elif key == "parts":
            parts = self._head.setdefault(key, [])
            parts += entries
            if len(parts) > MAX_PARTS:
                raise self._error(f"it has more than {MAX_PARTS} parts")
        elif key in _IS_LIST:
            self._head[key] = entries[0]

    def _add_image(self, position: int, entry: Any) -> None:
        place = f"images[{position}]"
        is_pair = isinstance(entry, list) and len(entry) == 2
        # `isinstance` would accept `true`, since bool is a subclass of int.
        if not is_pair or not isinstance(entry[0], str) or type(entry[1]) is not int or isinstance(entry, RepeatedKey):
            raise self._error(f"{place} must be [path, position of its part], got {shorten(repr(entry))}")
        image, part = entry
        check_relative(image, source=self.path)
        if image in self.part_by_image:
            raise self._error(f"{place} repeats the image {shorten(repr(image))}")
        if len(self.part_by_image) == self._max_images:
            raise self._error(f"it names more than the {self._max_images} images of the data set")
        # The list of parts may follow, so its length is compared at the end.
        if not 0 <= part < MAX_PARTS:
            raise self._error(f"{place} is in part {part}; parts are numbered from 0")
        self.part_by_image[image] = part

    def checked_parts(self) -> tuple[str, ...]:
        """Return the names of the parts after the last entry.

        Raises:
            AnnotationError: If the file is not a split file, or an image is in a part without a name.
        """
        version = self._head.get(_VERSION_KEY)
        if type(version) is not int or version != _VERSION:
            message = f"expected a split file with {_VERSION_KEY!r}: {_VERSION}, got {shorten(repr(version))}"
            raise self._error(message)
        parts = self._head.get("parts", [])
        is_name = [isinstance(part, str) and 0 < len(part) <= _MAX_PART_NAME for part in parts]
        if not parts or not all(is_name) or len(set(parts)) < len(parts):
            raise self._error(f"'parts' must be different names, got {shorten(repr(parts))}")
        largest = max(self.part_by_image.values(), default=0)
        if largest >= len(parts):
            raise self._error(f"an image is in part {largest}, but there are only {len(parts)} parts from 0 on")
        return tuple(parts)

    def is_folds(self) -> bool:
        """Return the value of ``folds``.

        Raises:
            AnnotationError: If it is neither true nor false.
        """
        folds = self._head.get("folds")
        if not isinstance(folds, bool):
            raise self._error(f"'folds' must be true or false, got {shorten(repr(folds))}")
        return folds

    def _error(self, message: str) -> AnnotationError:
        return AnnotationError(message, path=self.path, remedy="write the file again with `lit-loader split`")
