"""RetinaFace's ``label.txt``: a line ``# image``, then a line for each of its faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import numbers
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.errors import AnnotationError

__all__ = ["RetinafaceReader"]

_MARK: Final = "#"
_VISIBILITY: Final = {-1.0: 0, 0.0: 2, 1.0: 1}


@dataclass(frozen=True, kw_only=True)
class RetinafaceReader(Reader):
    """Reads a file in the layout of RetinaFace's annotations of WIDER FACE.

    A face is ``x y w h``, optionally followed by ``x y flag`` of each point and a score. Scores are only counted in the
    report. Flag 0 means a visible point, 1 a hidden one, -1 an absent one. Images without faces are kept.

    Args:
        image_dir: Folder that paths are relative to, itself relative to the root.
        class_name: Class of every face.
        schema: Keypoint schema, as `keypoint_schema` takes it.

    Source:
        Deng et al. 2020, RetinaFace: Single-Shot Multi-Level Face Localisation in the Wild; the data preparation of
        its published code.
    """

    format: ClassVar[str] = "retinaface"
    description: ClassVar[str] = "RetinaFace label.txt: '# image', then faces with 5 points; NAME: the file"

    image_dir: str = "."
    class_name: str = "face"
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_5"

    def read(self, rows: Rows, unit: str) -> None:
        """Add the faces of a file."""
        schema = keypoint_schema(self.schema)
        rows.declare(keypoints=schema)
        image: int | None = None
        for line, text in self.lines(rows, unit):
            text = text.strip()
            if text.startswith(_MARK):
                image = None  # faces after a line without a path belong to no image
                if path := text.removeprefix(_MARK).strip():
                    image = rows.image(path, folder=self.image_dir, line=line)
                else:
                    rows.malformed("the path of the image is empty", line=line)
            elif image is None and text:
                rows.malformed("a face without a line '# image' before it", line=line)
            elif image is not None and text:
                try:
                    face, has_score = _face(text, num_points=len(schema.names))
                except AnnotationError as error:
                    rows.malformed(error.message, line=line)
                    continue
                rows.not_read("score of a face", has_score)
                rows.object(image, class_name=self.class_name, line=line, **face)


def _face(text: str, *, num_points: int) -> tuple[dict[str, Any], bool]:
    """Return a face as arguments of `Rows.object`, and True if it has a score."""
    # Box; box and points; box, points and score.
    lengths = (4, 4 + 3 * num_points, 5 + 3 * num_points)
    values = numbers(text.split())
    if len(values) not in lengths:
        raise AnnotationError(f"{len(values)} numbers; a face of {num_points} points has one of {lengths}")
    x, y, width, height = values[:4]
    face: dict[str, Any] = {"box": (x, y, x + width, y + height)}
    # Faces too small to have points are boxes only.
    if len(values) > 4:
        points = np.array(values[4 : lengths[1]]).reshape(-1, 3)
        flags = points[:, 2].tolist()
        if not set(flags) <= _VISIBILITY.keys():
            raise AnnotationError(f"flags {flags[:20]} of the points must be -1, 0 or 1")
        face |= {"points": points[:, :2], "visibility": [_VISIBILITY[flag] for flag in flags]}
    return face, len(values) == lengths[2]
