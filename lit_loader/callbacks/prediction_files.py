"""Files of predictions, with coordinates in pixels of the original images."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from lit_loader.annotations import AnnotationTable, Attribute, KeypointSchema
from lit_loader.annotations.formats.coco import coco_results
from lit_loader.annotations.formats.keypoints_txt import KeypointsTxtWriter
from lit_loader.annotations.formats.rows import DeclaredNames
from lit_loader.annotations.formats.voc import voc_image_paths, write_image_xml
from lit_loader.annotations.formats.writer import write_file
from lit_loader.annotations.masks import Masks, RunLengths
from lit_loader.datamodules.pictures import draw_objects
from lit_loader.errors import SettingError
from lit_loader.foundation.files import new_file, new_folder

PredictionFormat: TypeAlias = Literal["coco", "voc", "keypoints_txt", "csv"]

_SCORE: Final = "score"
"""Name of the attribute or column with the score of an object."""

_PICTURE_SIDE: Final = 1024
"""Length of the longer side of a drawn image, in pixels."""

_BOX_COLUMNS: Final = ("xmin", "ymin", "xmax", "ymax")
_CSV_COLUMNS: Final = ("path", "label", _SCORE, *_BOX_COLUMNS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The n predicted objects of an image or of an object's crop, or n labels of a whole image.

    Attributes:
        size: Height and width of the image in pixels; None if unknown.
        labels: int64 ``(n,)``, class ids from 0.
        scores: float32 ``(n,)``; NaN if the model predicts none.
        boxes: float32 ``(n, 4)``, xyxy in pixels of the image; None for labels of a whole image.
        keypoints: float32 ``(n, K, 2)``, in pixels of the image; None without keypoints.
        keypoint_scores: float32 ``(n, K)``; None if the model predicts none.
        attributes: int64 ``(n,)`` per attribute name, indices into the names of its values.
        masks: n masks of the image's size; None if the model predicts none.
    """

    size: tuple[int, int] | None = None
    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    boxes: npt.NDArray[np.float32] | None = None
    keypoints: npt.NDArray[np.float32] | None = None
    keypoint_scores: npt.NDArray[np.float32] | None = None
    attributes: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    masks: Sequence[RunLengths] | None = None

    def select(self, is_selected: npt.NDArray[np.bool_]) -> Prediction:
        """Return some of the objects, those marked by a mask ``(n,)``."""
        names = ("labels", "scores", "boxes", "keypoints", "keypoint_scores")
        columns = {name: getattr(self, name) for name in names}
        selected: dict[str, Any] = {
            name: None if values is None else values[is_selected] for name, values in columns.items()
        }
        masks = self.masks
        return Prediction(
            size=self.size,
            attributes={name: ids[is_selected] for name, ids in self.attributes.items()},
            masks=None if masks is None else [masks[row] for row in np.flatnonzero(is_selected).tolist()],
            **selected,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedSet:
    """A set of images whose predictions are written to one file.

    Attributes:
        name: File name without extension, or name of the folder of XML files.
        images: Table of the images. Its class names start with the model's.
        class_names: Class names of the model.
        attributes: Value names of each attribute.
        schema: Keypoints of the predictions; None without keypoints.
    """

    name: str
    images: AnnotationTable
    class_names: Sequence[str]
    attributes: Mapping[str, Sequence[str]]
    schema: KeypointSchema | None


def check_can_be_written(kind: PredictionFormat, folder: Path, predicted: PredictedSet) -> None:
    """Check before a prediction that its results can be written in a format.

    Args:
        kind: The format.
        folder: Folder of the file.
        predicted: The set.

    Raises:
        ValueError: If the format cannot represent a path or a name.
        FileExistsError: If the folder of XML files exists.
    """
    table = predicted.images
    attributes = predicted.attributes
    name = predicted.name
    if kind == "voc":
        voc_image_paths(table)  # raises if an id cannot be a file name, or two are equal
        if (folder / name).exists():
            rule = "exists, and XML files of other images in it would stay"
            raise FileExistsError(f"{folder / name} {rule}; delete it, or give another folder")
    reserved_names = {"coco": (), "csv": _CSV_COLUMNS}.get(kind, (_SCORE,))
    reserved = [name for name in attributes if name in reserved_names]
    if reserved:
        raise ValueError(f"format={kind!r} has a column {reserved[0]!r} of its own; rename that attribute in the data")
    if kind != "keypoints_txt":
        return
    points = () if predicted.schema is None else predicted.schema.names
    values = itertools.chain.from_iterable(attributes.values())
    for text in (*predicted.class_names, *points, *attributes, *values, *table.image_paths):
        # Such text would be split or stripped, or read as a comment, when the list is read.
        if text != text.strip() or text.startswith("#") or any(separator in text for separator in "\t\n\r"):
            rule = f"cannot contain {text!r} in a tab-separated list"
            raise SettingError("format", kind, rule, settings={"format": "csv"})


def write_predictions(
    kind: PredictionFormat, folder: Path, predictions: Mapping[int, Prediction], predicted: PredictedSet
) -> Path:
    """Write the predictions of a set atomically, and return the path of the file or of the folder of XML files.

    Args:
        kind: The format.
        folder: Folder to write to.
        predictions: The predictions by row of the image in the table.
        predicted: The set.
    """
    # Only attributes and points that the model has predicted: a column of empty values would look like a failure.
    names = {name for prediction in predictions.values() for name in prediction.attributes}
    attributes = {name: values for name, values in predicted.attributes.items() if name in names}
    has_points = any(prediction.keypoints is not None for prediction in predictions.values())
    predicted = replace(predicted, attributes=attributes, schema=predicted.schema if has_points else None)
    suffix = {"coco": ".json", "csv": ".csv", "voc": "", "keypoints_txt": ".txt"}[kind]
    path = folder / f"{predicted.name}{suffix}"
    if kind == "coco":
        write_file(path, _coco_parts(predictions, predicted))
        return path
    if kind == "csv":
        write_file(path, _csv_parts(predictions, predicted))
        return path
    table = _as_table(predictions, predicted)
    if kind == "voc":
        _write_voc(path, table, attributes, _point_scores(predictions))
        return path
    columns = ["path", "class", "box", *(f"attribute:{attribute}" for attribute in table.attributes)]
    if table.keypoints is not None:
        columns.append("points")
    KeypointsTxtWriter(columns=columns, separator="\t").write(table, folder, path.name, progress=False)
    return path


def draw_prediction(
    pixels: Tensor, prediction: Prediction, path: Path, predicted: PredictedSet, *, min_score: float
) -> None:
    """Write a JPEG file of an image with its predictions.

    Args:
        pixels: The original image, uint8 ``(3, H, W)``.
        prediction: Predictions in its pixels.
        path: Path of the file; missing folders are created.
        predicted: The set of the image.
        min_score: Objects with lower scores are not drawn. Labels of a whole image are always drawn.

    Raises:
        OSError: If the file cannot be written.
    """
    # The fields of a target of `DetectionDataset`, as `draw_objects` takes them.
    columns = {
        "labels": prediction.labels,
        "scores": None if np.isnan(prediction.scores).any() else prediction.scores,
        "boxes": prediction.boxes,
        "keypoints": prediction.keypoints,
        **prediction.attributes,
    }
    target = {name: torch.as_tensor(column) for name, column in columns.items() if column is not None}
    if prediction.masks:
        height, width = pixels.shape[-2:]
        masks = Masks.from_rows(list(prediction.masks))
        rows = [masks.rasterize(row, height, width) for row in range(len(prediction.masks))]
        target["masks"] = torch.from_numpy(np.stack(rows))
    canvas = draw_objects(
        pixels,
        target,
        class_names=predicted.images.class_names,
        first_label=0,
        attributes=predicted.attributes,
        min_score=0.0 if prediction.boxes is None else min_score,
        skeleton=() if predicted.schema is None else predicted.schema.skeleton,
        longer_side=_PICTURE_SIDE,
    )
    # Encoded in memory first, so that a full disk leaves no partial file.
    buffer = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=90)
    with new_file(path, mode=0o666) as file:
        file.write(buffer.getvalue())


