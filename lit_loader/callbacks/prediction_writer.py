"""A callback that writes the predictions of ``trainer.predict`` to files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lit_loader.annotations import AnnotationTable, KeypointSchema
from lit_loader.annotations.masks import run_lengths
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.paths import check_relative
from lit_loader.callbacks.original_pixels import Placements
from lit_loader.callbacks.prediction_files import (
    Found,
    PredictionFormat,
    check_can_be_written,
    draw_prediction,
    write_predictions,
)
from lit_loader.collate import (
    ClassificationBatch,
    LandmarkBatch,
    batch_duplicates,
    batch_images,
    batch_targets,
)
from lit_loader.datamodules import ClassificationDataModule, TableDataModule
from lit_loader.errors import SettingError
from lit_loader.images import ImageReading
from lit_loader.loader.arguments import check_choice
from lit_loader.types import FIRST_LABEL

__all__ = ["PredictionWriter"]

_NOTE_INTERVAL_S = 10.0
"""Time from one note of how many pictures are drawn to the next; the trainer's progress bar has the terminal."""


@dataclass(frozen=True, eq=False)
class _PredictSet:
    """One set to predict on.

    Attributes:
        name: Of its file.
        samples: The table of samples.
        images: The table of images, with the classes of the model before others.
        is_object: Whether a sample is an object that was cut out of an image.
        row_of: Row of each sample by its ``image_id``.
        placements: Finds where images are in those that the model sees.
    """

    name: str
    samples: AnnotationTable
    images: AnnotationTable
    is_object: bool
    row_of: Mapping[int, int]
    placements: Placements


