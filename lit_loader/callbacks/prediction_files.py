"""Predictions of images, in the images' own pixels, as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from lit_loader.annotations import AnnotationTable, Attribute, KeypointSchema
from lit_loader.annotations.formats.coco_writer import coco_results
from lit_loader.annotations.formats.keypoints_txt_writer import KeypointsTxtWriter
from lit_loader.annotations.formats.rows import Declared
from lit_loader.annotations.formats.voc_writer import voc_image_paths, write_image_xml
from lit_loader.annotations.formats.writer import write_file
from lit_loader.annotations.masks import Masks, RunLengths
from lit_loader.datamodules.pictures import draw_objects
from lit_loader.errors import SettingError
from lit_loader.foundation.files import new_file, new_folder

__all__ = ["Found", "PredictionFormat", "check_can_be_written", "draw_prediction", "write_predictions"]

PredictionFormat: TypeAlias = Literal["coco", "voc", "keypoints_txt", "csv"]

_SCORE: Final = "score"
"""Name of the attribute, or column, that holds the score of an object."""


_PICTURE_SIDE: Final = 1024
"""Longer side of a drawn image in pixels."""

_BOX_COLUMNS: Final = ("xmin", "ymin", "xmax", "ymax")
_CSV_COLUMNS: Final = ("path", "label", _SCORE, *_BOX_COLUMNS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What was found in one image, or in one object's crop of it; n objects, or n labels of the whole image.

    Attributes:
        size: Height and width of the image in pixels, or None if they are not known.
        labels: int64 ``(n,)`` from 0.
        scores: float32 ``(n,)``.
        boxes: float32 ``(n, 4)``, xyxy in pixels of the image, or None for labels of the whole image.
        keypoints: float32 ``(n, K, 2)``, pixels of the image, or None.
        keypoint_scores: float32 ``(n, K)``, or None.
        attributes: int64 ``(n,)`` by name, positions in the names of the values.
        masks: n masks of the image's size, or None.
    """

    size: tuple[int, int] | None = None
    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    boxes: npt.NDArray[np.float32] | None = None
    keypoints: npt.NDArray[np.float32] | None = None
    keypoint_scores: npt.NDArray[np.float32] | None = None
    attributes: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    masks: Sequence[RunLengths] | None = None


def check_can_be_written(
    kind: PredictionFormat,
    folder: Path,
    name: str,
    table: AnnotationTable,
    *,
    names: Sequence[str],
    attributes: Mapping[str, Sequence[str]],
) -> None:
    """Refuse what would fail when the predictions are there.

    Args:
        kind: The format.
        folder: Where files go.
        name: Of the file, without its ending.
        table: The images.
        names: Names of classes and points.
        attributes: Names of the values of each attribute.

    Raises:
        ValueError: If a path or a name cannot be in such a file.
        FileExistsError: If there are XML files already.
    """
    if kind == "voc":
        voc_image_paths(table)
        if (folder / name).exists():
            raise FileExistsError(
                f"{folder / name} exists, and XML files of other images in it would stay; delete it, or give another "
                "folder"
            )
    taken = {"coco": (), "csv": _CSV_COLUMNS}.get(kind, (_SCORE,))
    for attribute in attributes:
        if attribute in taken:
            raise ValueError(
                f"format={kind!r} writes {attribute!r} itself; rename the attribute of that name in the data"
            )
    values = [value for each in attributes.values() for value in each]
    for text in (*names, *attributes, *values, *table.image_paths) if kind == "keypoints_txt" else ():
        if text != text.strip() or text.startswith("#") or any(mark in text for mark in "\t\n\r"):
            rule = f"writes a list with tabs between columns, which cannot hold {text!r}"
            raise SettingError("format", kind, rule, settings={"format": "csv"})