def _coco_parts(predictions: Mapping[int, Prediction], predicted: PredictedSet) -> Iterator[bytes]:
    """Yield a COCO result file one object at a time, so that the whole text is never in memory."""

    def entries() -> Iterator[dict[str, Any]]:
        names = ("boxes", "labels", "scores", "keypoints", "keypoint_scores", "masks")
        for row, prediction in predictions.items():
            fields = {name: getattr(prediction, name) for name in names}
            entry = {name: value for name, value in fields.items() if value is not None}
            # COCO's evaluation sorts results by score, and JSON has no NaN.
            entry["scores"] = np.nan_to_num(prediction.scores, nan=1.0)
            entry["attributes"] = {
                name: [_value_name(predicted.attributes[name], value_id) for value_id in ids.tolist()]
                for name, ids in prediction.attributes.items()
            }
            entry["image_id"] = int(predicted.images.image_numbers[row])
            yield entry

    # One result per line, so that large files can be read by people and by line-based tools.
    yield b"["
    for number, result in enumerate(coco_results(predicted.images, entries(), first_label=0)):
        yield b",\n" if number else b"\n"
        yield json.dumps(result, allow_nan=False).encode("ascii")
    yield b"\n]\n"


def _csv_parts(predictions: Mapping[int, Prediction], predicted: PredictedSet) -> Iterator[bytes]:
    table = predicted.images
    has_boxes = any(prediction.boxes is not None for prediction in predictions.values())
    points = () if predicted.schema is None else predicted.schema.names
    header = [*(_CSV_COLUMNS if has_boxes else _CSV_COLUMNS[:3]), *predicted.attributes]
    for name in points:
        header += [f"{name}_x", f"{name}_y", f"{name}_{_SCORE}"]
    yield _csv_line(header)
    for row, prediction in predictions.items():
        for i, (label, score) in enumerate(zip(prediction.labels.tolist(), prediction.scores, strict=True)):
            line = [table.image_paths[row], table.class_names[label], "" if np.isnan(score) else str(score)]
            if prediction.boxes is not None:
                line += map(str, prediction.boxes[i])
            for name, values in predicted.attributes.items():
                ids = prediction.attributes.get(name)
                line.append("" if ids is None else _value_name(values, int(ids[i])) or "")
            for k in range(len(points)):
                line += ("", "") if prediction.keypoints is None else map(str, prediction.keypoints[i, k])
                scores = prediction.keypoint_scores
                line.append("" if scores is None else str(scores[i, k]))
            yield _csv_line(line)


