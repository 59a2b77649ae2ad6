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

from lit_loader.annotations.formats.coco.reader import SURROGATE, checked_name
from lit_loader.annotations.formats.rows import MAX_POINTS
from lit_loader.annotations.formats.writer import Writer, in_chunks, lost, outline_areas, write_file
from lit_loader.annotations.masks import RunLengths, encode_counts, run_lengths
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.types import FIRST_LABEL

__all__ = ["CocoWriter", "coco_results"]

# Keys that are written only where the flag is set; `iscrowd` is always written, as in COCO.
_FLAGS: Final = {"ignore": "difficult", "truncated": "truncated", "occluded": "occluded"}
_Ids: TypeAlias = tuple[list[int], list[int], list[int]]
"""Ids of images, categories and annotations."""


@dataclass(frozen=True, kw_only=True)
class CocoWriter(Writer):
    """Writes a table as COCO JSON, one entry a line; images are not copied.

    ``file_name`` is the image's path relative to the table's root. Images, categories and annotations keep the numeric
    ids of the file that they were read from. Without these they are numbered from 1, but images whose ``image_ids``
    are whole numbers keep them. Polygons are written as polygons, run lengths as numbers.

    The file has additional keys, which other programs ignore, so that nothing is lost: ``flip_pairs``,
    ``normalization_pair`` (positions in ``keypoints``, from 0) and ``sigmas`` of a category; ``attributes`` of an
    annotation (names with values, as CVAT writes them); a list ``attributes`` of the possible values, in the order of
    their ids; ``truncated``, ``occluded`` and ``ignore`` (difficult) of an annotation with that flag; ``source_id`` of
    an image whose id is not a number; and ``split`` in ``info``.
    """

    format: ClassVar[str] = "coco"
    description: ClassVar[str] = "COCO JSON; NAME: the JSON file"
    name_of_split: ClassVar[str] = "annotations/{}.json"

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return the parts of a table that a COCO file cannot hold."""
        losses = [f"{loss}, which become polygons" for loss in lost(table, "oriented")]
        losses += lost(table, "places", "sizes", "files")
        if table.keypoints is not None and not table.class_names:
            losses.append("names of points, which only categories can hold")
        # The same float64 arithmetic as in the reader.
        corners = table.boxes.astype(np.float64)
        with np.errstate(over="ignore"):  # corners beyond float32 are counted as inexact
            read_back = (corners[:, :2] + (corners[:, 2:] - corners[:, :2])).astype(np.float32)
        if num_inexact := int((read_back != table.boxes[:, 2:]).any(axis=1).sum()):
            losses.append(f"{num_inexact} boxes exactly, since x + width is not their other corner")
        for name in ("source_ids", "category_ids", "object_ids"):
            ids = getattr(table, name)
            if ids is not None and len(ids) and not _valid_ids(ids):
                losses.append(f"{name}, since one is missing or repeated")
        return losses

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write the file; after a failure no part of it remains.

        Raises:
            ValueError: If a name would not be read back.
            UnsafePathError: If ``name`` leads out of ``root``.
        """
        # Before anything is written, because a reader would refuse the whole file.
        _check_names(table)
        path = root / check_relative(name)
        ids = _ids(table)
        annotations = partial(
            _annotations, table=table, ids=ids, is_oriented=table.has_orientation(), areas=outline_areas(table)
        )
        # Streamed, because all annotations of a large set as one text would take gigabytes.
        chunks = in_chunks(annotations, range(table.num_images), progress=progress)

        def parts() -> Iterator[str]:
            yield '{\n"info": ' + _text({"split": table.split}) + ',\n"licenses": [],\n'
            yield from _list("images", _images(table, ids[0]))
            yield from _list("categories", _categories(table, ids[1]))
            attributes = ({"name": key, "values": values.names} for key, values in table.attributes.items())
            yield from _list("attributes", map(_text, attributes))
            yield from _list("annotations", (line for chunk in chunks for line in chunk), last=True)

        # JSON escapes all other characters, so every tool reads the file, whatever its encoding.
        write_file(path, (part.encode("ascii") for part in parts()))


