"""Galleries: captioned pictures in sections, saved as an HTML page or as PNG files, or shown in a notebook."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from lit_loader.datamodules.text_drawing import font_for, wrapped_text
from lit_loader.errors import SettingError
from lit_loader.foundation.files import new_file
from lit_loader.inspection.page import Page

__all__ = ["Gallery", "Picture", "encode_picture"]

# Pictures of one PNG file, and their pixels: more would be too small to see on a screen.
_MAX_PICTURES: Final = 25
_MAX_PIXELS: Final = 2**23
_MARGIN: Final = 12
_LINE: Final = 19
_CAPTION_LINES: Final = 3
_EMPTY_WIDTH: Final = 448
_QUALITY: Final = 92
_SIGNATURE: Final = b"lit_loader gallery"

Picture: TypeAlias = tuple[bytes, str]
"""A JPEG or PNG file, and its caption."""


def encode_picture(image: Tensor) -> bytes:
    """Return an image as a JPEG file.

    Args:
        image: uint8 ``(3, H, W)``.
    """
    buffer = io.BytesIO()
    # Without subsampling, which would blur coloured lines of one pixel.
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()


@dataclass(kw_only=True)
class Section:
    """Pictures under a heading.

    Attributes:
        heading: The heading, or ``""``.
        pictures: The pictures.
        texts: Paragraphs above them.
        columns: Headings of a table below them.
        rows: Rows of the table.
    """

    heading: str = ""
    pictures: list[Picture] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


class Gallery:
    """Captioned pictures in sections; a notebook shows them as the value of a cell.

    Args:
        title: Title of the page.

    Attributes:
        sections: The sections, in order.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.sections: list[Section] = []

    def add_section(self, heading: str = "", *texts: str) -> Section:
        """Begin a section, to which `add` adds pictures, and return it.

        Args:
            heading: Heading, or ``""`` for none.
            *texts: Paragraphs above its pictures.
        """
        self.sections.append(Section(heading=heading, texts=list(texts)))
        return self.sections[-1]

    def add(self, image: Tensor | bytes, caption: str) -> None:
        """Add a picture to the last section.

        Args:
            image: uint8 ``(3, H, W)``, or the content of a JPEG or PNG file.
            caption: Text below it.
        """
        if not self.sections:
            self.add_section()
        data = encode_picture(image) if isinstance(image, Tensor) else image
        self.sections[-1].pictures.append((data, caption))

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of all sections, for `Page.add_pictures`."""
        return [picture for section in self.sections for picture in section.pictures]

    def __len__(self) -> int:
        return sum(len(section.pictures) for section in self.sections)

    def page(self) -> Page:
        """Return the gallery as a page."""
        page = Page(self.title)
        for section in self.sections:
            if section.heading:
                page.add_heading(section.heading)
            for text in section.texts:
                page.add_text(text)
            if section.pictures:
                page.add_pictures(section.pictures)
            if section.rows:
                page.add_table(section.columns, section.rows)
        return page

    def save(self, path: Path | str) -> list[Path]:
        """Write the gallery, as HTML or PNG by the ending of the path.

        A PNG file has up to 25 pictures of one section, and no tables; further files are numbered: ``show-2.png``,
        ``show-3.png``. Files of an earlier gallery with higher numbers are deleted.

        Args:
            path: File to write.

        Returns:
            The files.

        Raises:
            SettingError: If the ending is another one.
            OSError: If a file cannot be written.
        """
        path = Path(path)
        check_ending(path)
        if path.suffix.lower() == ".html":
            self.page().save(path)
            return [path]
        paths = []
        for number, data in enumerate(self._sheets(), start=1):
            paths.append(path if number == 1 else _numbered(path, number))
            with new_file(paths[-1], mode=0o666) as file:
                file.write(data)
        _delete_old_sheets(path, len(paths) + 1)
        return paths

    def _repr_html_(self) -> str:
        return self.page().fragment()

    def _sheets(self) -> Iterator[bytes]:
        """Yield PNG files with the pictures of one section each; one empty file without pictures."""
        for section in self.sections or [Section()]:
            title = " - ".join(text for text in (self.title, section.heading, *section.texts) if text)
            for pictures in _pages(section.pictures):
                yield _sheet(title, pictures)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _delete_old_sheets(path: Path, number: int) -> None:
    """Delete the sheets of an earlier gallery from a number on, which would look like a part of the new one."""
    while _is_sheet(_numbered(path, number)):
        _numbered(path, number).unlink()
        number += 1


def _is_sheet(path: Path) -> bool:
    """Return True if a gallery wrote the file, which may also be a picture of the user."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        # Pillow writes texts right after the header.
        return _SIGNATURE in file.read(256)


def _pages(pictures: Sequence[Picture]) -> Iterator[list[Picture]]:
    """Split pictures into lists for one PNG file each, by their number and pixels; one empty list without pictures."""
    page: list[Picture] = []
    num_pixels = 0
    for picture in pictures:
        with Image.open(io.BytesIO(picture[0])) as image:
            picture_pixels = image.width * image.height
        if page and (len(page) == _MAX_PICTURES or num_pixels + picture_pixels > _MAX_PIXELS):
            yield page
            page = []
            num_pixels = 0
        page.append(picture)
        num_pixels += picture_pixels
    yield page


def check_ending(path: Path) -> None:
    """Refuse a file that is neither HTML nor PNG.

    Raises:
        SettingError: If the ending is another one.
    """
    if path.suffix.lower() not in (".html", ".png"):
        raise SettingError("path", str(path), "must end in .html or .png", "give a name such as show.html")


def _sheet(title: str, pictures: Sequence[Picture]) -> bytes:
    """Return a PNG file with a title and a grid of pictures."""
    font = font_for((caption for _, caption in pictures), 14)
    title_font = font_for([title], 20)
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data, _ in pictures]
    cell_width = max((image.width for image in images), default=_EMPTY_WIDTH)
    captions = [wrapped_text(caption, font, cell_width, max_lines=_CAPTION_LINES) for _, caption in pictures]
    heights = [image.height + len(lines) * _LINE + 8 for image, lines in zip(images, captions, strict=True)]
    # As many columns as make the sheet about square.
    num_columns = max(1, round(math.sqrt(sum(heights) / cell_width)))
    row_heights = [max(heights[i : i + num_columns]) for i in range(0, len(heights), num_columns)]
    width = num_columns * (cell_width + _MARGIN) + _MARGIN
    title_lines = wrapped_text(title, title_font, width - 2 * _MARGIN, max_lines=2)
    y = _MARGIN + len(title_lines) * 26 + _MARGIN
    sheet = Image.new("RGB", (width, y + sum(row_heights) + len(row_heights) * _MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(title_lines):
        draw.text((_MARGIN, _MARGIN + number * 26), line, fill="black", font=title_font)
    for row, row_height in enumerate(row_heights):
        first = row * num_columns
        for column, image in enumerate(images[first : first + num_columns]):
            x = _MARGIN + column * (cell_width + _MARGIN)
            sheet.paste(image, (x, y))
            for number, line in enumerate(captions[first + column]):
                draw.text((x, y + image.height + 4 + number * _LINE), line, fill="#303030", font=font)
        y += row_height + _MARGIN
    buffer = io.BytesIO()
    signature = PngInfo()
    signature.add_text("Software", _SIGNATURE.decode())
    sheet.save(buffer, "PNG", pnginfo=signature)
    return buffer.getvalue()
