"""LabelMe's JSON files and the images that are embedded in them, for all who meet one."""

from __future__ import annotations

import binascii
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.formats.text_file import read_bytes
from lit_loader.errors import AnnotationError

__all__ = ["LABELME_ENDING", "MAX_LABELME_BYTES", "embedded_image", "read_labelme"]

LABELME_ENDING: Final = ".json"
"""The ending of an image's path that means the image embedded in that file."""

MAX_LABELME_BYTES: Final = 64 * 1024 * 1024
_MAX_VALUES: Final = 1_000_000  # each of two bytes may become an object of fifty


def read_labelme(root: Path, name: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        AnnotationError: If it is none in UTF-8, is larger than ``MAX_LABELME_BYTES``, nested too deeply or has too many
            values.
    """
    path, line = root / name, None
    data = read_bytes(root, name, max_bytes=MAX_LABELME_BYTES)
    try:
        if sum(map(data.count, (b"[", b"{", b","))) > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values; they do not describe one image")
        text = data.decode(
            "utf-8-sig"
        )  # json would take bytes with half of a surrogate pair, which is no text
        document = json.loads(text, object_pairs_hook=_unique)
        if b"\\u" in data:  # by which one can be written, too
            json.dumps(document, ensure_ascii=False).encode()
        if isinstance(document, dict):
            return document
        reason = "a JSON object {...} expected"
    except (RecursionError, ValueError) as error:
        reason, line = str(error)[:200], getattr(error, "lineno", None)
    raise AnnotationError(f"it is no LabelMe file: {reason}", path=path, line=line)


def embedded_image(path: Path | str) -> bytes:
    """Return the image file inside of a LabelMe file.

    Raises:
        AnnotationError: If there is none.
    """
    text = read_labelme(Path(path).parent, Path(path).name).get("imageData")
    if isinstance(text, str):
        with suppress(ValueError):
            return binascii.a2b_base64(text)
    raise AnnotationError("imageData holds no image in base64", path=path)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice; unite what it has")
    return found