def _check_names(table: AnnotationTable) -> None:
    """Raise ValueError for a name that `CocoReader` would refuse."""
    names_by_subject: dict[str, Iterable[str]] = {
        "class name": table.class_names,
        "name of a point": table.keypoint_names,
        "name of an attribute": table.attributes,
        "split": [table.split] if table.split else [],
        **{f"value of attribute {name!r}": values.names for name, values in table.attributes.items()},
    }
    for subject, names in names_by_subject.items():
        for name in names:
            checked_name(name, f"{subject} {shorten(repr(name))}")
    for name in (*table.image_paths, *table.image_ids):
        if SURROGATE.search(name):
            raise ValueError(f"image {name!r} is not Unicode, which JSON requires; rename its file")
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
    """Convert predictions to COCO's results format, with the ids of the file that the table was read from.

    For a table without these ids, they are the ones that `CocoWriter` writes, and results also contain the names.

    Args:
        table: The images that the predictions belong to.
        predictions: For each image a mapping with ``image_id`` (from its target), ``boxes`` ``(N, 4)`` xyxy in
            pixels of the original image, ``labels`` ``(N,)``, ``scores`` ``(N,)``, and optionally ``masks``
            ``(N, H, W)`` or ``(N, 1, H, W)``, inside from 0.5 on, or N `RunLengths`; ``keypoints`` ``(N, K, 2 or 3)``
            with ``keypoint_scores`` ``(N, K)``; tensors on the CPU or arrays; and ``attributes``, for each name N texts
            or None. A second prediction for an image, as from a padded last batch, is ignored.
        first_label: Label of the first class, as the data module has it.

    Returns:
        A dict for each object that ``json.dump`` takes: ``image_id``, ``category_id``, ``bbox`` (x, y, width, height),
        ``score``, and optionally ``segmentation`` (run lengths as text) and ``keypoints`` (x, y and score of each
        point, 1 without scores). COCO's evaluation ignores the other keys: ``attributes``; ``file_name``, the path of
        the image, and ``category_name``, where the table lacks the file's ids of images or categories.

    Raises:
        ValueError: If an image or a label is not in the table.
    """
    image_ids, category_ids, _ = _ids(table)
    id_by_number = dict(zip(table.image_numbers.tolist(), image_ids, strict=True))
    pending = set(id_by_number)
    # Names only where the numbers are invented: elsewhere the ids identify image and class. Images
    # without annotations have names of classes too, although a checkpoint may know their category ids.
    paths = {} if _valid_ids(table.source_ids) else dict(zip(image_ids, table.image_paths, strict=True))
    class_names = () if _valid_ids(table.category_ids) and not paths else table.class_names
    results: list[dict[str, Any]] = []
    for prediction in predictions:
        number = int(prediction["image_id"])
        labels = np.asarray(prediction["labels"]) - first_label
        if number not in id_by_number or np.any((labels < 0) | (labels >= table.num_classes)):
            raise ValueError(f"image_id={number} with labels {labels + first_label} is not in the table")
        # A sampler fills up the last batch with images that it has delivered before.
        if number not in pending:
            continue
        pending.remove(number)
        for row, label in enumerate(labels.tolist()):
            result: dict[str, Any] = {"image_id": id_by_number[number], "category_id": category_ids[label]}
            if paths:
                result["file_name"] = paths[id_by_number[number]]
            if class_names:
                result["category_name"] = class_names[label]
            results.append(result | _result_values(prediction, row))
    return results


