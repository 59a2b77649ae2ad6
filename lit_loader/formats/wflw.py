"""The reader of WFLW's text files: 98 points, box, six attributes, and path of a face on every line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.points_list import read_points_list
from lit_loader.formats.policy import ReadPolicy

__all__ = ["WFLW_ATTRIBUTES", "read_wflw"]

WFLW_ATTRIBUTES: Final = ("pose", "expression", "illumination", "make-up", "occlusion", "blur")
_ANSWERS: Final = {"0": "no", "1": "yes"}


def read_wflw(
    root: Path | str,
    name: str,
    *,
    image_dir: str = ".",
    class_name: str = "face",
    rect_attr: bool = True,
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_98",
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a file such as ``list_98pt_rect_attr_train.txt``.

    A line holds x and y of every point, x_min y_min x_max y_max, six attributes that are 0 or 1, and the
    image's path. The attributes come as ``WFLW_ATTRIBUTES`` with the values ``no`` and ``yes``. Points are
    visible: the file does not say which are hidden.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The file, relative to ``root``.
        image_dir: The folder that paths are relative to (``WFLW_images``), relative to ``root``.
        class_name: Class of every face.
        rect_attr: Whether boxes and attributes stand in the lines, as in the files named ``rect_attr``; the
            others have points and path, and boxes are put around the points.
        schema: The points, as in ``keypoint_schema``.
        split: As in ``read_points_list``, like all that follow.
        class_names: Classes in the order of their ids.
        policy: What to do about each kind of problem.
        cache_dir: Where the table is cached.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: For a problem whose action is ``"raise"``; names file and line.
        UnsafePathError: If a path or link leads out of ``root``.

    Source:
        Wu et al. 2018, Look at Boundary: A Boundary-Aware Face Alignment Algorithm; the README of the
        annotations.
    """
    attributes = [f"attribute:{attribute}" for attribute in WFLW_ATTRIBUTES]
    return read_points_list(
        root,
        name,
        columns=["points", "box", *attributes, "path"] if rect_attr else ["points", "path"],
        schema=schema,
        image_dir=image_dir,
        class_name=class_name,
        attribute_values=_ANSWERS if rect_attr else None,
        comment=None,
        split=split,
        class_names=class_names,
        policy=policy,
        cache_dir=cache_dir,
        use_cache=use_cache,
        num_workers=num_workers,
        progress=progress,
    )
