"""The reader of Pascal VOC data sets: XML per image, split files, cached as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lit_loader.annotations.cache import cache_folder, cache_key, load_or_build
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.report import ReadReport
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.cached import check_class_names, check_workers
from lit_loader.formats.parallel import map_chunks
from lit_loader.formats.voc_build import build_voc_table, choose_items
from lit_loader.formats.voc_columns import join_columns
from lit_loader.formats.voc_files import find_voc_files
from lit_loader.formats.voc_parse import parse_voc_files
from lit_loader.formats.voc_policy import VocPolicy

__all__ = ["read_voc"]

_READER_VERSION = 2


def read_voc(
    root: Path | str,
    *,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    keypoints: bool = True,
    attributes: bool = True,
    one_based: bool = False,
    image_dir: str = "JPEGImages",
    annotation_dir: str = "Annotations",
    split_dir: str = "ImageSets/Main",
    policy: VocPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a VOC data set, plain or unified; images are never opened.

    The unified format, VOC with points, attributes and crowd flags, is described in ``voc_writer.py``. Of
    plain VOC the table has no keypoints (None) and no attributes. ``<part>`` is not read and counted in the
    report.

    The image of an id is found by listing ``image_dir``; when several extensions fit, the one that
    ``<filename>`` has, else the first of ``IMAGE_EXTENSIONS``. What is wrong in the files is handled by
    ``policy`` and listed in the table's ``report``. Paths that the data set names, and symbolic links in
    it, may not lead out of ``root``.

    Read further splits of plain VOC with the first one's ``class_names``: a split that lacks a class would
    otherwise number the others differently. Files with a ``<schema>`` say it themselves where need be.

    Args:
        root: The data set's folder.
        split: Reads the ids in ``<split_dir>/<split>.txt``; None reads every XML file below
            ``annotation_dir``, sorted by id.
        class_names: Classes in the order of their ids; None takes those of the ``<schema>``, or else the
            names that occur in this split, sorted, those of objects that the policy drops included.
        schema: What the points are, as `keypoint_schema` takes it; points of other names are not read and
            reported. None takes the files' ``<schema>``, or else the names that occur, sorted.
        keypoints: Whether to read points.
        attributes: Whether to read attributes. Their values are numbered as the ``<schema>`` says, or else
            sorted.
        one_based: Whether to subtract one from all coordinates. By default they are kept as written, as
            torchvision does.
        image_dir: Folder of the images, relative to ``root``.
        annotation_dir: Folder of the XML files, relative to ``root``.
        split_dir: Folder of the split files, relative to ``root``.
        policy: What to do about each kind of problem; default ``VocPolicy()``.
        cache_dir: Where the table is cached; None: ``$XDG_CACHE_HOME/lit_loader`` or ``~/.cache/lit_loader``.
            When a cached table is stale is said in ``cache.py``, NOTE [when a cache is stale].
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that parse; 0: none; None: none below 4,000 files, else one a CPU. The table is
            the same for all of them.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        The table. With ``use_cache`` its columns are views of the mapped cache file.

    Raises:
        AnnotationError: For a problem whose action is ``"raise"``; names file and line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If ``class_names`` are empty or repeat, or ``num_workers`` is negative.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    if schema is not None and not keypoints:
        raise ValueError(f"schema={schema!r} says what points are, and keypoints=False reads none; drop one")
    points = None if schema is None else keypoint_schema(schema)
    policy = VocPolicy() if policy is None else policy
    files = find_voc_files(
        root,
        split=split,
        image_dir=image_dir,
        annotation_dir=annotation_dir,
        split_dir=split_dir,
    )
    settings = {
        "split": split,
        "class_names": names,
        "schema": None if points is None else asdict(points),
        "read": [keypoints, attributes],
        "one_based": one_based,
        "dirs": [image_dir, annotation_dir, split_dir],
        "policy": asdict(policy),
    }

    def build() -> AnnotationTable:
        report = ReadReport()
        items = choose_items(files, policy=policy, report=report)
        parse = partial(
            parse_voc_files,
            root=files.root,
            malformed=policy.malformed,
            keypoints=keypoints,
            attributes=attributes,
        )
        parts = map_chunks(
            parse,
            [item.xml for item in items],  # items without XML become empty files
            num_workers=num_workers,
            progress=progress,
            description="Reading annotations",
        )
        columns = join_columns(parts or [parse([])])
        report.merge(columns.report)
        return build_voc_table(
            files,
            items,
            columns,
            policy=policy,
            class_names=names,
            schema=points,
            keypoints=keypoints,
            one_based=one_based,
            split=split,
            report=report,
        )

    if not use_cache:
        return build()
    return load_or_build(
        folder=cache_folder(cache_dir),
        key=cache_key(
            reader="voc", version=_READER_VERSION, root=files.root, settings=settings, stamps=files.stamps()
        ),
        root=files.root,
        build=build,
        unchanged=files.are_unchanged,
    )
