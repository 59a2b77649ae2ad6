"""A callback that writes the curves of a test and its worst samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import Subset

from lit_loader.annotations import AnnotationTable
from lit_loader.callbacks.pictures import publish_picture
from lit_loader.callbacks.tile_merging import is_tiled
from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_duplicates, batch_targets, default_collate
from lit_loader.datamodules import TableDataModule, draw_found
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.inspection.curve_pictures import check_max_classes, draw_curves
from lit_loader.inspection.curves import CURVE_FILES, CurveTask, best_threshold, write_curves
from lit_loader.inspection.curves import EvaluationCurves as CurvesOfOutput
from lit_loader.loader.data_loader import DataLoader

__all__ = ["EvaluationCurves"]


class WorstSample(NamedTuple):
    """A sample of a test and its error."""

    error: float
    set_number: int
    image_id: int
    text: str

    @property
    def rank(self) -> tuple[float, int, int]:
        """Sort key: the largest errors first; of equal ones in the order of the sets, the same on any ranks."""
        return (-self.error, self.set_number, self.image_id)


class EvaluationCurves(Callback):
    """Writes the curves of a test and its worst samples, for tasks of `lit_loader.recipes`.

    ``curves.png`` has precision-recall curves, average precision by class, precision, recall and F1 by the threshold of
    scores, confusion matrices, and the distribution of the errors of points; ``curves.csv``, ``classes.csv`` and
    ``confusion.csv`` have the same numbers, see `write_curves`. ``worst_images.png`` shows the samples with the largest
    errors, with annotations and predictions: images with most missed objects and false detections, in red, from the
    threshold of the confusion matrix on; images or crops of the largest loss; crops whose points are off most. Loggers
    that accept pictures get both as ``curves`` and ``worst_images``, see `PictureLogger`. Several test sets have the
    curves of all of them together.

    Everything is exact over ranks, which leave out the duplicates that fill up their last batches. Each rank keeps
    the numbers of its worst samples; at the end these are read and predicted once more, one by one. All ranks do so, as
    sharded models require; rank 0 draws. Worst samples need a data module of lit_loader, and are left out with a
    message where tiles are merged before they are scored. The files of an earlier test are removed at the start.

    Args:
        num_worst: Number of the worst samples to draw, 0 for none.
        min_score: Detections with lower scores do not count in the choice of the worst samples, which precedes the
            threshold with the highest F1.
        confusion_score: Detections with lower scores are not in the confusion matrix; None for the threshold with the
            highest mean F1 over classes at IoU 0.5.
        confusion_iou: Smallest IoU of an object and its detection in the confusion matrix.
        max_classes: Largest number of classes to draw of an output, up to 100; of more, the most frequent half and the
            rarest.
        folder: Folder of the files, or None for ``curves`` in the trainer's ``default_root_dir``.

    Attributes:
        worst: The worst samples of the last test, over all ranks.

    Raises:
        ValueError: If a number is out of range.
        ImportError: At the start of a run, if matplotlib is not installed.
    """

    def __init__(
        self,
        *,
        num_worst: int = 16,
        min_score: float = 0.25,
        confusion_score: float | None = None,
        confusion_iou: float = 0.5,
        max_classes: int = 30,
        folder: Path | str | None = None,
    ) -> None:
        if num_worst < 0:
            raise ValueError(f"num_worst={num_worst} must be 0 or more")
        check_max_classes(max_classes)
        if not (0 <= min_score <= 1 and 0 <= (confusion_score or 0.0) <= 1 and 0 < confusion_iou <= 1):
            scores = f"min_score={min_score} and confusion_score={confusion_score}"
            raise ValueError(f"{scores} must be in [0, 1], and confusion_iou={confusion_iou} in (0, 1]")
        self.num_worst = num_worst
        self.min_score = min_score
        self.confusion_score = confusion_score
        self.confusion_iou = confusion_iou
        self.max_classes = max_classes
        self.folder = None if folder is None else Path(folder)
        self.worst: list[WorstSample] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check for matplotlib at the start of a run.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        # Also before a fit, since the test may follow after hours of training.
        require("matplotlib.figure", "plot")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the task record its curves, and remove the files of an earlier test."""
        self.worst = []
        if not isinstance(pl_module, CurveTask):
            return
        obstacle = _obstacle(trainer) if self.num_worst else None
        if obstacle:
            rank_zero_info(f"worst_images.png is left out: {obstacle}")
        error_min_score = self.min_score if self.num_worst and not obstacle else None
        limits: dict[str, Any] = {"min_score": self.confusion_score, "min_iou": self.confusion_iou}
        pl_module.record_curves(**limits, error_min_score=error_min_score)
        if trainer.is_global_zero:
            # This test may not write all of them; old files would then look like its results.
            for name in ("curves.png", "worst_images.png", *CURVE_FILES):
                (self._folder(trainer) / name).unlink(missing_ok=True)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the numbers of the worst samples so far."""
        if not isinstance(pl_module, CurveTask) or not pl_module.batch_errors:
            return
        errors = pl_module.batch_errors
        # The step of a subclass may record no errors; the next batch must not count these again.
        pl_module.batch_errors = []
        samples = zip(errors, _image_ids(batch), batch_duplicates(batch).tolist(), strict=True)
        self.worst += [
            WorstSample(error, dataloader_idx, image_id, text)
            for (error, text), image_id, is_duplicate in samples
            if error > 0 and not is_duplicate  # NaN, which was not measured, is not above 0
        ]
        self.worst = _largest(self.worst, self.num_worst)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the worst samples of all ranks."""
        if self.num_worst and isinstance(pl_module, CurveTask) and dist.is_available() and dist.is_initialized():
            parts: list[list[WorstSample]] = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, self.worst)
            self.worst = _largest([sample for part in parts for sample in part], self.num_worst)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the curves and the worst samples on rank 0."""
        curves = pl_module.test_curves if isinstance(pl_module, CurveTask) else []
        # On all ranks, before rank 0 writes: sharded models predict together. Not earlier, since the curves have the
        # threshold.
        if self.worst:
            self._draw_worst(trainer, pl_module, self._drawn_score(curves))
        if not trainer.is_global_zero or not curves:
            return
        folder = self._folder(trainer)
        write_curves(folder, curves)
        publish_picture(trainer, folder, "curves", draw_curves(curves, max_classes=self.max_classes))

    def _drawn_score(self, curves: Sequence[CurvesOfOutput]) -> float:
        """Return the threshold of the confusion matrix, or `min_score` without one."""
        if self.confusion_score is not None:
            return self.confusion_score
        return next((best_threshold(part.by_threshold) for part in curves if part.by_threshold), self.min_score)

    def _folder(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir, "curves") if self.folder is None else self.folder

    def _draw_worst(self, trainer: Trainer, module: Any, min_score: float) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined] # checked by `_obstacle`
        collate = datamodule.collate_fn("test") or default_collate
        with isolate_rng():
            samples, paths = _read(_test_datasets(trainer), self.worst, seed=datamodule.seed)
            predictions = _merged([_predict(trainer, module, collate([sample])) for sample in samples])
        if not trainer.is_global_zero:
            return
        batch = collate(samples)
        texts = [sample.text for sample in self.worst]
        drawing: dict[str, Any] = {"max_images": len(samples), "title": f"the {len(samples)} worst of the test"}
        marked = module.mark_errors(batch, predictions, min_score=min_score)
        if marked:
            # The samples were chosen before the threshold was known, and other detections counted.
            counts = [[int(fields["is_wrong"].sum()) for fields in pair] for pair in marked]
            rows = [row for row, pair in enumerate(counts) if any(pair)]
            if not rows:
                return
            texts = [f"{counts[row][1]} missed, {counts[row][0]} false" for row in rows]
            paths = [paths[row] for row in rows]
            batch = collate([samples[row] for row in rows])
            predictions = [marked[row][0] for row in rows]
            drawing["truths"] = [marked[row][1] for row in rows]
            drawing["title"] = f"the {len(rows)} worst of the test, scores from {min_score:.3f} on"
        captions = [f"{text}: {path}" for text, path in zip(texts, paths, strict=True)]
        figure = draw_found(datamodule, batch, predictions, captions=captions, min_score=min_score, **drawing)
        publish_picture(trainer, self._folder(trainer), "worst_images", figure)


def _test_datasets(trainer: Trainer) -> list[Any]:
    loaders: Any = trainer.test_dataloaders
    return [getattr(loader, "dataset", None) for loader in (loaders if isinstance(loaders, list) else [loaders])]


def _obstacle(trainer: Trainer) -> str | None:
    """Return why the worst samples of a test cannot be drawn, or None."""
    # Lightning sets the attribute only if it is given a data module.
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, TableDataModule):
        return "the data module is not one of lit_loader with annotation tables"
    if is_tiled(datamodule, "test"):
        return "detections are merged from tiles, and images are not predicted as a whole"
    if not all(isinstance(getattr(dataset, "table", None), AnnotationTable) for dataset in _test_datasets(trainer)):
        return "a loader wraps the data set of the data module"
    return None


def _read(datasets: Sequence[Any], worst: Sequence[WorstSample], *, seed: int) -> tuple[list[Any], list[str]]:
    """Return samples as the test read them, and the paths of their images."""
    sample_by_key: dict[tuple[int, int], Any] = {}
    path_by_key: dict[tuple[int, int], str] = {}
    for number, dataset in enumerate(datasets):
        image_ids = [sample.image_id for sample in worst if sample.set_number == number]
        if not image_ids:
            continue
        row_by_id = {image_id: row for row, image_id in enumerate(dataset.table.image_numbers.tolist())}
        rows = [row_by_id[image_id] for image_id in image_ids]
        # Through a loader, which gives transforms their epoch and their generators; every rank reads all samples.
        settings: dict[str, Any] = {"collate_fn": list, "seed": seed, "num_workers": 0, "rank": 0, "world_size": 1}
        with DataLoader(Subset(dataset, rows), batch_size=len(rows), **settings) as loader:
            (samples,) = loader
        for image_id, row, sample in zip(image_ids, rows, samples, strict=True):
            sample_by_key[number, image_id] = sample
            path_by_key[number, image_id] = printable(str(dataset.table.image_paths[row]))
    keys = [(sample.set_number, sample.image_id) for sample in worst]
    return [sample_by_key[key] for key in keys], [path_by_key[key] for key in keys]


def _largest(samples: Sequence[WorstSample], count: int) -> list[WorstSample]:
    """Return the samples with the largest errors, each once."""
    # A sample may be on several ranks with a user's own sampler.
    sample_by_key = {(sample.set_number, sample.image_id): sample for sample in samples}
    return sorted(sample_by_key.values(), key=lambda sample: sample.rank)[:count]


def _image_ids(batch: Any) -> list[int]:
    if isinstance(batch, ClassificationBatch | LandmarkBatch):
        return [int(image_id) for image_id in batch.image_ids.tolist()]
    return [int(target["image_id"]) for target in batch_targets(batch)]


def _predict(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Return the result of ``predict_step`` for a batch, in the precision of the trainer."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.strategy.batch_to_device(batch)
    with trainer.precision_plugin.predict_step_context():
        return module.predict_step(batch, 0)


def _merged(predictions: Sequence[Any]) -> Any:
    """Concatenate the predictions of several batches."""
    first = predictions[0]
    if isinstance(first, Tensor):
        return torch.cat(list(predictions))
    if isinstance(first, Mapping):
        # A value may be a mapping itself: the logits of attributes by name.
        return {name: _merged([prediction[name] for prediction in predictions]) for name in first}
    return [prediction for batch_predictions in predictions for prediction in batch_predictions]
