"""The reader of ``.pts`` files (300-W, Menpo, 300-VW): one file with the points of one face an image."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.file_patterns import find_files
from lit_loader.formats.image_files import join_path
from lit_loader.formats.list_lines import check_shift
from lit_loader.formats.parallel import map_chunks
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.pts_file import parse_pts

__all__ = ["read_pts"]

_READER_VERSION = 1


def read_pts(
    root: Path | str,
    name: str,
    *,
    image_dir: str | None = None,
    class_name: str = "face",
    schema: str | KeypointSchema | Mapping[str, Any] | int = "face_68",
    one_based: bool = False,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read one ``.pts`` file, those of a folder, or those that fit a pattern, sorted by name.

    The image of ``indoor_020.pts`` is the file ``indoor_020`` with any ending of ``IMAGE_EXTENSIONS``,
    beside it or in ``image_dir``. Boxes are put around the points.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: A file, a folder, or a pattern such as ``"*/annot/*.pts"`` (``*``, ``?`` and ``[...]`` within a
            part, ``**`` for any folders), relative to ``root``.
        image_dir: The folder of a file's image, relative to the file's own folder: ``"../imgs"`` for
            300-VW's ``<clip>/annot`` and ``<clip>/imgs``. It must lie below ``root``. None: beside it.
        class_name: Class of every face.
        schema: The points, as in ``keypoint_schema``.
        one_based: Whether to subtract one from every coordinate. 300-W's count from one, as MATLAB does; by
            default they are kept as written.
        split: As in ``read_points_list``, like all that follow.
        class_names: Classes in the order of their ids.
        policy: What to do about each kind of problem; ``malformed="drop"`` drops a file.
        cache_dir: Where the table is cached.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read files; 0: none; None: none for few files.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If no file fits, or for a problem whose action is ``"raise"``; names file and line.
        UnsafePathError: If a path or link leads out of ``root``.

    Source:
        Sagonas et al. 2013, 300 Faces in-the-Wild Challenge: the annotations' format.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    points = keypoint_schema(schema)
    real_root = Path(root).resolve()
    files = find_files(real_root, name, ending=".pts")
    folders = {folder: _image_folder(folder, image_dir) for folder in {_folder(file) for file in files}}

    def build() -> AnnotationTable:
        builder = TableBuilder(root=real_root, policy=policy, schema=points, class_names=names, split=split)
        parts = map_chunks(
            partial(_parse, root=real_root, num_points=len(points.names)),
            files,
            num_workers=num_workers,
            progress=progress,
            description="Reading points",
        )
        shift = check_shift(one_based=one_based, normalized=False)
        for file, found in zip(files, (found for part in parts for found in part), strict=True):
            if isinstance(found, AnnotationError):
                builder.malformed(found.message, file=file, line=found.line)
                continue
            stem = posixpath.basename(file)[: -len(".pts")]
            path = join_path(folders[_folder(file)], stem, source=real_root / file)
            image = builder.image(path, file=file, image_id=file[: -len(".pts")])
            builder.object(image, class_name=class_name, box=None, points=found - shift, file=file)
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "pts",
        version=_READER_VERSION,
        root=real_root,
        files=files,
        image_dirs=sorted(folders.values()),
        settings={
            "class": [class_name, names, split],
            "schema": [points.names, points.flip_pairs, points.interocular],
            "one_based": one_based,
        },
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _folder(file: str) -> str:
    return posixpath.dirname(file) or "."


def _image_folder(folder: str, image_dir: str | None) -> str:
    joined = posixpath.normpath(posixpath.join(folder, image_dir or "."))
    if joined.startswith(("..", "/")):
        message = (
            f"image_dir={image_dir!r} of {folder!r} leads out of the data set's root; pass a higher root"
        )
        raise UnsafePathError(message)
    return joined


def _parse(
    files: Sequence[str], *, root: Path, num_points: int
) -> list[npt.NDArray[np.float64] | AnnotationError]:
    """Parse files; what is wrong with one comes in its place, to be judged where the policy is."""
    found: list[npt.NDArray[np.float64] | AnnotationError] = []
    for file in files:
        try:
            found.append(parse_pts(root, file, num_points=num_points))
        except UnsafePathError:
            raise
        except AnnotationError as error:
            found.append(error)
    return found