def _csv_line(fields: Sequence[str]) -> bytes:
    text = io.StringIO()
    # csv's default is "\r\n". Bytes of a path that are not UTF-8 are written unchanged.
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _value_name(names: Sequence[str], value_id: int) -> str | None:
    return names[value_id] if value_id >= 0 else None


def _as_table(predictions: Mapping[int, Prediction], predicted: PredictedSet) -> AnnotationTable:
    """Convert predictions to a table in which all points are visible and the score is an attribute."""
    parts = list(predictions.values())
    schema = predicted.schema
    images = predicted.images.select(list(predictions))
    # Labels of whole images come without sizes.
    table_sizes = zip(images.heights.tolist(), images.widths.tolist(), strict=True)
    sizes = [part.size or table_size for part, table_size in zip(parts, table_sizes, strict=True)]
    # An attribute is a list of names: each score, as text with all its digits, is one of them.
    scores = np.concatenate([np.zeros(0, np.float32), *(part.scores for part in parts)])
    score_texts = np.array([str(score) for score in scores], dtype=object)
    score_names, score_ids = np.unique(score_texts, return_inverse=True)
    columns: dict[str, Any] = {}
    if not np.isnan(scores).any():
        columns[_SCORE] = Attribute(ids=score_ids.reshape(-1), names=tuple(score_names.tolist()))
    for name, values in predicted.attributes.items():
        ids = [part.attributes.get(name, np.full(len(part.labels), -1)) for part in parts]
        columns[name] = Attribute(ids=np.concatenate([np.zeros(0, np.int64), *ids]), names=tuple(values))
    # Each concatenation starts with an empty array: numpy cannot concatenate an empty list of predictions.
    points: dict[str, Any] = {}
    if schema is not None:
        empty = np.zeros((0, len(schema.names), 2), np.float32)
        keypoints = [empty if part.keypoints is None else part.keypoints for part in parts]
        points = {
            "keypoints": np.concatenate([empty, *keypoints]),
            "visibility": np.full((len(score_texts), len(schema.names)), 2, dtype=np.uint8),
            **schema.columns(),
        }
    return AnnotationTable(
        root=images.root,
        image_paths=images.image_paths,
        image_ids=images.image_ids,
        widths=[width for _, width in sizes],
        heights=[height for height, _ in sizes],
        class_names=images.class_names,
        offsets=np.cumsum([0, *(len(part.labels) for part in parts)]),
        boxes=np.concatenate([np.zeros((0, 4), np.float32), *(part.boxes for part in parts if part.boxes is not None)]),
        labels=np.concatenate([np.zeros(0, np.int64), *(part.labels for part in parts)]),
        attributes=columns,
        **points,
    )


def _point_scores(predictions: Mapping[int, Prediction]) -> npt.NDArray[np.float32] | None:
    """Return the scores of the points of all objects ``(num_objects, K)``, or None without scores."""
    scores = [part.keypoint_scores for part in predictions.values() if part.keypoint_scores is not None]
    return np.concatenate(scores) if scores else None


def _write_voc(
    path: Path,
    table: AnnotationTable,
    attributes: Mapping[str, Sequence[str]],
    point_scores: npt.NDArray[np.float32] | None,
) -> None:
    """Write a folder with one XML file per image."""
    # `<schema>` is part of every file and so does not list the scores, which may all differ. A reader
    # adds values that it does not list from the objects.
    declared = DeclaredNames(
        class_names=table.class_names,
        keypoints=table.keypoint_schema,
        attributes=tuple((name, tuple(values)) for name, values in attributes.items()),
    )
    with new_folder(path) as folder:
        for row, image_path in enumerate(voc_image_paths(table, image_dir=".")):
            file = folder / "Annotations" / Path(image_path).with_suffix(".xml")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_image_xml(
                file, table, row, filename=Path(image_path).name, declared=declared, point_scores=point_scores
            )
