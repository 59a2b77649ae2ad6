"""WFLW's text files: each line has the 98 points, the box, six attributes and the path of a face."""

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

    A line contains x and y of every point, x_min y_min x_max y_max, six attributes that are 0 or 1, and the path of the
    image. The attributes are named ``WFLW_ATTRIBUTES`` and have the values ``no`` and ``yes``. All points are visible,
    since the file does not tell which are hidden.

    Args:
        image_dir: Folder that paths are relative to (``WFLW_images``), itself relative to the root.
        class_name: Class of every face.
        rect_attr: Whether lines have boxes and attributes, as in the files named ``rect_attr``. Lines of other files
            have only points and path; a face then gets the tight box of its points.
        schema: Keypoint schema, as `keypoint_schema` takes it.

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
        # WFLW is a list with fixed columns, so the reader of lists does the work.
        attributes = [f"attribute:{attribute}" for attribute in WFLW_ATTRIBUTES]
        KeypointsTxtReader(
            columns=["points", "box", *attributes, "path"] if self.rect_attr else ["points", "path"],
            schema=self.schema,
            image_dir=self.image_dir,
            class_name=self.class_name,
            attribute_values=_ANSWERS if self.rect_attr else None,
            # Names of images may begin with "#".
            comment=None,
        ).read(rows, unit)
