"""Writes a table as a YOLO data set: label files, a list of images, data.yaml; the inverse of `YoloReader`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import yaml

from lit_loader.annotations.formats.coco import MAX_POINTS
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS
from lit_loader.annotations.formats.writer import Writer, in_chunks, lost, write_file
from lit_loader.annotations.formats.yolo import (
    MAX_DATA_BYTES,
    READ_KEYS,
    YAML_LOADER,
    Task,
    label_paths,
    read_data_file,
)
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable

__all__ = ["YoloWriter"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class YoloWriter(Writer):
    """Writes a table as YOLO: ``NAME.txt`` lists the images, ``data.yaml`` names lists, classes and points.

    The label file of ``images/a.jpg`` is ``labels/a.txt``; of an image in no folder ``images`` it is the file beside
    it. Splits are written one after the other into one data.yaml. Images are not copied. A number has 6 decimals where
    these give the same pixel in float32 again, else as many as it takes; points and polygons always come back exactly,
    and boxes are counted as lost where their centre and size do not give their corners.

    In a set of polygons, an object's several polygons become one, joined by lines that cover nothing, and an object
    without a polygon gets the corners of its box, since ultralytics takes a box there for two points. Beyond
    ultralytics' keys, data.yaml has ``normalization_pair``. An image's id is its path; sizes are those of the images.

    Args:
        task: What to write, or None for ``"pose"`` if the table has points, ``"segment"`` if it has masks, else
            ``"detect"``.
    """

    format: ClassVar[str] = "yolo"
    description: ClassVar[str] = "YOLO txt with data.yaml: boxes, polygons or points; NAME: the split"
    name_of_split: ClassVar[str] = "{}"

    task: Task | None = None

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return what YOLO cannot hold of a table.

        Raises:
            ValueError: If the table has no points for ``task="pose"``, or objects in an image of unknown size.
        """
        task = self._task(table)
        counts, kinds = (
            _encode(table, task)[1],
            {"detect": ["masks"], "segment": [], "pose": ["masks", "places"]},
        )
        if task != "pose":
            counts["points of each object"] = len(table.keypoint_names)
        elif not table.class_names:
            counts["names of points, without a class"] = len(table.keypoint_names)
        for name, attribute in table.attributes.items():
            counts[f"values of attribute {name!r}"] = int((attribute.ids >= 0).sum())
        found = lost(table, *kinds[task], "numbers", "files", "flags")
        return found + [f"{count} {what}" for what, count in counts.items() if count]

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a split, and add it to data.yaml.

        Raises:
            ValueError: As `losses`; or if ``name`` is another split than the table's or no key for one, an image cannot
                be listed or would share its label file, or data.yaml is another's or lists other names.
        """
        is_key = re.fullmatch(r"\w[\w-]*", name) and name not in (*READ_KEYS, "path")
        if not is_key or table.split not in (None, name):
            message = f"name={name!r} must be a word such as 'train', and the table's split, {table.split!r}"
            raise ValueError(message)
        task = self._task(table)
        data = _data_file(table, root, name, has_points=task == "pose")
        values, labels = _encode(table, task)[0], dict[str, list[int]]()
        owners = dict.fromkeys((f"{name}.txt", *table.image_paths), "")
        for i, path in enumerate(table.image_paths):
            label = label_paths(path)[0]
            if owners.setdefault(label, path) != path or path != path.strip() or len(path.splitlines()) != 1:
                reason = f"cannot be in a list, or its label file {label!r} is that of {owners[label]!r}"
                raise ValueError(f"image {path!r} {reason}; rename the image")
            labels.setdefault(label, []).append(i)
        write = partial(_write_labels, table=table, values=values, root=root)
        list(in_chunks(write, list(labels.items()), progress=progress))
        lines = "".join(f"./{path}\n" for path in dict.fromkeys(table.image_paths))
        write_file(root / f"{name}.txt", [lines.encode("utf-8", "surrogateescape")])
        write_file(root / "data.yaml", [data])

    def _task(self, table: AnnotationTable) -> Task:
        if self.task == "pose" and table.keypoints is None:
            raise ValueError("task='pose' writes points, and the table has none")
        found: Task = "detect" if table.masks is None else "segment"
        return self.task or (found if table.keypoints is None else "pose")


def _encode(table: AnnotationTable, task: Task) -> tuple[Sequence[_Floats], dict[str, int]]:
    """Return what follows the class in each object's row, and how much is lost by it."""
    image = table.image_of_object()
    sizes = np.stack([table.widths, table.heights], axis=1)[image].astype(np.float64)
    if not sizes.all():
        path = table.image_paths[int(image[(sizes == 0).any(axis=1)][0])]
        raise ValueError(f"the size of image {path!r} is unknown, and coordinates are fractions of it")
    if task == "segment":
        return _encode_polygons(table, sizes)
    low, high = np.split(table.boxes.astype(np.float64), 2, axis=1)
    boxes = np.hstack([(low + high) / 2 / sizes, (high - low) / sizes])
    boxes = _shortest(boxes, partial(_read_boxes, sizes=sizes), table.boxes)
    lost = {"boxes exactly": int((_read_boxes(boxes, sizes) != table.boxes).any(axis=1).sum())}
    if task == "detect" or table.keypoints is None or table.visibility is None:
        return list(boxes), lost
    points = np.where(table.visibility[..., None] > 0, table.keypoints, np.float32(0))
    found = _encode_points(points.reshape(-1, 2), np.repeat(sizes, points.shape[1], axis=0))
    points = np.dstack([found.reshape(points.shape), table.visibility])
    return list(np.hstack([boxes, points.reshape(len(boxes), 3 * points.shape[1])])), lost


