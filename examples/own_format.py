"""Add an annotation format: `python examples/own_format.py` writes two images and a list of boxes, and reads them.

The format "boxes" has one line per box, ``image;class;x;y;width;height``. A package registers a reader through an entry
point of the group ``lit_loader.formats``. Then `read_annotations`, the data modules
(``FormatSource("boxes", root, ...)``), the app (``dataset=files dataset.format=boxes``) and the ``lit-loader`` commands
support it with all its options. `register_format` registers it for one program. The script prints the table, a report
of the lines that could not be read, and the classes.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from PIL import Image

from lit_loader.annotations.formats import Reader, Rows, read_annotations, register_format

LINES = "cats/a.png;cat;2;3;10;8\ncats/a.png;dog;1;1;6;6\nb.png;cat;0;0;12;broken\n"


@register_format
@dataclass(frozen=True, kw_only=True)
class BoxesReader(Reader):
    """Reads lists of boxes.

    Args:
        image_dir: Folder of the images, relative to the root.
        separator: Separator between the fields of a line.
    """

    format: ClassVar[str] = "boxes"
    description: ClassVar[str] = "text, one box per line: image, class, x, y, width, height; NAME: the file"

    image_dir: str = "."
    separator: str = ";"

    def read(self, rows: Rows, unit: str) -> None:
        """Add the boxes of one list."""
        for line, text in self.lines(rows, unit):
            path, class_name, *numbers = text.split(self.separator)
            try:
                x, y, width, height = map(float, numbers)
            except ValueError as error:
                # The policy of the reader decides whether this raises or drops the line.
                rows.malformed(f"four numbers expected: {error}", line=line)
                continue
            image = rows.image(path, folder=self.image_dir, line=line)
            rows.object(image, class_name=class_name, box=(x, y, x + width, y + height), line=line)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cats").mkdir()
        for name in ("cats/a.png", "b.png"):
            Image.new("RGB", (20, 16)).save(Path(folder) / name)
        (Path(folder) / "boxes.txt").write_text(LINES)
        table = read_annotations("boxes", folder, "boxes.txt", policy={"malformed": "drop"})
        print(table.num_images, "image,", table.num_objects, "boxes:", table.boxes.tolist())
        print(table.report)
        print(table.class_names)
