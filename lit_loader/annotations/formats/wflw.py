"""WFLW's text files: 98 points, box, six attributes, and path of a face on every line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lit_loader.annotations.formats.keypoints_txt import KeypointsTxtReader
from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.keypoints import KeypointSchema

__all__ = ["WFLW_ATTRIBUTES", "WflwReader"]

WFLW_ATTRIBUTES: Final = ("pose", "expression", "illumination", "make-up", "occlusion", "blur")
_ANSWERS: Final = {"0": "no", "1": "yes"}


@dataclass(frozen=True, kw_only=True)
class WflwReader(Reader):
    """Reads a file such as ``list_98pt_rect_attr_train.txt``.

    A line holds x and y of every point, x_min y_min x_max y_max, six attributes that are 0 or 1, and the image's path.
    The attributes come as ``WFLW_ATTRIBUTES`` with the values ``no`` and ``yes``. Points are visible: the file does
    not say which are hidden.

    Args:
        image_dir: The folder that paths are relative to (``WFLW_images``), relative to the root.
        class_name: Class of every face.
        rect_attr: Whether lines have boxes and attributes, as in the files named ``rect_attr``; the others have
            points and path, and boxes are put around the points.
        schema: The points, as in ``keypoint_schema``.

    Source:
        Wu et al. 2018, Look at Boundary: A Boundary-Aware Face Alignment Algorithm; the README of the annotations.
    """

    format: ClassVar[str] = "wflw"
    description: ClassVar[str] = "WFLW text: 98 points, box, 6 attributes and path in a line; NAME: the file"

    image_dir: str = "."
    class_name: str = "face"
    rect_attr: bool = True
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_98"

    def read(self, rows: Rows, unit: str) -> None:
        """Add the lines of a list."""
        attributes = [f"attribute:{attribute}" for attribute in WFLW_ATTRIBUTES]
        KeypointsTxtReader(
            columns=["points", "box", *attributes, "path"] if self.rect_attr else ["points", "path"],
            schema=self.schema,
            image_dir=self.image_dir,
            class_name=self.class_name,
            attribute_values=_ANSWERS if self.rect_attr else None,
            comment=None,
        ).read(rows, unit)
