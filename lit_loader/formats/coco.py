"""The reader of COCO JSON: boxes, crowds, keypoints with visibility, and attributes as CVAT writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.attribute_order import with_listed_values
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.coco_annotations import AnnotationReader
from lit_loader.formats.coco_head import CocoId, read_coco_head
from lit_loader.formats.image_files import join_path
from lit_loader.formats.json_file import Entry, read_entries
from lit_loader.formats.policy import ReadPolicy

__all__ = ["read_coco"]

_READER_VERSION = 2


def read_coco(
    root: Path | str,
    name: str,
    *,
    image_dir: str = ".",
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    keypoints: bool = True,
    attributes: bool = True,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a COCO JSON file.

    Boxes are x, y, width, height of pixels. An annotation without one gets the box around its points; one
    without points too, the whole image. ``iscrowd`` is the crowd flag and ``ignore``, as some data sets have
    it, the difficult flag; ``truncated`` and ``occluded`` are flags where they are 0 or 1, and otherwise, as
    shares or levels, reported and not read. Masks (``segmentation``) are not read, and counted in the report.
    Points whose v is 0 are absent, 1 hidden, 2 visible. Where several categories have points, they are united
    by name.

    An annotation of an image or with a number that does not exist is malformed; one of a category that does
    not exist has an unknown class. Rows of ``images`` with the same file are one image. Memory does not grow
    with what is not read.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The JSON file, relative to ``root``.
        image_dir: The folder that ``file_name`` is relative to, relative to ``root``.
        schema: What the points are, as in ``keypoint_schema``. Points of a category that names its points are
            found by name, others of it are not read and reported; those of a category that does not, by
            position. None: the names of the categories, and flip pairs by the words left and right in them;
            points without names are numbered.
        keypoints: Whether to read points of annotations that have a box.
        attributes: Whether to read ``attributes``.
        split: The table's split; None: what the file says, if it is one of `write_coco`.
        class_names: Classes in the order of their ids; None: all categories in the order of their ids.
        policy: What to do about each kind of problem; default ``ReadPolicy()``.
        cache_dir: Where the table is cached; None: the user's cache folder.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read the headers of images whose size the file does not say.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If the file is no COCO JSON, or for a problem whose action is ``"raise"``; names file
            and line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If ``class_names`` are empty or repeat, or ``num_workers`` is negative.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    if schema is not None and not keypoints:
        raise ValueError(f"schema={schema!r} says what points are, and keypoints=False reads none; drop one")
    points = None if schema is None else keypoint_schema(schema)
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        report = ReadReport()

        def malformed(message: str, entry: Entry) -> None:
            message = shorten(f"{entry.key}[{entry.position}]: {message}")
            if policy.malformed == "raise":
                remedy = "correct it, or choose ReadPolicy(malformed=...)"
                raise AnnotationError(f"{message}; {remedy}", path=real_root / name, line=entry.line)
            report.add(Problem(kind="malformed", action="drop", file=name, message=message, line=entry.line))

        head = read_coco_head(real_root, name, malformed=malformed)
        said = head.class_names() if names is None else names
        builder = TableBuilder(
            root=real_root,
            policy=policy,
            schema=(points or head.keypoints()) if keypoints else None,
            class_names=said,
            split=head.split if split is None else split,
            attribute_names=head.attributes if attributes else {},
        )
        builder.report.merge(report)
        images: dict[CocoId, int] = {}
        numbers: set[int] = set()
        for image_id, image in head.images.items():
            path = join_path(image_dir, image.file_name, source=real_root / name, line=image.line)
            number = builder.image(
                path,
                file=name,
                line=image.line,
                image_id=image.name,
                width=image.width,
                height=image.height,
            )
            if number in numbers:
                message = f"{shorten(path)!r} is that of images before, too; all are one image"
                builder.problem("same_file", "unite", message, file=name, line=image.line)
            numbers.add(number)
            images[image_id] = number
        reader = AnnotationReader(
            builder, head, images, file=name, keypoints=keypoints, attributes=attributes
        )
        for entry in read_entries(real_root, name):
            if entry.key == "annotations":
                reader.add(entry)
        table = builder.build(num_workers=num_workers, progress=progress)
        return with_listed_values(table, head.attributes) if attributes else table

    return read_cached(
        "coco",
        version=_READER_VERSION,
        root=real_root,
        files=[name],
        image_dirs=[image_dir],
        settings={
            "schema": None if points is None else [points.names, points.flip_pairs, points.interocular],
            "read": [keypoints, attributes],
            "class": [names, split],
        },
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )
