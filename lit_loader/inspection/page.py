"""A report as one HTML file that loads nothing: text, tables and pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import new_file

__all__ = ["Page"]

# Nothing is loaded and no script runs, even if a text of a file were taken for markup.
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Translucent greys suit the light and the dark colours that the browser chooses.
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 88rem; overflow-wrap: anywhere;
  padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; }
h1 { border-bottom: 1px solid #8886; font-size: 1.5rem; line-height: 1.3; margin: 0 0 1.2rem; padding-bottom: 0.6rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; } h3 { font-size: 1.02rem; margin: 1.5rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 60rem; }
table { border-collapse: collapse; margin: 0.8rem 0; }
th, td { overflow-wrap: break-word; padding: 0.25rem 0.8rem; text-align: left; }
th { border-bottom: 2px solid #8888; white-space: nowrap; } td { border-bottom: 1px solid #8884; vertical-align: top; }
td { max-width: 40rem; } tbody tr:hover { background: #8882; }
.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; } .scroll { overflow-x: auto; }
"""
# Attributes instead of the style above, because a notebook shows pictures without the page.
_PICTURES: Final = "display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; margin: 0.8rem 0"
_FIGURE: Final = "background: #8881; border-radius: 6px; margin: 0; max-width: 100%; overflow: hidden"
_IMAGE: Final = "display: block; height: auto; max-width: 100%"
# A long caption must not make its picture's column wider.
_CAPTION: Final = (
    "box-sizing: border-box; font-size: 0.85em; line-height: 1.4; min-width: max(100%, 12em); "
    "overflow-wrap: anywhere; padding: 0.4em 0.6em; width: 0"
)


class Page:
    """Builder of one HTML file without scripts and without requests; all texts are escaped.

    Args:
        title: Title and first heading.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = [f"<h1>{_text(title)}</h1>"]

    def add_heading(self, text: str, *, level: int = 2) -> None:
        """Add a heading of level 2 or 3."""
        self._parts.append(f"<h{level}>{_text(text)}</h{level}>")

    def add_text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{_text(text)}</p>")

    def add_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table.

        Args:
            columns: Headings.
            rows: Cells of each row; numbers are aligned to the right.
        """
        first_row = rows[0] if rows else [""] * len(columns)
        head = "".join(
            f"<th{_cell_class(value)}>{_text(column)}</th>" for column, value in zip(columns, first_row, strict=True)
        )
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._parts.append(f'<div class="scroll">{table}</div>')

    def add_pictures(self, pictures: Sequence[tuple[bytes, str]]) -> None:
        """Add pictures in rows, each a PNG or JPEG file with a caption."""
        figures = "".join(_figure(data, caption) for data, caption in pictures)
        self._parts.append(f'<div style="{_PICTURES}">{figures}</div>')

    def fragment(self) -> str:
        """Return the content without the document and its style, to show in a notebook."""
        return "\n".join(self._parts)

    def html(self) -> str:
        """Return the HTML document."""
        head = (
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self.title)}</title><style>{_STYLE}</style>"
        )
        return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{self.fragment()}\n</body></html>\n'

    def save(self, path: Path | str) -> None:
        """Write the page to a file, which appears only when it is complete.

        Raises:
            OSError: If the file cannot be written.
        """
        with new_file(Path(path), mode=0o666) as file:
            file.write(self.html().encode("utf-8"))


def _text(text: str) -> str:
    # Names of files may hold control characters and bytes that are not UTF-8.
    return escape(printable(text))


def _cell(value: object) -> str:
    return f"<td{_cell_class(value)}>{_text(str(value))}</td>"


def _cell_class(value: object) -> str:
    return ' class="number"' if isinstance(value, int | float) else ""


def _figure(data: bytes, caption: str) -> str:
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    source = base64.b64encode(data).decode("ascii")
    return (
        f'<figure style="{_FIGURE}"><img style="{_IMAGE}" src="data:image/{kind};base64,{source}" alt="">'
        f'<figcaption style="{_CAPTION}">{_text(caption)}</figcaption></figure>'
    )