def write_predictions(
    kind: PredictionFormat,
    folder: Path,
    name: str,
    found: Mapping[int, Found],
    *,
    table: AnnotationTable,
    attributes: Mapping[str, Sequence[str]],
    schema: KeypointSchema | None,
) -> Path:
    """Write the predictions of a set, and return the file, or the folder of XML files; it is complete or not there.

    Args:
        kind: The format.
        folder: Where to write.
        name: Of the file, without its ending.
        found: What was found, by the image's row in the table.
        table: The images; its classes begin with those of the predictions.
        attributes: Names of the values of each attribute.
        schema: The points of the predictions, or None without points.
    """
    held = list(found.values())
    attributes = {
        name: values for name, values in attributes.items() if any(name in one.attributes for one in held)
    }
    schema = schema if any(one.keypoints is not None for one in held) else None
    if kind == "coco":
        path = folder / f"{name}.json"
        write_file(path, _coco_parts(found, table, attributes))
    elif kind == "csv":
        path = folder / f"{name}.csv"
        write_file(path, _csv_parts(found, table, attributes, schema))
    else:
        predicted = _as_table(found, table, attributes, schema)
        if kind == "keypoints_txt":
            path = folder / f"{name}.txt"
            columns = ["path", "class", "box", *(f"attribute:{each}" for each in predicted.attributes)]
            columns += [] if predicted.keypoints is None else ["points"]
            # images in which nothing was found have no line
            KeypointsTxtWriter(columns=columns, separator="\t").write(
                predicted, folder, path.name, progress=False
            )
        else:
            path = folder / name
            _write_voc(path, predicted, attributes)
    return path


def draw_prediction(
    pixels: Tensor,
    result: Found,
    path: Path,
    *,
    class_names: Sequence[str],
    attributes: Mapping[str, Sequence[str]],
    min_score: float,
) -> None:
    """Write a JPEG file of an image with its predictions.

    Args:
        pixels: The image, uint8 ``(3, H, W)``, of the size that boxes and points refer to.
        result: The predictions.
        path: The file; missing folders are made.
        class_names: Names of the classes.
        attributes: Names of the values of each attribute.
        min_score: Objects below it are left out; labels of the whole image are all drawn.

    Raises:
        OSError: If the file cannot be written.
    """
    columns = {
        "labels": result.labels,
        "scores": result.scores,
        "boxes": result.boxes,
        "keypoints": result.keypoints,
        **result.attributes,
    }
    target = {name: torch.as_tensor(column) for name, column in columns.items() if column is not None}
    if result.masks:
        height, width = pixels.shape[-2:]
        masks = Masks.from_rows(list(result.masks))
        rows = [masks.rasterize(row, height, width) for row in range(len(result.masks))]
        target["masks"] = torch.from_numpy(np.stack(rows))
    canvas = draw_objects(
        pixels,
        target,
        class_names=class_names,
        first_label=0,
        attributes=attributes,
        min_score=0.0 if result.boxes is None else min_score,
        longer_side=_PICTURE_SIDE,
    )
    buffer = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=90)
    with new_file(path, mode=0o666) as file:
        file.write(buffer.getvalue())


def _coco_parts(
    found: Mapping[int, Found], table: AnnotationTable, attributes: Mapping[str, Sequence[str]]
) -> Iterator[bytes]:
    def entries() -> Iterator[dict[str, Any]]:
        for row, one in found.items():
            values = {
                name: [_value(attributes[name], i) for i in ids.tolist()]
                for name, ids in one.attributes.items()
            }
            given = {
                name: getattr(one, name)
                for name in ("boxes", "labels", "scores", "keypoints", "keypoint_scores", "masks")
            }
            kept = {name: value for name, value in given.items() if value is not None}
            yield {**kept, "attributes": values, "image_id": int(table.image_numbers[row])}

    yield b"["
    for number, result in enumerate(coco_results(table, entries(), first_label=0)):
        yield b",\n" if number else b"\n"
        yield json.dumps(result, allow_nan=False).encode("ascii")
    yield b"\n]\n"


