"""LabelMe's JSON files and the images embedded in them.

This module is separate from the reader because decoders and image headers also need it, and its import is cheap.
"""

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
"""Ending of a path in a table that means the image embedded in that file."""

MAX_LABELME_BYTES: Final = 64 * 1024 * 1024
_MAX_VALUES: Final = 1_000_000  # a value of two bytes may become an object of fifty


def read_labelme(root: Path, name: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        AnnotationError: If the file is not a JSON object in UTF-8, is larger than ``MAX_LABELME_BYTES``, is nested too
            deeply or has too many values.
    """
    line = None
    data = read_bytes(root, name, max_bytes=MAX_LABELME_BYTES)
    try:
        # Counted in the bytes, because the parsed values would already fill the memory.
        if sum(map(data.count, (b"[", b"{", b","))) > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values; they do not describe one image")
        # Decoded here, since json accepts bytes with lone surrogates, which are not text.
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_distinct_keys)
        if b"\\u" in data:  # an escape can also write a lone surrogate; encode() refuses it
            json.dumps(document, ensure_ascii=False).encode()
        if isinstance(document, dict):
            return document
        reason = "a JSON object {...} expected"
    except (RecursionError, ValueError) as error:
        reason = str(error)[:200]
        line = getattr(error, "lineno", None)
    raise AnnotationError(f"it is not a LabelMe file: {reason}", path=root / name, line=line)


def embedded_image(path: Path | str) -> bytes:
    """Return the encoded image inside a LabelMe file.

    Raises:
        AnnotationError: If ``imageData`` is not base64.
    """
    text = read_labelme(Path(path).parent, Path(path).name).get("imageData")
    if isinstance(text, str):
        with suppress(ValueError):
            return binascii.a2b_base64(text)
    raise AnnotationError("imageData holds no image in base64", path=path)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two values without a word.
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a repeated key; merge its values")
    return value
