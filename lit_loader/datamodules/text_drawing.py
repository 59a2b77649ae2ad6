"""Texts of objects on an image: readable on their background and without overlaps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lit_loader.foundation.escaping import printable

__all__ = [
    "Font",
    "Rectangle",
    "draw_texts",
    "figure_text",
    "font_for",
    "free_place",
    "overlap",
    "short_text",
    "text_colour",
    "wrapped_text",
]

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont
"""A font of Pillow."""

# Pillow's default font has only ASCII letters. DejaVu Sans has Greek, Cyrillic and Arabic ones, the others Chinese,
# Japanese and Korean ones. Pillow searches the system's folders of fonts.
_FONT_FILES: Final = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "msyh.ttc")
_DEJAVU_OF_MATPLOTLIB: Final = "mpl-data/fonts/ttf/DejaVuSans.ttf"
# Number of characters that decide on a font.
_MAX_CHARACTERS: Final = 500
# A private character, which fonts draw as their sign for missing ones.
_MISSING: Final = "\U0010fffd"

Rectangle: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, inclusive."""


def draw_texts(
    canvas: Tensor, boxes: Tensor | None, texts: Sequence[str], colours: Sequence[str], *, font_size: int | None = None
) -> Tensor:
    """Draw a text at each box, or all texts below each other without boxes; no text covers another.

    Texts without room are left out, and a note counts them.

    Args:
        canvas: uint8 ``(3, H, W)``.
        boxes: float ``(N, 4)``, xyxy in pixels of the canvas, or None. Earlier boxes get their place first.
        texts: One text for each box.
        colours: Background colours ``#rrggbb``, one for each box.
        font_size: Size of the font in pixels, or None for at least 12, and more on large canvases.
    """
    if not texts:
        return canvas
    image = Image.fromarray(canvas.permute(1, 2, 0).numpy())
    draw = ImageDraw.Draw(image)
    font = font_for(texts, font_size or max(12, max(image.size) // 45))
    line_height = int(font.getbbox("Ag")[3]) + 3
    rectangles: list[Rectangle] = []
    # Without boxes the texts go down the left edge: each is above the top of its row.
    corners = [[0.0, (row + 1.0) * line_height, image.width, image.height] for row in range(len(texts))]
    if boxes is not None:
        corners = boxes.tolist()

    def add(text: str, colour: str, box: Sequence[float]) -> bool:
        width = int(draw.textlength(text, font)) + 5
        place = free_place(box, (width, line_height), image.size, rectangles)
        if place is None:
            return False
        draw.rectangle(place, fill=colour)
        draw.text((place[0] + 3, place[1] + 1), text, fill=text_colour(colour), font=font)
        rectangles.append(place)
        return True

    labels = [short_text(_drawable(short_text(text, 40), font), 40) for text in texts]
    placed = [add(label, colour, box) for label, colour, box in zip(labels, colours, corners, strict=True)]
    # The note needs a place too, so it comes last, at the bottom of the image.
    if not all(placed):
        bottom = [0.0, image.height, image.width, image.height]
        add(f"{placed.count(False)} labels without room", "#000000", bottom)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def font_for(texts: Iterable[str], size: int) -> Font:
    """Return an installed font that has the characters of texts, or the one that lacks the fewest.

    Args:
        texts: The texts, as `draw_texts` and `wrapped_text` get them.
        size: Size of the font in pixels.
    """
    # Others are drawn as escape sequences, see `printable`.
    characters = {c for text in texts for c in text if c.isprintable() and not c.isascii()}
    # A hostile file may use every character there is.
    characters = set(sorted(characters)[:_MAX_CHARACTERS])
    fonts: list[tuple[int, Font]] = []
    for font in _fonts(size):
        num_missing = sum(not _has_glyph(font, character) for character in characters)
        if not num_missing:
            return font
        fonts.append((num_missing, font))
    return min(fonts, key=lambda choice: choice[0])[1]


def _fonts(size: int) -> Iterator[Font]:
    """Yield Pillow's font, then the installed ones of the list; lazily, because a search may take a while."""
    yield ImageFont.load_default(size)
    matplotlib = find_spec("matplotlib")
    folders = matplotlib.submodule_search_locations if matplotlib else None
    for file in [*(str(Path(folder, _DEJAVU_OF_MATPLOTLIB)) for folder in folders or ()), *_FONT_FILES]:
        font = _load_font(file, size)
        if font is not None:
            yield font


@lru_cache(maxsize=64)
def _load_font(file: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(file, size)
    except OSError:
        return None


def _has_glyph(font: Font, character: str) -> bool:
    mask = font.getmask(character)
    missing = font.getmask(_MISSING)
    return mask.size != missing.size or bytes(mask) != bytes(missing)


def _drawable(text: str, font: Font) -> str:
    """Replace characters that a font lacks by escape sequences, because equal empty boxes would hide differences."""
    return "".join(
        character if character.isascii() or _has_glyph(font, character) else character.encode("unicode_escape").decode()
        for character in text
    )


def free_place(
    box: Sequence[float], size: tuple[int, int], canvas: tuple[int, int], rectangles: Sequence[Rectangle]
) -> Rectangle | None:
    """Return a free place for a text at a box, or None.

    Args:
        box: Left, top, right and bottom.
        size: Width and height of the text.
        canvas: Width and height of the image.
        rectangles: Places of the other texts, which must not be covered.
    """
    x_min, top, x_max, bottom = (round(side) for side in box)
    width, height = size
    at_edges = (top - height, bottom, top, bottom - height)
    places = [(x, y) for y in at_edges for x in (x_min, x_max - width)]
    # If many objects are at one place, their texts go down the sides of the box.
    rows = range(top, max(top + 1, bottom - height), height)
    places += [(x, y) for y in rows for x in (x_min, x_max - width, x_min - width, x_max)]
    for x, y in places:
        # The text of a box at the rim moves into the image.
        # Negative if the text is wider than the image.
        x = min(max(x, 0), canvas[0] - width)
        y = min(max(y, 0), canvas[1] - height)
        place = (x, y, x + width - 1, y + height - 1)
        if x >= 0 and y >= 0 and not any(overlap(place, other) for other in rectangles):
            return place
    return None


def overlap(first: Rectangle, second: Rectangle) -> bool:
    """Return True if two rectangles share a pixel."""
    is_beside = first[2] < second[0] or second[2] < first[0]
    return not (is_beside or first[3] < second[1] or second[3] < first[1])


def text_colour(background: str) -> str:
    """Return black or white, whichever contrasts more with a background colour ``#rrggbb``.

    Source:
        WCAG 2.2, relative luminance and contrast ratio.
    """
    channels = [int(background[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"


def short_text(text: str, length: int = 28) -> str:
    """Return a text, cut to at most ``length`` characters with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "\u2026"


def wrapped_text(text: str, font: Font, width: int, *, max_lines: int) -> list[str]:
    """Break a text into lines of about a width in pixels, within words where paths are long; the last may be cut.

    Args:
        text: The text; line breaks become spaces, and other control characters escape sequences.
        font: Its font.
        width: Width of a line in pixels.
        max_lines: Maximum number of lines.
    """
    # Pillow refuses to measure very long texts; no letter is narrower than a pixel.
    line = _drawable(printable(text[: width * max_lines]).replace("\n", " "), font)
    # Wide letters need fewer columns; the margin is for lines with more of them than the text has on average.
    num_columns = int(0.95 * width * len(line) / max(1.0, font.getlength(line)))
    return textwrap.wrap(line, max(8, num_columns), max_lines=max_lines, placeholder="\u2026", break_on_hyphens=False)


def figure_text(text: str, length: int = 28) -> str:
    """Return a short, single-line text with escaped dollar signs, which matplotlib would draw as a formula."""
    return short_text(printable(text).replace("\n", " "), length).replace("$", r"\$")
