"""The reader of CSV tables with one object a row: columns by the names in the header, or by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.csv_columns import Column, CsvColumns
from lit_loader.formats.csv_rows import read_rows
from lit_loader.formats.list_lines import BoxFormat, LineReader, check_box_format, check_shift
from lit_loader.formats.policy import ReadPolicy

__all__ = ["read_points_csv"]

_READER_VERSION = 1
_DEFAULT_CLASS = "object"


def read_points_csv(
    root: Path | str,
    name: str,
    *,
    path_column: Column = 0,
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    point_columns: Sequence[Column] | Column | None = None,
    class_column: Column | None = None,
    class_name: str | None = None,
    box_columns: Sequence[Column] | None = None,
    box_format: BoxFormat = "xyxy",
    attribute_columns: Sequence[Column] | Mapping[str, Column] = (),
    attribute_values: Mapping[str, str] | None = None,
    image_dir: str = ".",
    delimiter: str = ",",
    header: bool = True,
    normalized: bool = False,
    one_based: bool = False,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a CSV file in which every row is an object; rows with the same path are one image's.

    A path without an image's ending means the first file that has one. A point with an empty field is
    absent. An object without a box gets the one around its points; one without points too gets the whole
    image. Image sizes are read from the images' headers.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The file, relative to ``root``.
        path_column: Name or number, from 0, of the column with the image's path.
        schema: The points, as in ``keypoint_schema``.
        point_columns: The 2 K columns of x and y of each point, or the first of 2 K that stand together.
            None, with a schema: the first 2 K columns that nothing else is said of.
        class_column: The column with the class.
        class_name: Class of every object where no column says it; default ``"object"``.
        box_columns: The four columns of the box, in the order of ``box_format``.
        box_format: ``"xyxy"``: xmin, ymin, xmax, ymax. ``"xywh"``: x, y, width, height.
        attribute_columns: Columns of attributes, or the column of each attribute by its name. An empty field
            or ``-`` means none.
        attribute_values: What the text of an attribute means; default: itself.
        image_dir: The folder that paths are relative to, relative to ``root``.
        delimiter: What stands between columns.
        header: Whether the first row holds names; without it, columns go by number.
        normalized: Whether coordinates are fractions of the image.
        one_based: Whether to subtract one from every coordinate.
        split: As in ``read_points_list``, like all that follow.
        class_names: Classes in the order of their ids.
        policy: What to do about each kind of problem.
        cache_dir: Where the table is cached.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If a column is missing, or for a problem whose action is ``"raise"``; names file and
            line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If arguments contradict each other.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    points = None if schema is None else keypoint_schema(schema)
    if class_name is not None and class_column is not None:
        raise ValueError(f"class_name={class_name!r} and class_column={class_column!r} exclude each other")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"delimiter={delimiter!r} must be one character, no quote and no end of line")
    columns = CsvColumns(
        path=path_column,
        class_name=class_column,
        points=point_columns,
        box=box_columns,
        attributes=attribute_columns,
        num_points=0 if points is None else len(points.names),
        has_header=header,
    )
    if attribute_values is not None and not columns.attributes:
        raise ValueError("attribute_values need attribute_columns")
    is_xywh = check_box_format(box_format, has_box=box_columns is not None)
    shift = check_shift(one_based=one_based, normalized=normalized)
    class_of_all = _DEFAULT_CLASS if class_name is None else class_name
    known_values = () if attribute_values is None else sorted(set(attribute_values.values()))
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        builder = TableBuilder(
            root=real_root,
            policy=policy,
            schema=points,
            class_names=names,
            split=split,
            normalized=normalized,
            attribute_names=dict.fromkeys(columns.attributes, known_values),
        )
        reader: LineReader | None = None
        for line, fields in read_rows(real_root, name, delimiter=delimiter):
            if reader is None:
                reader = LineReader(
                    columns=columns.places(fields, path=real_root / name, line=line),
                    image_dir=image_dir,
                    class_name=class_of_all,
                    shift=shift,
                    is_xywh=is_xywh,
                    attribute_values=attribute_values,
                    empty_is_absent=True,
                )
                if header:
                    continue
            reader.add(builder, fields, file=name, line=line)
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "points_csv",
        version=_READER_VERSION,
        root=real_root,
        files=[name],
        image_dirs=[image_dir],
        settings={
            "columns": columns.settings(),
            "schema": None if points is None else [points.names, points.flip_pairs, points.interocular],
            "class": [class_of_all, names, split],
            "attribute_values": None if attribute_values is None else dict(attribute_values),
            "rows": [delimiter, header],
            "coordinates": [normalized, one_based, box_format],
        },
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )
