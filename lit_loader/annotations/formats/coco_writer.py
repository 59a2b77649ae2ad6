"""Writes a table as one COCO JSON file; the inverse of `CocoReader`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.coco import MAX_POINTS, SURROGATE, checked_name
from lit_loader.annotations.formats.writer import Writer, in_chunks, lost, write_file
from lit_loader.annotations.masks import RunLengths, encode_counts, run_lengths
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.types import FIRST_LABEL

__all__ = ["CocoWriter", "coco_results"]

_FLAGS: Final = {"ignore": "difficult", "truncated": "truncated", "occluded": "occluded"}
_Ids: TypeAlias = tuple[list[int], list[int], list[int]]


@dataclass(frozen=True, kw_only=True)
class CocoWriter(Writer):
    """Writes a table as COCO JSON, one entry a line; images are not copied.

    ``file_name`` is the image's path relative to the table's root. Images, categories and annotations keep the numbers
    of the file that they came from; else they are numbered from 1, and images keep ids that are whole numbers. Masks
    are written as they were read, polygons as polygons and run lengths as numbers.

    Beyond COCO's own keys the file has keys that other programs ignore, so that nothing is lost: ``flip_pairs`` and
    ``normalization_pair`` of a category (positions in its ``keypoints``), ``attributes`` of an annotation (names with
    values, as CVAT writes them) and their values in the order of the ids at the top, ``truncated``, ``occluded`` and
    ``ignore`` (difficult) of an annotation that is, ``source_id`` of an image whose id is not a number, and ``split``
    in ``info``.
    """

    format: ClassVar[str] = "coco"
    description: ClassVar[str] = "COCO JSON; NAME: the JSON file"
    name_of_split: ClassVar[str] = "annotations/{}.json"

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return what a COCO file cannot hold of a table."""
        found = lost(table, "places", "sizes", "files")
        if table.keypoints is not None and not table.class_names:
            found.append("names of points, since there is no category to write them for")
        corners = table.boxes.astype(np.float64)
        with np.errstate(over="ignore"):
            again = (corners[:, :2] + (corners[:, 2:] - corners[:, :2])).astype(np.float32)
        if inexact := int((again != table.boxes[:, 2:]).any(axis=1).sum()):
            found.append(f"{inexact} boxes exactly, since x + width is not their other corner")
        for name in ("source_ids", "category_ids", "object_ids"):
            ids = getattr(table, name)
            if ids is not None and len(ids) and not _numbers(ids):
                found.append(f"{name}, since one is missing or comes twice")
        return found

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write the file, which is complete or not there.

        Raises:
            ValueError: If a name would not be read back.
            UnsafePathError: If ``name`` leads out of ``root``.
        """
        _check_names(table)
        path, ids = root / check_relative(name), _ids(table)
        annotations = partial(_annotations, table=table, ids=ids)
        chunks = in_chunks(annotations, range(table.num_images), progress=progress)

        def parts() -> Iterator[str]:
            yield '{\n"info": ' + _text({"split": table.split}) + ',\n"licenses": [],\n'
            yield from _list("images", _images(table, ids[0]))
            yield from _list("categories", _categories(table, ids[1]))
            values = ({"name": name, "values": each.names} for name, each in table.attributes.items())
            yield from _list("attributes", map(_text, values))
            yield from _list("annotations", (line for chunk in chunks for line in chunk), last=True)

        write_file(path, (part.encode("ascii") for part in parts()))


def _check_names(table: AnnotationTable) -> None:
    """Raise ValueError for a name that `CocoReader` would refuse."""
    named: dict[str, Iterable[str]] = {
        "class name": table.class_names,
        "name of a point": table.keypoint_names,
    }
    named |= {"name of an attribute": table.attributes, "split": [table.split] if table.split else []}
    named |= {f"value of attribute {name!r}": each.names for name, each in table.attributes.items()}
    for what, names in named.items():
        for name in names:
            checked_name(name, f"{what} {shorten(repr(name))}")
    for name in (*table.image_paths, *table.image_ids):
        if SURROGATE.search(name):
            raise ValueError(f"the image {name!r} is not Unicode, as JSON asks for; rename its file")
    if len(table.keypoint_names) > MAX_POINTS:
        raise ValueError(f"{len(table.keypoint_names)} points are more than MAX_POINTS={MAX_POINTS}")


def _list(key: str, lines: Iterator[str], *, last: bool = False) -> Iterator[str]:
    yield f'"{key}": ['
    for number, line in enumerate(lines):
        yield f"{',' if number else ''}\n{line}"
    yield "\n]\n}\n" if last else "\n],\n"


def coco_results(
    table: AnnotationTable, predictions: Iterable[Mapping[str, Any]], *, first_label: int = FIRST_LABEL
) -> list[dict[str, Any]]:
    """Return predictions as COCO's own evaluation takes them, with the numbers of the file that the table came from.

    For a table without these they are the numbers that `CocoWriter` gives; a result then also has the names.

    Args:
        table: The images that were predicted on.
        predictions: For each image a mapping with ``image_id`` (that of its target), ``boxes`` ``(N, 4)`` xyxy in
            pixels of the original image, ``labels`` ``(N,)``, ``scores`` ``(N,)``, and where there are some ``masks``
            ``(N, H, W)`` or ``(N, 1, H, W)``, of which 0.5 and more is inside, or N `RunLengths`; ``keypoints``
            ``(N, K, 2 or 3)`` with ``keypoint_scores`` ``(N, K)``; tensors on the CPU or arrays; and ``attributes``,
            for each name N texts or None. An image that comes again, as on a rank whose last batch is filled up, is
            left out.
        first_label: Label of the first class, as the data module has it.

    Returns:
        A dict for each object that ``json.dump`` takes: ``image_id``, ``category_id``, ``bbox`` (x, y, width, height),
        ``score``, and where there are some ``segmentation`` (run lengths as text), ``keypoints`` (x, y and the point's
        score, or 1 without scores, of each). COCO's evaluation ignores the other keys: ``attributes``; ``file_name``,
        the path of the image, where the table has no numbers of its images; ``category_name``, where it has none of its
        classes.

    Raises:
        ValueError: If an image or a label is not in the table.
    """
    images, categories, _ = _ids(table)
    left = dict(zip(table.image_numbers.tolist(), images, strict=True))
    known, results = frozenset(left), list[dict[str, Any]]()
    paths = {} if _numbers(table.source_ids) else dict(zip(images, table.image_paths, strict=True))
    class_names = () if _numbers(table.category_ids) else table.class_names
    for found in predictions:
        given, labels = int(found["image_id"]), np.asarray(found["labels"]) - first_label
        if given not in known or np.any((labels < 0) | (labels >= table.num_classes)):
            raise ValueError(f"image_id={given} with labels {labels + first_label} is not of the table")
        number = left.pop(given, None)
        for row, label in enumerate(labels.tolist() if number is not None else ()):
            x, y, right, bottom = np.asarray(found["boxes"][row]).tolist()
            result: dict[str, Any] = {"image_id": number, "category_id": categories[label]}
            if paths:
                result["file_name"] = paths[number]
            if class_names:
                result["category_name"] = class_names[label]
            result |= {"bbox": [x, y, right - x, bottom - y], "score": float(found["scores"][row])}
            if "masks" in found:
                mask = found["masks"][row]
                if not isinstance(mask, RunLengths):
                    mask = run_lengths(np.asarray(mask).reshape(np.shape(mask)[-2:]) >= 0.5)
                size = [mask.height, mask.width]
                result["segmentation"] = {"size": size, "counts": encode_counts(mask.counts)}
            if "keypoints" in found:
                points = np.asarray(found["keypoints"][row], dtype=np.float64)[:, :2]
                sure = np.asarray(found["keypoint_scores"][row]) if "keypoint_scores" in found else 1
                result["keypoints"] = np.insert(points, 2, sure, axis=1).ravel().tolist()
            values = {name: texts[row] for name, texts in found.get("attributes", {}).items()}
            if any(value is not None for value in values.values()):
                result["attributes"] = {name: value for name, value in values.items() if value is not None}
            results.append(result)
    return results


def _ids(table: AnnotationTable) -> _Ids:
    """Return numbers of images, categories and annotations: those of the table's file, where it has them."""
    return (
        _numbers(table.source_ids) or _image_ids(table),
        _numbers(table.category_ids) or list(range(1, table.num_classes + 1)),
        _numbers(table.object_ids) or list(range(1, table.num_objects + 1)),
    )


def _numbers(given: npt.NDArray[np.int64] | None) -> list[int]:
    """Return numbers that are ids, or nothing if one is missing or comes twice."""
    if given is None or (given < 0).any() or len(np.unique(given)) != len(given):
        return []
    numbers: list[int] = given.tolist()
    return numbers


def _image_ids(table: AnnotationTable) -> list[int]:
    """Return ``image_ids`` if they are different whole numbers, else 1, 2, ..."""
    ids = list(table.image_ids)
    plain = all(name.isascii() and name.isdigit() and str(int(name[:18])) == name for name in ids)
    return list(map(int, ids)) if plain and len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))


def _images(table: AnnotationTable, ids: Sequence[int]) -> Iterator[str]:
    columns = (ids, table.image_paths, table.image_ids, table.widths.tolist(), table.heights.tolist())
    for image_id, file_name, name, width, height in zip(*columns, strict=True):
        record = {"id": image_id, "file_name": file_name, "width": width, "height": height}
        yield _text(record if name == str(image_id) else record | {"source_id": name})


def _categories(table: AnnotationTable, ids: Sequence[int]) -> Iterator[str]:
    points: dict[str, Any] = {}
    if table.keypoints is not None:
        points = {"keypoints": table.keypoint_names, "skeleton": [], "flip_pairs": table.flip_pairs}
        points["normalization_pair"] = table.normalization_pair
    for number, name in zip(ids, table.class_names, strict=True):
        yield _text({"id": number, "name": name, "supercategory": ""} | points)


def _annotations(chunk: Sequence[int], *, table: AnnotationTable, ids: _Ids) -> list[str]:
    lines, (images, categories, objects) = [], ids
    record: dict[str, Any]
    for i in chunk:
        rows = table.objects(i)
        for row in range(rows.start, rows.stop):
            x, y, right, bottom = table.boxes[row].tolist()  # float64, in which width and height are exact
            box = (x, y, right - x, bottom - y)
            record = {"id": objects[row], "image_id": images[i], "category_id": categories[table.labels[row]]}
            record |= {"bbox": [_short(value) for value in box], "area": _area(table, row, box[2] * box[3])}
            record |= {"iscrowd": int(table.crowd[row])}
            record |= {key: 1 for key, name in _FLAGS.items() if getattr(table, name)[row]}
            lines.append(_text(record | _mask(table, row) | _points(table, row) | _values(table, row)))
    return lines


def _area(table: AnnotationTable, row: int, of_box: float) -> float | int:
    given = math.nan if table.areas is None else table.areas[row]
    with np.errstate(over="ignore"):
        area = np.float32(of_box if np.isnan(given) else given)
    return _short(area if np.isfinite(area) else of_box)


def _mask(table: AnnotationTable, row: int) -> dict[str, Any]:
    if table.masks is None:
        return {}
    if (runs := table.masks.run_lengths(row)) is not None:
        size, counts = [runs.height, runs.width], np.asarray(runs.counts)
        return {"segmentation": {"size": size, "counts": counts.tolist()}}
    polygons = [[_short(value) for value in each.ravel()] for each in table.masks.polygons(row)]
    return {"segmentation": polygons} if polygons else {}


def _points(table: AnnotationTable, row: int) -> dict[str, Any]:
    if table.keypoints is None or table.visibility is None:
        return {}
    visibility, values = table.visibility[row].tolist(), list[float]()
    for place, v in zip(table.keypoints[row], visibility, strict=True):
        values += [*(_short(value) if v else 0 for value in place), v]
    return {"keypoints": values, "num_keypoints": sum(v > 0 for v in visibility)}


def _values(table: AnnotationTable, row: int) -> dict[str, Any]:
    values = {
        name: attribute.names[int(attribute.ids[row])]
        for name, attribute in table.attributes.items()
        if attribute.ids[row] >= 0
    }
    return {"attributes": values} if values else {}


def _short(number: np.floating | float) -> float | int:
    """Return a number in the fewest digits that give its type the same bits again, whole ones without a fraction."""
    value = float(str(number))
    whole = value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0)
    return int(value) if whole else value


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(", ", ": "))