def _result_values(prediction: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return one predicted object without its ids."""
    x, y, right, bottom = np.asarray(prediction["boxes"][row]).tolist()
    values: dict[str, Any] = {"bbox": [x, y, right - x, bottom - y], "score": float(prediction["scores"][row])}
    if "masks" in prediction:
        mask = prediction["masks"][row]
        if not isinstance(mask, RunLengths):
            # torchvision has masks of (1, H, W), others of (H, W).
            mask = run_lengths(np.asarray(mask).reshape(np.shape(mask)[-2:]) >= 0.5)
        size = [mask.height, mask.width]
        values["segmentation"] = {"size": size, "counts": encode_counts(mask.counts)}
    if "keypoints" in prediction:
        points = np.asarray(prediction["keypoints"][row], dtype=np.float64)[:, :2]
        scores = np.asarray(prediction["keypoint_scores"][row]) if "keypoint_scores" in prediction else 1
        values["keypoints"] = np.insert(points, 2, scores, axis=1).ravel().tolist()
    attributes = {name: texts[row] for name, texts in prediction.get("attributes", {}).items()}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    if attributes:
        values["attributes"] = attributes
    return values


def _ids(table: AnnotationTable) -> _Ids:
    """Return the ids of the file that the table was read from, or new ones where it has none."""
    return (
        _valid_ids(table.source_ids) or _image_ids(table),
        _valid_ids(table.category_ids) or list(range(1, table.num_classes + 1)),
        _valid_ids(table.object_ids) or list(range(1, table.num_objects + 1)),
    )


def _valid_ids(ids: npt.NDArray[np.int64] | None) -> list[int]:
    """Return the ids, or an empty list if one is missing or repeated."""
    if ids is None or (ids < 0).any() or len(np.unique(ids)) != len(ids):
        return []
    return list(ids.tolist())


def _image_ids(table: AnnotationTable) -> list[int]:
    """Return ``image_ids`` as numbers if they are distinct whole numbers, else 1, 2, ..."""
    ids = list(table.image_ids)
    # A number of more than 18 digits may exceed int64; cut off, it differs from its text.
    are_numbers = all(name.isascii() and name.isdigit() and str(int(name[:18])) == name for name in ids)
    return list(map(int, ids)) if are_numbers and len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))


def _images(table: AnnotationTable, ids: Sequence[int]) -> Iterator[str]:
    columns = (ids, table.image_paths, table.image_ids, table.widths.tolist(), table.heights.tolist())
    for image_id, file_name, name, width, height in zip(*columns, strict=True):
        record = {"id": image_id, "file_name": file_name, "width": width, "height": height}
        yield _text(record if name == str(image_id) else record | {"source_id": name})


def _categories(table: AnnotationTable, ids: Sequence[int]) -> Iterator[str]:
    points: dict[str, Any] = {}
    if table.keypoints is not None:
        # COCO counts the positions of a skeleton from 1.
        skeleton = [(first + 1, second + 1) for first, second in table.skeleton]
        points = {"keypoints": table.keypoint_names, "skeleton": skeleton, "flip_pairs": table.flip_pairs}
        points["normalization_pair"] = table.normalization_pair
        if table.keypoint_sigmas:
            points["sigmas"] = table.keypoint_sigmas
    for number, name in zip(ids, table.class_names, strict=True):
        yield _text({"id": number, "name": name, "supercategory": ""} | points)


def _annotations(
    chunk: Sequence[int],
    *,
    table: AnnotationTable,
    ids: _Ids,
    is_oriented: npt.NDArray[np.bool_],
    areas: npt.NDArray[np.float64],
) -> list[str]:
    image_ids, category_ids, object_ids = ids
    lines = []
    for i in chunk:
        rows = table.objects(i)
        for row in range(rows.start, rows.stop):
            x, y, right, bottom = table.boxes[row].tolist()  # float64, in which width and height are exact
            outline = table.oriented_corners([row])[0] if is_oriented[row] else None
            record: dict[str, Any] = {
                "id": object_ids[row],
                "image_id": image_ids[i],
                "category_id": category_ids[table.labels[row]],
                "bbox": [_short(value) for value in (x, y, right - x, bottom - y)],
                "area": _area(table, row, outline_area=float(areas[row])),
                "iscrowd": int(table.crowd[row]),
                **{key: 1 for key, name in _FLAGS.items() if getattr(table, name)[row]},
                **_mask(table, row, outline),
                **_points(table, row),
                **_attributes(table, row),
            }
            lines.append(_text(record))
    return lines


def _area(table: AnnotationTable, row: int, *, outline_area: float) -> float | int:
    # float32 as in the table; the area of an outline beyond its range stays float64.
    file_area = math.nan if table.areas is None else table.areas[row]
    with np.errstate(over="ignore"):
        area = np.float32(outline_area if np.isnan(file_area) else file_area)
    return _short(area if np.isfinite(area) else outline_area)


def _mask(table: AnnotationTable, row: int, outline: npt.NDArray[np.float32] | None) -> dict[str, Any]:
    polygons: list[list[float | int]] = []
    if table.masks is not None:
        if (runs := table.masks.run_lengths(row)) is not None:
            size = [runs.height, runs.width]
            return {"segmentation": {"size": size, "counts": np.asarray(runs.counts).tolist()}}
        polygons = [[_short(value) for value in polygon.ravel()] for polygon in table.masks.polygons(row)]
    # COCO has no oriented boxes, so the corners of an object without a mask become its polygon.
    if not polygons and outline is not None:
        polygons = [[_short(value) for value in outline.ravel()]]
    return {"segmentation": polygons} if polygons else {}


def _points(table: AnnotationTable, row: int) -> dict[str, Any]:
    if table.keypoints is None or table.visibility is None:
        return {}
    visibility = table.visibility[row].tolist()
    values: list[float] = []
    # COCO expects 0, 0, 0 for an absent point.
    for point, v in zip(table.keypoints[row], visibility, strict=True):
        values += [*(_short(value) if v else 0 for value in point), v]
    return {"keypoints": values, "num_keypoints": sum(v > 0 for v in visibility)}


def _attributes(table: AnnotationTable, row: int) -> dict[str, Any]:
    values = {
        name: attribute.names[int(attribute.ids[row])]
        for name, attribute in table.attributes.items()
        if attribute.ids[row] >= 0
    }
    return {"attributes": values} if values else {}


def _short(number: np.floating | float) -> float | int:
    """Return the number with the fewest digits that restore its bits; an int for a whole number."""
    value = float(str(number))  # str() of a float32 is shorter than str() of the equal float64
    # An int would lose the sign of -0.0.
    is_whole = value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0)
    return int(value) if is_whole else value


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(", ", ": "))