def _encode_polygons(table: AnnotationTable, sizes: _Floats) -> tuple[Sequence[_Floats], dict[str, int]]:
    drawn: list[npt.NDArray[np.float32]] = []
    without, several = "objects without a polygon, which get their box", "masks of several polygons"
    lost = {without: 0, several: 0}
    for row, box in enumerate(table.boxes):
        parts = [] if table.masks is None else table.masks.polygons(row)
        if not parts or min(map(len, parts)) < 3:
            lost[without] += 1
            parts = [box[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 2)]
        if len(parts) > 1:
            lost[several] += 1
            # to the next part each time and at last back the same way: what is between is crossed twice
            there = [np.concatenate([part, part[:1]]) for part in parts]
            parts = [np.concatenate([*there, *(part[:1] for part in parts[-2:0:-1])])]
        drawn += parts
    if not drawn:
        return [], lost
    lengths, flat = [len(points) for points in drawn], np.concatenate(drawn)
    starts = np.cumsum([0, *lengths[:-1]])
    around = np.hstack([np.minimum.reduceat(flat, starts), np.maximum.reduceat(flat, starts)])
    lost["boxes that are not around their polygons"] = int((around != table.boxes).any(axis=1).sum())
    if table.masks is not None:
        lost["masks of run lengths"] = int((np.diff(table.masks.run_offsets) > 0).sum())
    return np.split(_encode_points(flat, np.repeat(sizes, lengths, axis=0)), starts[1:]), lost


def _encode_points(points: npt.NDArray[np.float32], sizes: _Floats) -> _Floats:
    return _shortest(points / sizes, lambda values: (values * sizes).astype(np.float32), points)


def _read_boxes(values: _Floats, sizes: _Floats) -> npt.NDArray[np.float32]:
    """Return the corners that the reader makes of centre and size."""
    centre, half = values[:, :2], values[:, 2:] / 2
    return (np.hstack([centre - half, centre + half]) * np.tile(sizes, 2)).astype(np.float32)


def _shortest(
    values: _Floats, read: Callable[[_Floats], npt.NDArray[np.float32]], wanted: npt.NDArray[np.float32]
) -> _Floats:
    """Round each row to the fewest decimals that are read as what is wanted."""
    found = values + 0.0
    for decimals in (12, 9, 6):
        rounded = np.round(values, decimals) + 0.0  # without signed zeros
        same = (read(rounded) == wanted).all(axis=1)
        found[same] = rounded[same]
    return found


def _write_labels(
    chunk: Sequence[tuple[str, list[int]]], *, table: AnnotationTable, values: Sequence[_Floats], root: Path
) -> None:
    for label, images in chunk:
        rows = [row for i in images for row in range(int(table.offsets[i]), int(table.offsets[i + 1]))]
        numbers = ([int(table.labels[row]), *values[row].reshape(-1).tolist()] for row in rows)
        lines = (" ".join(repr(number).removesuffix(".0") for number in each) for each in numbers)
        (root / label).parent.mkdir(parents=True, exist_ok=True)
        (root / label).write_text("".join(f"{line}\n" for line in lines))


def _data_file(table: AnnotationTable, root: Path, name: str, *, has_points: bool) -> bytes:
    """Return data.yaml with this split and those that it has.

    Raises:
        ValueError: If it is not of this writer, or lists other classes or points, or would not be read.
    """
    named: dict[str, Any] = {"names": dict(enumerate(table.class_names))}
    if has_points:
        named["kpt_shape"] = [len(table.keypoint_names), 3]
        named["kpt_names"] = {i: list(table.keypoint_names) for i in range(table.num_classes)}
        if table.flip_pairs:  # without pairs, ultralytics does not mirror
            pairs = dict(table.flip_pairs) | {j: i for i, j in table.flip_pairs}
            named["flip_idx"] = [pairs.get(i, i) for i in range(len(table.keypoint_names))]
        if table.normalization_pair is not None:
            named["normalization_pair"] = list(table.normalization_pair)
    text, path = yaml.safe_dump(named, sort_keys=False, allow_unicode=True), root / "data.yaml"
    names = (*table.class_names, *(table.keypoint_names if has_points else ()))
    try:
        again = yaml.load(text, Loader=YAML_LOADER)
    except (UnicodeEncodeError, yaml.YAMLError):
        again = {"names": {}}
    is_same = tuple(again["names"].values()) == table.class_names and len(table.keypoint_names) <= MAX_POINTS
    if not is_same or len(text) > MAX_DATA_BYTES or max(map(len, names), default=0) > MAX_NAME_CHARS:
        message = f"{len(names)} names, {shorten(str(names))}, cannot be in a data.yaml"
        raise ValueError(f"{message}; use shorter, plainer or fewer ones")
    there = read_data_file(Folder(root), "data.yaml") if path.exists() else {}
    splits = {key: f"{key}.txt" for key in (*there, name) if key not in again}
    if there and there | {name: splits[name]} != splits | again:
        raise ValueError(f"{path} is another's, or has other classes or points; write into another folder")
    return f"# written by lit_loader\n{yaml.safe_dump(splits, sort_keys=False)}{text}".encode()