def _csv_parts(
    found: Mapping[int, Found],
    table: AnnotationTable,
    attributes: Mapping[str, Sequence[str]],
    schema: KeypointSchema | None,
) -> Iterator[bytes]:
    held = list(found.values())
    has_boxes = any(one.boxes is not None for one in held)
    points = () if schema is None else schema.names
    head = [*(_CSV_COLUMNS if has_boxes else _CSV_COLUMNS[:3]), *attributes]
    for name in points:
        head += [f"{name}_x", f"{name}_y", f"{name}_{_SCORE}"]
    yield _csv_line(head)
    for row, one in found.items():
        for i, (label, score) in enumerate(zip(one.labels.tolist(), one.scores, strict=True)):
            line = [table.image_paths[row], table.class_names[label], str(score)]
            line += [] if one.boxes is None else map(str, one.boxes[i])
            for name, values in attributes.items():
                line.append(
                    (_value(values, int(one.attributes[name][i])) or "") if name in one.attributes else ""
                )
            for k in range(len(points)):
                place = ("", "") if one.keypoints is None else map(str, one.keypoints[i, k])
                line += [*place, "" if one.keypoint_scores is None else str(one.keypoint_scores[i, k])]
            yield _csv_line(line)


def _csv_line(fields: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _value(values: Sequence[str], place: int) -> str | None:
    return values[place] if place >= 0 else None


def _as_table(
    found: Mapping[int, Found],
    table: AnnotationTable,
    attributes: Mapping[str, Sequence[str]],
    schema: KeypointSchema | None,
) -> AnnotationTable:
    """Return the predictions as annotations, of which all points are visible and the score is an attribute."""
    held = list(found.values())
    images = table.select(list(found))
    sizes = [(0, 0) if one.size is None else one.size for one in held]
    count = sum(len(one.labels) for one in held)
    texts = [str(score) for one in held for score in one.scores]
    scores, places = np.unique(np.array(texts, dtype=object), return_inverse=True)
    columns: dict[str, Any] = {_SCORE: Attribute(ids=places.reshape(-1), names=tuple(scores.tolist()))}
    for name, values in attributes.items():
        none = [np.full(len(one.labels), -1) for one in held]
        ids = [one.attributes.get(name, empty) for one, empty in zip(held, none, strict=True)]
        columns[name] = Attribute(ids=np.concatenate([np.zeros(0, np.int64), *ids]), names=tuple(values))
    points: dict[str, Any] = {}
    if schema is not None:
        shape = (0, len(schema.names), 2)
        points = {
            "keypoints": np.concatenate(
                [np.zeros(shape, np.float32), *(_points(one, shape) for one in held)]
            ),
            "visibility": np.full((count, len(schema.names)), 2, dtype=np.uint8),
            "keypoint_names": schema.names,
            "flip_pairs": schema.flip_pairs,
            "normalization_pair": schema.normalization_pair,
        }
    return AnnotationTable(
        root=table.root,
        image_paths=images.image_paths,
        image_ids=images.image_ids,
        widths=[width or known for (_, width), known in zip(sizes, images.widths.tolist(), strict=True)],
        heights=[height or known for (height, _), known in zip(sizes, images.heights.tolist(), strict=True)],
        class_names=table.class_names,
        offsets=np.cumsum([0, *(len(one.labels) for one in held)]),
        boxes=np.concatenate(
            [np.zeros((0, 4), np.float32), *(one.boxes for one in held if one.boxes is not None)]
        ),
        labels=np.concatenate([np.zeros(0, np.int64), *(one.labels for one in held)]),
        attributes=columns,
        **points,
    )


def _points(one: Found, shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    return np.zeros(shape, np.float32) if one.keypoints is None else one.keypoints


def _write_voc(path: Path, predicted: AnnotationTable, attributes: Mapping[str, Sequence[str]]) -> None:
    """Write a folder with an XML file for each image.

    ``<schema>`` lists no scores: it stands in every file, and there may be as many scores as objects. A reader takes
    the values that it does not list from the objects.
    """
    declared = Declared(
        class_names=predicted.class_names,
        keypoints=predicted.keypoint_schema,
        attributes=tuple((name, tuple(values)) for name, values in attributes.items()),
    )
    with new_folder(path) as folder:
        for image, place in enumerate(voc_image_paths(predicted, image_dir=".")):
            file = folder / "Annotations" / Path(place).with_suffix(".xml")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_image_xml(file, predicted, image, filename=Path(place).name, declared=declared)