class PredictionWriter(BasePredictionWriter):
    r"""Writes what ``predict_step`` finds: one file a set, in pixels of the original images, in the order of the table.

    Takes what the tasks of `lit_loader.recipes` return, or any module that returns the same, for batches of one of
    lit_loader's data modules that read tables. Boxes, points and masks are brought back from the image that the model
    saw to the file's own pixels, and objects cut out of an image stand with that image. Samples that only fill up the
    last batches of several ranks are left out; rank 0 writes what all ranks found.

    The score of an object whose points were found in a crop is the mean score of its points; its box, and without a
    head for the class its class, are those that it was cut out by. Images in which nothing was found are in no list;
    with ``"voc"`` they have a file without objects.

    Formats:

    - ``"coco"``: ``predictions.json``, a list of results as COCO's own evaluation takes them, with the numbers of the
      annotation file: boxes, scores, masks, points with scores; attributes under a key that the evaluation ignores.
    - ``"voc"``: a folder ``predictions`` with an XML file for each image, as ``convert`` writes them; the score is an
      attribute. No masks, no scores of points.
    - ``"keypoints_txt"``: ``predictions.txt``, a line an object, tabs between path, class, box, score, attributes and
      points; read again by ``columns=["path", "class", "box", "attribute:score", ..., "points"]`` and
      ``separator="\t"``. No masks, no scores of points.
    - ``"csv"``: ``predictions.csv`` with a header, a row an object: path, label, score, box, attributes, points with
      scores. No masks. For classification: path, label and probability; with several labels an image a row for each
      label of 0.5 and more, with objects cut out also the object's box.

    Several sets are numbered: ``predictions-0.json``. Probabilities of other classes, and of attributes, are not
    written.

    On request the first images are drawn with their predictions, as JPEG files in a folder
    ``predictions-pictures``: the image ``a/b.png`` is ``a/b.png.jpg``.

    Args:
        format: One of these, or None for ``"csv"`` of classification, which has no other, and ``"coco"`` else.
        folder: Where to write; missing folders are made.
        name: Of the file without its ending, or of the folder of XML files, relative to ``folder``.
        min_score: Objects below it are left out.
        num_pictures: Images of each set that are drawn at most, or None for all.
        min_picture_score: Detections below it are left out of pictures.

    Attributes:
        format: The format; where None was given, it is chosen at the start of a prediction.
        paths: The files, or folders, of the last prediction; of rank 0 alone.

    Raises:
        ValueError: If an argument is out of range; at the start of a prediction, if the trainer has no data module of
            lit_loader that reads tables, or the format cannot hold the task's predictions, a name or a path; at a
            batch, if the format cannot hold its predictions, or the transforms of prediction cannot be undone.
        UnsafePathError: If ``name`` leads out of ``folder``.
        FileExistsError: At the start of a prediction, if there is a folder of XML files already.
        TypeError: If predictions are not what a task returns.
    """

    def __init__(
        self,
        *,
        format: PredictionFormat | None = None,
        folder: Path | str = "predictions",
        name: str = "predictions",
        min_score: float = 0.0,
        num_pictures: int | None = 0,
        min_picture_score: float = 0.5,
    ) -> None:
        super().__init__(write_interval="batch")
        if format is not None:
            check_choice("format", format, PredictionFormat)
        check_relative(name)
        for argument, score in (("min_score", min_score), ("min_picture_score", min_picture_score)):
            if not 0 <= score <= 1:
                raise ValueError(f"{argument}={score} must be in [0, 1]")
        if num_pictures is not None and num_pictures < 0:
            raise ValueError(f"num_pictures={num_pictures} must be 0 or more, or None for all images")
        self._chosen_format = format
        self.format: PredictionFormat = format or "coco"
        self.folder = Path(folder)
        self.name = name
        self.min_score = min_score
        self.num_pictures = num_pictures
        self.min_picture_score = min_picture_score
        self.paths: list[Path] = []
        self._reading = ImageReading()
        self._sets: list[_PredictSet] = []
        self._class_names: tuple[str, ...] = ()
        self._schema: KeypointSchema | None = None
        self._attributes: dict[str, tuple[str, ...]] = {}
        # what this rank has found so far, by set and sample
        self._found: dict[tuple[int, int], Found] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sets": [], "_found": {}}  # made again by setup

    def check_task(self, datamodule: TableDataModule, module: LightningModule) -> None:
        """Check that the format can hold a task's predictions for a data module, before a batch is read.

        Raises:
            ValueError: If it cannot hold them, or a name or path.
            FileExistsError: If there is a folder of XML files already.
        """
        is_labels = isinstance(datamodule, ClassificationDataModule)
        self.format = self._chosen_format or ("csv" if is_labels else "coco")
        if is_labels and self.format != "csv":
            raise _cannot_hold_labels(self.format)
        if getattr(module, "masks", None) is True and self.format != "coco":
            raise _cannot_hold_masks(self.format)
        self._class_names = tuple(getattr(module, "class_names", None) or datamodule.class_names)
        schema = datamodule.keypoint_schema
        points = tuple(getattr(module, "keypoint_names", None) or (schema.names if schema else ()))
        if schema is None or schema.names != points:  # the model's points are not those of the data
            schema = KeypointSchema(names=points) if points else None
        self._schema = schema
        attributes = getattr(module, "attributes", None)
        self._attributes = dict(datamodule.attributes if attributes is None else attributes)
        texts: dict[str, Any] = {"names": (*self._class_names, *points), "attributes": self._attributes}
        tables = datamodule.tables("predict")
        for number, samples in enumerate(tables):
            images = self._image_table(datamodule, number, samples)
            name = self._name_of_set(number, len(tables))
            check_can_be_written(self.format, self.folder, name, images, **texts)

    def _image_table(
        self, datamodule: TableDataModule, number: int, samples: AnnotationTable
    ) -> AnnotationTable:
        """Return the images of a set, with the classes of the model before others."""
        images = samples
        if datamodule.sample_unit == "object":
            images = with_same_names([samples.select([]), datamodule.source.tables("predict")[number]])[1]
        further = [name for name in images.class_names if name not in self._class_names]
        return images.with_class_names((*self._class_names, *further))

    def _name_of_set(self, number: int, num_sets: int) -> str:
        return self.name if num_sets == 1 else f"{self.name}-{number}"

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the images and the names, and check that they can be written."""
        super().setup(trainer, pl_module, stage)
        if stage != "predict":
            return
        datamodule: Any = getattr(trainer, "datamodule", None)
        if not isinstance(datamodule, TableDataModule):
            found = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
            raise ValueError(
                "PredictionWriter takes paths, ids and names from a data module of lit_loader that reads tables, and "
                f"the trainer has {found}; give trainer.predict(model, datamodule=...) one, such as DetectionDataModule"
            )
        self.check_task(datamodule, pl_module)
        self._reading = datamodule.reading
        self._first_label = getattr(datamodule, "first_label", FIRST_LABEL)
        self._found, self.paths = {}, []
        datasets = datamodule.predict_dataset
        datasets = datasets if isinstance(datasets, list) else [datasets]
        is_object, self._sets = datamodule.sample_unit == "object", []
        for number, dataset in enumerate(datasets):
            samples = getattr(dataset, "table", datamodule.tables("predict")[number])
            images = self._image_table(datamodule, number, samples)
            name = self._name_of_set(number, len(datasets))
            row_of = dict(zip(samples.image_numbers.tolist(), range(len(samples)), strict=True))
            placements = Placements(dataset, samples)
            self._sets.append(_PredictSet(name, samples, images, is_object, row_of, placements))

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Keep what was found in a batch, in pixels of the original images.

        Raises:
            ValueError: If the format cannot hold it, or the transforms cannot be undone.
            TypeError: If it is not what a task returns.
        """
        of = self._sets[dataloader_idx]
        rows, found = self._read(prediction, batch, of)
        for row, one, is_duplicate in zip(rows, found, batch_duplicates(batch).tolist(), strict=True):
            if is_duplicate:
                continue
            if one.masks is not None and self.format != "coco":
                raise _cannot_hold_masks(self.format)
            if (
                one.keypoint_scores is not None
                and self.format in ("voc", "keypoints_txt")
                and not self._found
            ):
                rank_zero_info(
                    f"format={self.format!r} cannot hold the scores of points; 'coco' and 'csv' can"
                )
            self._found.setdefault((dataloader_idx, row), one)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather what all ranks found, and write it on rank 0."""
        parts: list[Any] = [self._found]
        self._found = {}
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            own, parts = parts[0], [None] * dist.get_world_size() if trainer.is_global_zero else []
            dist.gather_object(own, parts or None)
        found: dict[tuple[int, int], Found] = {}
        for part in parts:
            found = {**part, **found}
        if trainer.is_global_zero:
            for number, of in enumerate(self._sets):
                rows = {row: found[number, row] for at, row in sorted(found) if at == number}
                settings: dict[str, Any] = {
                    "table": of.images,
                    "attributes": self._attributes,
                    "schema": self._schema,
                }
                results = _by_image(rows, of)
                path = write_predictions(self.format, self.folder, of.name, results, **settings)
                self.paths.append(path)
                rank_zero_info(f"predictions of {len(rows)} samples: {path}")
                if self.num_pictures != 0:
                    self.paths.append(self._draw(results, of))

    def _draw(self, results: Mapping[int, Found], predict_set: _PredictSet) -> Path:
        """Draw the first images of a set, and return the folder of the pictures."""
        folder = self.folder / f"{predict_set.name}-pictures"
        rows = list(results)[: self.num_pictures]
        drawing: dict[str, Any] = {
            "class_names": predict_set.images.class_names,
            "attributes": self._attributes,
            "min_score": 0.0 if predict_set.is_object else self.min_picture_score,
        }
        table = predict_set.images
        last_note = time.monotonic()
        for number, row in enumerate(rows):
            if time.monotonic() - last_note > _NOTE_INTERVAL_S:
                rank_zero_info(f"pictures: {number} of {len(rows)}")
                last_note = time.monotonic()
            # Read again: a batch has the image as the model sees it, resized or cropped.
            pixels = self._reading.read(table.image_path(row))
            draw_prediction(pixels, results[row], folder / f"{table.image_paths[row]}.jpg", **drawing)
        counts = f"the first {len(rows)} of {len(results)}" if len(rows) < len(results) else f"{len(rows)}"
        rank_zero_info(f"pictures of {counts} images: {folder}")
        return folder

    # -- what predict_step returns --------------------------------------------------------------------------

    def _read(self, prediction: Any, batch: Any, of: _PredictSet) -> tuple[list[int], Iterator[Found]]:
        """Return the samples of a batch and, one by one, what was found in them."""
        if isinstance(batch, ClassificationBatch):
            if not isinstance(prediction, Tensor) or prediction.ndim != 2:
                raise TypeError(_wrong(prediction, "probabilities (B, num_classes)"))
            rows = [of.row_of[each] for each in batch.image_ids.tolist()]
            return rows, self._labels(prediction, batch, rows, of)
        if isinstance(batch, LandmarkBatch):
            if not isinstance(prediction, Mapping) or "keypoints" not in prediction:
                raise TypeError(_wrong(prediction, "a mapping with keypoints (B, K, 2) and scores (B, K)"))
            rows = [of.row_of[each] for each in batch.image_ids.tolist()]
            return rows, self._crops(prediction, batch, rows, of)
        if not isinstance(prediction, Sequence) or not all(isinstance(one, Mapping) for one in prediction):
            raise TypeError(_wrong(prediction, "one mapping an image, with boxes, labels and scores"))
        rows = [of.row_of[int(target["image_id"])] for target in batch_targets(batch)]
        seen = [(int(image.shape[-2]), int(image.shape[-1])) for image in batch_images(batch)]
        return rows, (self._image(*each, of) for each in zip(prediction, rows, seen, strict=True))

    def _labels(
        self, probabilities: Tensor, batch: ClassificationBatch, rows: Sequence[int], of: _PredictSet
    ) -> Iterator[Found]:
        if self.format != "csv":
            raise _cannot_hold_labels(self.format)
        for row, values in zip(rows, probabilities.float().cpu().numpy(), strict=True):
            best = np.flatnonzero(values >= 0.5) if batch.labels.ndim == 2 else values.argmax(keepdims=True)
            labels = best[values[best] >= self.min_score].astype(np.int64)
            boxes = of.samples.boxes[of.samples.objects(row)][: len(labels)] if of.is_object else None
            yield Found(labels=labels, scores=values[labels], boxes=boxes)

    def _crops(
        self, found: Mapping[str, Tensor], batch: LandmarkBatch, rows: Sequence[int], of: _PredictSet
    ) -> Iterator[Found]:
        height, width = batch.images.shape[-2:]
        crops = batch.crops.cpu().double().numpy()  # on the CPU: MPS has no float64
        points = found["keypoints"].cpu().double().numpy()
        scores = found["scores"].float().cpu().numpy()
        heads = found.get("class_logits")
        labels = batch.labels if heads is None else heads.argmax(dim=1)
        for row, label, crop, places, sure in zip(rows, labels.tolist(), crops, points, scores, strict=True):
            true, kept = of.placements.sizes(row)
            ratio = np.array([true[1] / kept[1], true[0] / kept[0]])
            inside = crop[:2] + places * ((crop[2:] - crop[:2]) / (width, height))
            kept = sure.mean(keepdims=True) >= self.min_score
            yield Found(
                size=true,
                labels=np.array([label], dtype=np.int64)[kept],
                scores=sure.mean(keepdims=True)[kept],
                boxes=of.samples.boxes[of.samples.objects(row)][kept],
                keypoints=(inside * ratio).astype(np.float32)[None][kept],
                keypoint_scores=sure[None][kept],
            )

    def _image(self, found: Mapping[str, Tensor], row: int, seen: tuple[int, int], of: _PredictSet) -> Found:
        values = {
            name: each.detach().cpu().numpy() for name, each in found.items() if isinstance(each, Tensor)
        }
        kept = values["scores"] >= self.min_score
        values = {name: each[kept] if each.ndim else each for name, each in values.items()}
        place = of.placements.find(row, seen)
        masks = None
        if "masks" in values:
            inside = values["masks"].reshape(-1, *values["masks"].shape[-2:])
            inside = inside if inside.dtype == np.bool_ else inside > (0.5 if inside.dtype.kind == "f" else 0)
            masks = [run_lengths(place.mask(mask)) for mask in inside]
        return Found(
            size=place.size,
            labels=values["labels"].astype(np.int64) - self._first_label,
            scores=values["scores"].astype(np.float32),
            boxes=place.boxes(values["boxes"]),
            keypoints=place.points(values["keypoints"]) if "keypoints" in values else None,
            keypoint_scores=values.get("keypoint_scores"),
            attributes={name: values[name] for name in self._attributes if name in values},
            masks=masks,
        )


def _cannot_hold_labels(format: PredictionFormat) -> SettingError:
    rule = "holds objects with boxes, and these predictions are labels of samples"
    return SettingError("format", format, rule, settings={"format": "csv"})


def _cannot_hold_masks(format: PredictionFormat) -> SettingError:
    return SettingError("format", format, "cannot hold masks", settings={"format": "coco"})


def _by_image(found: Mapping[int, Found], of: _PredictSet) -> dict[int, Found]:
    """Return what was found in each image, from what was found in its samples."""
    if not of.is_object:
        return dict(found)
    names = zip(of.images.image_paths, of.images.image_ids, strict=True)
    image_of = {name: row for row, name in enumerate(names)}
    parts: dict[int, list[Found]] = {}
    for row, one in found.items():
        parts.setdefault(image_of[of.samples.image_paths[row], of.samples.image_ids[row]], []).append(one)
    return {image: _joined(held) for image, held in sorted(parts.items())}


def _joined(held: Sequence[Found]) -> Found:
    joined = {}
    for name in ("labels", "scores", "boxes", "keypoints", "keypoint_scores"):
        values = [getattr(one, name) for one in held]
        joined[name] = None if values[0] is None else np.concatenate(values)
    return Found(size=held[0].size, **joined)  # type: ignore[arg-type] # labels and scores are never None


def _wrong(prediction: Any, expected: str) -> str:
    return (
        f"predict_step returned a {type(prediction).__name__}, and PredictionWriter expected {expected}, as the tasks "
        "of lit_loader.recipes return it; return that, or write the predictions by a BasePredictionWriter of your own"
    )
