"""A callback that writes the predictions of ``trainer.predict`` to files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lit_loader.annotations import AnnotationTable, KeypointSchema
from lit_loader.annotations.keypoints import known_by_names
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.paths import check_relative
from lit_loader.callbacks.attached import table_datamodule
from lit_loader.callbacks.original_pixels import Placements, original_detections
from lit_loader.callbacks.prediction_files import (
    PredictedSet,
    Prediction,
    PredictionFormat,
    check_can_be_written,
    draw_prediction,
    write_predictions,
)
from lit_loader.callbacks.tile_merging import TiledImages, is_tiled
from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_duplicates, batch_images, batch_targets
from lit_loader.datamodules import ClassificationDataModule, TableDataModule
from lit_loader.datamodules.set_names import clean_set_names
from lit_loader.errors import SettingError
from lit_loader.foundation.counts import counted
from lit_loader.images import ImageReading
from lit_loader.loader.arguments import check_choice
from lit_loader.types import FIRST_LABEL

__all__ = ["PredictionWriter"]

_MESSAGE_INTERVAL_S = 10.0


@dataclass(frozen=True, eq=False)
class _PredictSet:
    """One set to predict on.

    Attributes:
        output: The images to write predictions of.
        samples: Table of the samples.
        is_object: Whether a sample is the crop of an object.
        row_by_id: Row of each sample by its ``image_id``.
        placements: Placements of the images in the model's input.
        tiled: The tiles of the images, or None if the samples are not tiles.
    """

    output: PredictedSet
    samples: AnnotationTable
    is_object: bool
    row_by_id: Mapping[int, int]
    placements: Placements
    tiled: TiledImages | None


class PredictionWriter(BasePredictionWriter):
    r"""Writes the results of ``predict_step``, one file per set, in pixels of the original images and in table order.

    Accepts the return values of the tasks of `lit_loader.recipes`, for batches of a data module of lit_loader that
    reads tables. Boxes, points and masks are converted from the model's input to pixels of the image file. Objects that
    were predicted in crops are written with the image they were cropped from. Objects that were predicted in tiles are
    merged in their image, see `merge_boxes`. Duplicates that fill up the last batches of several ranks are left out.
    Rank 0 writes the results of all ranks.

    An object whose points were predicted in a crop has the mean score of its points. Its box is the annotated one, and
    so is its class if the model does not predict it. Points without scores, as a regression head predicts them, leave
    the columns of scores empty; their objects are all written, and ``"coco"``, whose evaluation needs numbers, has 1.
    Images without predictions do not appear in the lists; with ``"voc"`` they have a file without objects.

    Formats:

    - ``"coco"``: ``predictions.json``, a list of results for COCO's evaluation with the image numbers of the annotation
      file: boxes, scores, masks, points with scores; attributes under a key that the evaluation ignores.
    - ``"voc"``: a folder ``predictions`` with one XML file per image, as ``convert`` writes them; the score of an
      object is an attribute, and points have a ``score``, which readers ignore. No masks.
    - ``"keypoints_txt"``: ``predictions.txt`` with one line per object: path, class, box, score, attributes and points,
      separated by tabs. To read it, use ``columns=["path", "class", "box", "attribute:score", ..., "points"]`` and
      ``separator="\t"``. No masks and no scores of points.
    - ``"csv"``: ``predictions.csv`` with a header and one row per object: path, label, score, box, attributes, points
      with scores. No masks. For classification: path, label and probability (for crops also the object's box);
      multi-label images have a row for each label with a probability of at least 0.5.

    Several sets have their names, or numbers: ``predictions-0.json``. Probabilities of other classes and of attributes
    are not written.

    With ``num_pictures``, the first images are drawn with their predictions as JPEG files in the folder
    ``predictions-pictures``: ``a/b.png`` becomes ``a/b.png.jpg``.

    Args:
        format: One of these formats; None for ``"csv"`` with classification (its only format), else ``"coco"``.
        folder: Folder to write to; missing folders are created.
        name: Name of the file without extension, or of the folder of XML files, relative to ``folder``.
        min_score: Objects with lower scores are not written.
        num_pictures: Largest number of images of each set to draw; None for all.
        min_picture_score: Detections with lower scores are not drawn.

    Attributes:
        format: The format. If None was given, it is chosen at the start of a prediction.
        paths: Files or folders of the last prediction, on rank 0 only.

    Raises:
        ValueError: If an argument is out of range; at the start of a prediction, if the trainer has no data module of
            lit_loader that reads tables, or the format cannot represent the task's predictions, a name or a path;
            at a batch, if the format cannot represent its predictions, or the transforms cannot be undone.
        UnsafePathError: If ``name`` leads out of ``folder``.
        FileExistsError: At the start of a prediction, if the folder of XML files exists.
        TypeError: If predictions do not have the types that a task returns.
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
            raise ValueError(f"num_pictures={num_pictures} must be at least 0, or None for all images")
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
        # This rank's results so far, by set and row of the sample; one file per set needs all of them.
        self._predictions: dict[tuple[int, int], Prediction] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sets": [], "_predictions": {}}  # `setup` sets them again

    def check_task(self, datamodule: TableDataModule, module: LightningModule) -> None:
        """Check that the format can represent a task's predictions for a data module, before a batch is read.

        Raises:
            ValueError: If it cannot represent them, or a name or path.
            FileExistsError: If the folder of XML files exists.
        """
        predicts_labels = isinstance(datamodule, ClassificationDataModule)
        self.format = self._chosen_format or ("csv" if predicts_labels else "coco")
        _check_format(self.format, labels=predicts_labels, masks=getattr(module, "masks", None) is True)
        for output in self._outputs(datamodule, module, datamodule.tables("predict")):
            check_can_be_written(self.format, self.folder, output)

    def _outputs(
        self, datamodule: TableDataModule, module: LightningModule, tables: Sequence[AnnotationTable]
    ) -> list[PredictedSet]:
        """Return the output of each set of samples, with the names that the model predicts."""
        class_names = tuple(getattr(module, "class_names", None) or datamodule.class_names)
        schema = datamodule.keypoint_schema
        points = tuple(getattr(module, "keypoint_names", None) or (schema.names if schema else ()))
        # A model may predict other points than the data has. Their pairs and skeleton are known only by their names.
        if schema is None or schema.names != points:
            schema = (known_by_names(points) or KeypointSchema(names=points)) if points else None
        attributes = getattr(module, "attributes", None)
        names: dict[str, Any] = {"class_names": class_names, "schema": schema}
        names["attributes"] = dict(datamodule.attributes if attributes is None else attributes)
        outputs = []
        # A subclass may return names that would lead out of the folder.
        set_names = clean_set_names(datamodule.set_names("predict"))
        for index, samples in enumerate(tables):
            if not is_tiled(datamodule, "predict") and samples.regions is not None and samples.regions.any():
                rule = "describes regions of images, and the files of predictions describe whole images"
                raise ValueError(f"{samples!r} {rule}; predict on the table of whole images, with tiling")
            images = samples
            # The data module's table has one row per object, the source's one per image.
            if datamodule.sample_unit == "object":
                images = with_same_names([samples.select([]), datamodule.source.tables("predict")[index]])[1]
            elif is_tiled(datamodule, "predict"):
                images = datamodule.image_tables("predict")[index]
            # The model's classes come first, because predicted labels are their indices.
            other_names = [name for name in images.class_names if name not in class_names]
            images = images.with_class_names((*class_names, *other_names))
            name = self.name if len(tables) == 1 else f"{self.name}-{set_names[index]}"
            outputs.append(PredictedSet(name=name, images=images, **names))
        return outputs

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look up images and names, and check that they can be written."""
        super().setup(trainer, pl_module, stage)
        if stage != "predict":
            return
        remedy = "give trainer.predict(model, datamodule=...) one, such as DetectionDataModule"
        datamodule: Any = table_datamodule(trainer, "PredictionWriter", remedy=remedy)
        self.check_task(datamodule, pl_module)
        self._reading = datamodule.reading
        self._first_label = getattr(datamodule, "first_label", FIRST_LABEL)
        self._predictions = {}
        self._sets = []
        self.paths = []
        datasets = datamodule.predict_dataset
        datasets = datasets if isinstance(datasets, list) else [datasets]
        # A dataset may have left out some samples of the data module's table.
        parts = zip(datasets, datamodule.tables("predict"), strict=True)
        tables = [getattr(dataset, "table", table) for dataset, table in parts]
        outputs = self._outputs(datamodule, pl_module, tables)
        for dataset, samples, output in zip(datasets, tables, outputs, strict=True):
            predict_set = _PredictSet(
                output=output,
                samples=samples,
                is_object=datamodule.sample_unit == "object",
                row_by_id={image_id: row for row, image_id in enumerate(samples.image_numbers.tolist())},
                placements=Placements(dataset, samples),
                tiled=TiledImages(samples, output.images) if is_tiled(datamodule, "predict") else None,
            )
            self._sets.append(predict_set)

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
        """Store the predictions of a batch, in pixels of the original images.

        Raises:
            ValueError: If the format cannot represent them, or the transforms cannot be undone.
            TypeError: If they do not have the types that a task returns.
        """
        rows, predictions = self._convert(prediction, batch, self._sets[dataloader_idx])
        duplicates = batch_duplicates(batch).tolist()
        for row, item, is_duplicate in zip(rows, predictions, duplicates, strict=True):
            if is_duplicate:
                continue
            # Again, because only lit_loader's tasks declare their predictions before the first batch.
            _check_format(self.format, labels=isinstance(batch, ClassificationBatch), masks=item.masks is not None)
            loses_scores = item.keypoint_scores is not None and self.format == "keypoints_txt"
            if loses_scores and not self._predictions:  # once, at the first sample
                rank_zero_info(f"format={self.format!r} cannot hold the scores of points; the other formats can")
            # The first prediction of a sample counts, on a rank as among ranks.
            self._predictions.setdefault((dataloader_idx, row), item)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the predictions of all ranks, and write them on rank 0."""
        predictions = self._predictions
        self._predictions = {}
        # To rank 0 alone: gathering on all ranks would need the memory for all predictions on each of them.
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            parts: list[Any] | None = [None] * dist.get_world_size() if trainer.is_global_zero else None
            dist.gather_object(predictions, parts)
            # A sample that several ranks have predicted counts once: the lowest rank's.
            for part in parts or ():
                predictions = {**part, **predictions}
        if not trainer.is_global_zero:
            return
        for index, predict_set in enumerate(self._sets):
            prediction_by_row = {
                row: predictions[set_index, row] for set_index, row in sorted(predictions) if set_index == index
            }
            count = counted(len(prediction_by_row), "sample")
            if predict_set.tiled is None:
                results = _merge_objects(prediction_by_row, predict_set)
            else:
                results = self._merge_tiles(prediction_by_row, predict_set.tiled)
                count = f"{counted(len(prediction_by_row), 'tile')} of {counted(len(results), 'image')}"
            # Only now, because Lightning loads a checkpoint after `setup`.
            output = _with_category_ids(predict_set.output, getattr(pl_module, "category_ids", {}))
            path = write_predictions(self.format, self.folder, results, output)
            self.paths.append(path)
            rank_zero_info(f"predictions of {count}: {path}")
            if self.num_pictures != 0:
                self.paths.append(self._draw(results, predict_set))

    def _merge_tiles(self, predictions: Mapping[int, Prediction], tiled: TiledImages) -> dict[int, Prediction]:
        """Return predictions by row of the image from those by row of the tile."""
        rows = np.array(list(predictions), dtype=np.int64)
        num_partial = len(np.unique(tiled.image_of_tile[rows])) - len(tiled.complete(rows))
        if num_partial:
            rank_zero_info(f"{num_partial} images lack predictions in some of their tiles")
        merged = tiled.merge(predictions)
        return {row: prediction.select(prediction.scores >= self.min_score) for row, prediction in merged.items()}

    def _draw(self, predictions: Mapping[int, Prediction], predict_set: _PredictSet) -> Path:
        """Draw the first images of a set, and return the folder of the pictures."""
        output = predict_set.output
        folder = self.folder / f"{output.name}-pictures"
        rows = list(predictions)[: self.num_pictures]
        min_score = 0.0 if predict_set.is_object else self.min_picture_score
        last_message_s = time.monotonic()
        for index, row in enumerate(rows):
            if time.monotonic() - last_message_s > _MESSAGE_INTERVAL_S:
                rank_zero_info(f"pictures: {index} of {len(rows)}")
                last_message_s = time.monotonic()
            # Read from the file, because the batch contains the model's input, which may be resized or cropped.
            pixels = self._reading.read(output.images.image_path(row))
            path = folder / f"{output.images.image_paths[row]}.jpg"
            draw_prediction(pixels, predictions[row], path, output, min_score=min_score)
        is_part = len(rows) < len(predictions)
        count = f"the first {len(rows)} of {len(predictions)}" if is_part else f"{len(rows)}"
        rank_zero_info(f"pictures of {count} images: {folder}")
        return folder

    # -- conversion of the return values of predict_step ----------------------------------------------------

    def _convert(self, prediction: Any, batch: Any, predict_set: _PredictSet) -> tuple[list[int], Iterator[Prediction]]:
        """Return the rows of a batch's samples, and an iterator over their predictions."""
        convert: Callable[..., Iterator[Prediction]]
        if isinstance(batch, ClassificationBatch):
            convert = self._convert_labels
            expected = "probabilities (B, num_classes)"
            is_valid = isinstance(prediction, Tensor) and prediction.ndim == 2
        elif isinstance(batch, LandmarkBatch):
            convert = self._convert_crops
            expected = "a mapping with keypoints (B, K, 2) and optionally scores (B, K)"
            is_valid = isinstance(prediction, Mapping) and "keypoints" in prediction
        else:
            convert = self._convert_images
            expected = "one mapping per image with boxes, labels and scores"
            is_valid = isinstance(prediction, Sequence) and all(isinstance(item, Mapping) for item in prediction)
        if not is_valid:
            raise TypeError(
                f"PredictionWriter expected predict_step to return {expected}, got a {type(prediction).__name__}; "
                "return the same as the tasks of lit_loader.recipes, or use your own BasePredictionWriter"
            )
        if isinstance(batch, ClassificationBatch | LandmarkBatch):
            image_ids = batch.image_ids.tolist()
        else:
            image_ids = [int(target["image_id"]) for target in batch_targets(batch)]
        rows = [predict_set.row_by_id[image_id] for image_id in image_ids]
        return rows, convert(prediction, batch, rows, predict_set)

    def _convert_labels(
        self, probabilities: Tensor, batch: ClassificationBatch, rows: Sequence[int], predict_set: _PredictSet
    ) -> Iterator[Prediction]:
        samples = predict_set.samples
        is_multi_label = batch.labels.ndim == 2
        for row, scores in zip(rows, probabilities.float().cpu().numpy(), strict=True):
            # A single label keeps its axis, so that both cases are arrays of indices.
            predicted = np.flatnonzero(scores >= 0.5) if is_multi_label else scores.argmax(keepdims=True)
            labels = predicted[scores[predicted] >= self.min_score].astype(np.int64)
            boxes = samples.boxes[samples.objects(row)][: len(labels)] if predict_set.is_object else None
            yield Prediction(labels=labels, scores=scores[labels], boxes=boxes)

    def _convert_crops(
        self, prediction: Mapping[str, Any], batch: LandmarkBatch, rows: Sequence[int], predict_set: _PredictSet
    ) -> Iterator[Prediction]:
        samples = predict_set.samples
        height, width = batch.images.shape[-2:]
        crops = batch.crops.cpu().double().numpy()  # moved to the CPU first: MPS has no float64
        points = prediction["keypoints"].cpu().double().numpy()
        # Regressed points have none.
        point_scores = prediction["scores"].float().cpu().numpy() if "scores" in prediction else None
        attribute_ids = {
            name: logits.argmax(dim=1).cpu().numpy() for name, logits in prediction.get("attribute_logits", {}).items()
        }
        class_logits = prediction.get("class_logits")
        labels = batch.labels if class_logits is None else class_logits.argmax(dim=1)
        for index, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True)):
            original, decoded = predict_set.placements.sizes(row)
            # The points are in pixels of the resized crop, the crop's corners in pixels of the decoded image.
            left_top, right_bottom = crops[index].reshape(2, 2)
            decoded_points = left_top + points[index] * ((right_bottom - left_top) / (width, height))
            ratio = np.array([original[1] / decoded[1], original[0] / decoded[0]])
            # The task has no score of the object, only of its points.
            score = np.full(1, np.nan, np.float32) if point_scores is None else point_scores[index].mean(keepdims=True)
            crop_prediction = Prediction(
                size=original,
                labels=np.array([label], dtype=np.int64),
                scores=score,
                boxes=samples.boxes[samples.objects(row)],
                keypoints=(decoded_points * ratio).astype(np.float32)[None],
                keypoint_scores=None if point_scores is None else point_scores[index][None],
                attributes={name: ids[index : index + 1] for name, ids in attribute_ids.items()},
            )
            # An object without a score is not below any.
            yield crop_prediction.select(~(score < self.min_score))

    def _convert_images(
        self, predictions: Sequence[Mapping[str, Any]], batch: Any, rows: Sequence[int], predict_set: _PredictSet
    ) -> Iterator[Prediction]:
        for prediction, row, image in zip(predictions, rows, batch_images(batch), strict=True):
            placement = predict_set.placements.find(row, (int(image.shape[-2]), int(image.shape[-1])))
            yield original_detections(
                prediction,
                placement,
                first_label=self._first_label,
                attributes=tuple(predict_set.output.attributes),
                # The score of an object that several tiles show is known only when they are merged.
                min_score=self.min_score if predict_set.tiled is None else 0.0,
            )


