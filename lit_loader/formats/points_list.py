"""The reader of text lists with one object a line: a path, points, a class, a box, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.list_columns import parse_columns
from lit_loader.formats.list_lines import (
    BoxFormat,
    LineReader,
    check_box_format,
    check_shift,
    visibility_map,
)
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.text_file import read_lines

__all__ = ["read_points_list"]

_READER_VERSION = 1
_DEFAULT_CLASS = "object"


def read_points_list(
    root: Path | str,
    name: str,
    *,
    columns: Sequence[str] | str,
    separator: str | None = None,
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    image_dir: str = ".",
    class_name: str | None = None,
    visibility_values: Mapping[float, int] | None = None,
    attribute_values: Mapping[str, str] | None = None,
    comment: str | None = "#",
    header: bool | int = False,
    normalized: bool = False,
    one_based: bool = False,
    box_format: BoxFormat = "xyxy",
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a text list in which every line is an object; lines with the same path are one image's.

    ``columns="path points class"`` reads ``faces/a.jpg 31.5 40 58 41 ... happy``, and
    ``columns="path box attribute:pose"`` with ``separator=","`` reads ``a.jpg,10,12,90,80,left``. Lines that
    are empty or start with ``comment`` are skipped. An object without a box gets the one around its points;
    one without points too gets the whole image. Image sizes are read from the images' headers.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The list, relative to ``root``.
        columns: What stands in each column, as names or one string with blanks between them: ``path``;
            ``class``; ``points`` (x and y of each point) or ``points_v`` (x, y and a flag of each);
            ``box`` (four numbers) or ``xmin``, ``ymin``, ``xmax``, ``ymax``; ``attribute:NAME``, where an
            empty field or ``-`` means none; ``skip``.
        separator: What stands between columns; None: blanks. A path with blanks needs another one.
        schema: The points, as in ``keypoint_schema``.
        image_dir: The folder that paths are relative to, relative to ``root``.
        class_name: Class of every object where no column says it; default ``"object"``, but a list of paths
            alone names images without objects.
        visibility_values: What a flag of ``points_v`` means: 0 absent, 1 hidden, 2 visible; default: itself.
        attribute_values: What the text of an attribute means, e.g. ``{"0": "no", "1": "yes"}``; default:
            itself.
        comment: Lines that start with it are skipped; None: no line is.
        header: Number of lines to skip at the start; True is one.
        normalized: Whether coordinates are fractions of the image.
        one_based: Whether to subtract one from every coordinate.
        box_format: ``"xywh"``: the numbers of ``box`` are x, y, width, height.
        split: The table's split.
        class_names: Classes in the order of their ids; None takes those that occur, sorted.
        policy: What to do about each kind of problem; default ``ReadPolicy()``.
        cache_dir: Where the table is cached, as in ``read_voc``.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers; 0: none; None: none for few images.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        The table; images are in the order in which the list names them first.

    Raises:
        AnnotationError: For a problem whose action is ``"raise"``; names file and line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If arguments contradict each other.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    points = None if schema is None else keypoint_schema(schema)
    plan = parse_columns(columns, schema=points)
    if separator is not None and (len(separator) != 1 or separator.isalnum() or separator in '."\n\r-+'):
        raise ValueError(f"separator={separator!r} must be one character such as ',', ';' or a tab, or None")
    if comment == "":
        raise ValueError("comment='' would skip every line; pass None for lists without comments")
    if isinstance(header, int) and header < 0:
        raise ValueError(f"header={header} must be a number of lines >= 0")
    if class_name is not None and plan.class_name is not None:
        raise ValueError(f"class_name={class_name!r} and a column 'class' exclude each other")
    if visibility_values is not None and not plan.has_visibility:
        raise ValueError("visibility_values need a column 'points_v'")
    if attribute_values is not None and not plan.attributes:
        raise ValueError("attribute_values need a column 'attribute:NAME'")
    reader = LineReader(
        columns=plan,
        image_dir=image_dir,
        class_name=_DEFAULT_CLASS if class_name is None and plan.has_objects else class_name,
        shift=check_shift(one_based=one_based, normalized=normalized),
        is_xywh=check_box_format(box_format, has_box="box" in plan.names),
        visibility=visibility_map(visibility_values),
        attribute_values=attribute_values,
        hint="; a path with blanks needs another separator than blanks" if separator is None else "",
    )
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        builder = TableBuilder(
            root=real_root,
            policy=policy,
            schema=points,
            class_names=names,
            split=split,
            normalized=normalized,
            attribute_names=reader.attribute_names(),
        )
        _read(builder, reader, name, separator=separator, comment=comment, header=int(header))
        return builder.build(num_workers=num_workers, progress=progress)

    settings = {
        "columns": plan.names,
        "separator": separator,
        "schema": None if points is None else [points.names, points.flip_pairs, points.interocular],
        "class": [reader.class_name, names, split],
        "visibility": sorted(reader.visibility.items()),
        "attribute_values": None if attribute_values is None else dict(attribute_values),
        "lines": [comment, int(header)],
        "coordinates": [normalized, one_based, box_format],
    }
    return read_cached(
        "points_list",
        version=_READER_VERSION,
        root=real_root,
        files=[name],
        image_dirs=[image_dir],
        settings=settings,
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _read(
    builder: TableBuilder,
    reader: LineReader,
    name: str,
    *,
    separator: str | None,
    comment: str | None,
    header: int,
) -> None:
    for line, text in read_lines(builder.root, name):
        start = text.lstrip()
        if line <= header or not start or (comment is not None and start.startswith(comment)):
            continue
        fields = text.split() if separator is None else [part.strip() for part in text.split(separator)]
        reader.add(builder, fields, file=name, line=line)
