"""The reader of RetinaFace's ``label.txt``: a line ``# image``, then a line for each of its faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.image_files import join_path
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.text_file import numbers, read_lines

__all__ = ["read_retinaface"]

_READER_VERSION = 1
_MARK: Final = "#"
_ABSENT: Final = -1.0
_VISIBILITY: Final = {_ABSENT: 0, 0.0: 2, 1.0: 1}


def read_retinaface(
    root: Path | str,
    name: str,
    *,
    image_dir: str = ".",
    class_name: str = "face",
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_5",
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a file in the layout of RetinaFace's annotations of WIDER FACE.

    A face is ``x y w h``, then ``x y flag`` of each point, then a score that is not read; or ``x y w h``
    alone. A flag of 0 is a visible point, 1 a hidden one, -1 an absent one. Images without faces are kept.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The file, relative to ``root``.
        image_dir: The folder that paths are relative to, relative to ``root``.
        class_name: Class of every face.
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
        Deng et al. 2020, RetinaFace: Single-Shot Multi-Level Face Localisation in the Wild; the data
        preparation of its published code.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    points = keypoint_schema(schema)
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        builder = TableBuilder(root=real_root, policy=policy, schema=points, class_names=names, split=split)
        _read(builder, name, image_dir=image_dir, class_name=class_name, num_points=len(points.names))
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "retinaface",
        version=_READER_VERSION,
        root=real_root,
        files=[name],
        image_dirs=[image_dir],
        settings={
            "class": [class_name, names, split],
            "schema": [points.names, points.flip_pairs, points.interocular],
        },
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _read(builder: TableBuilder, name: str, *, image_dir: str, class_name: str, num_points: int) -> None:
    image: int | None = None
    lengths = (4, 4 + 3 * num_points, 5 + 3 * num_points)
    for line, text in read_lines(builder.root, name):
        text = text.strip()
        if text.startswith(_MARK):
            image = None  # faces below a line without a path belong to no image
            image_id = text.removeprefix(_MARK).strip()
            if not image_id:
                builder.malformed("the path of the image is empty", file=name, line=line)
                continue
            path = join_path(image_dir, image_id, source=builder.root / name, line=line)
            image = builder.image(path, image_id=image_id, file=name, line=line)
            continue
        if not text:
            continue
        try:
            if image is None:
                raise AnnotationError("a face stands before any line '# image'")
            values = numbers(text.split())
            if len(values) not in lengths:
                message = f"{len(values)} numbers; a face of {num_points} points has one of {lengths}"
                raise AnnotationError(message)
            x, y, width, height = values[:4]
            marks = np.array(values[4 : lengths[1]]).reshape(-1, 3)
            flags = marks[:, 2].tolist()
            if not set(flags) <= _VISIBILITY.keys():
                raise AnnotationError(f"flags {flags[:20]} of the points must be -1, 0 or 1")
        except AnnotationError as error:
            builder.malformed(error.message, file=name, line=line)
            continue
        builder.object(
            image,
            class_name=class_name,
            box=(x, y, x + width, y + height),
            points=marks[:, :2] if flags else None,
            visibility=[_VISIBILITY[flag] for flag in flags] if flags else None,
            file=name,
            line=line,
        )