def _with_category_ids(output: PredictedSet, category_ids: Mapping[str, int]) -> PredictedSet:
    """Return a set with the category ids of the model's training data, unless the images have category ids already."""
    images = output.images
    if images.category_ids is not None or not output.class_names or not category_ids.keys() >= set(output.class_names):
        return output
    ids = [category_ids[name] for name in output.class_names]
    # Classes that the model does not predict follow; they get unused ids.
    first_unused = max(ids) + 1
    ids += range(first_unused, first_unused + images.num_classes - len(ids))
    return replace(output, images=images.with_class_names(images.class_names, category_ids=ids))


def _check_format(format: PredictionFormat, *, labels: bool, masks: bool) -> None:
    """Raise SettingError if a format cannot hold labels of whole samples, or masks."""
    if labels and format != "csv":
        rule = "holds objects with boxes, got predictions of labels of whole samples"
        raise SettingError("format", format, rule, settings={"format": "csv"})
    if masks and format != "coco":
        raise SettingError("format", format, "cannot hold masks", settings={"format": "coco"})


def _merge_objects(predictions: Mapping[int, Prediction], predict_set: _PredictSet) -> dict[int, Prediction]:
    """Return predictions by row of the image; samples that are crops of one image are merged."""
    if not predict_set.is_object:
        return dict(predictions)
    samples = predict_set.samples
    images = predict_set.output.images
    # By path and id: annotations may list one file several times, with different ids.
    image_keys = zip(images.image_paths, images.image_ids, strict=True)
    image_row_by_key = {key: row for row, key in enumerate(image_keys)}
    parts_by_image: dict[int, list[Prediction]] = {}
    for row, prediction in predictions.items():
        image_row = image_row_by_key[samples.image_paths[row], samples.image_ids[row]]
        parts_by_image.setdefault(image_row, []).append(prediction)
    return {image_row: _concatenate(parts) for image_row, parts in sorted(parts_by_image.items())}


def _concatenate(parts: Sequence[Prediction]) -> Prediction:
    columns = {}
    for name in ("labels", "scores", "boxes", "keypoints", "keypoint_scores"):
        values = [getattr(part, name) for part in parts]
        columns[name] = None if values[0] is None else np.concatenate(values)
    attributes = {name: np.concatenate([part.attributes[name] for part in parts]) for name in parts[0].attributes}
    return Prediction(size=parts[0].size, attributes=attributes, **columns)  # type: ignore[arg-type] # labels and scores are never None
