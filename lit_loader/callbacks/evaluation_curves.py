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

from lit_loader.callbacks.attached import table_datamodule
from lit_loader.callbacks.pictures import publish_picture
from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_duplicates, batch_targets, default_collate
from lit_loader.datamodules import draw_found
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.inspection.curve_pictures import draw_curves
from lit_loader.inspection.curves import write_curves
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
    errors, with annotations and predictions: images with most missed objects and false detections, images or crops of
    the largest loss, crops whose points are off most. Loggers that accept pictures get both as ``curves`` and
    ``worst_images``, see `PictureLogger`. Several test sets have the curves of all of them together.

    Everything is exact over ranks, which leave out the duplicates that fill up their last batches. Each rank keeps
    the numbers of its worst samples; at the end these are read and predicted once more, one by one. All ranks do so, as
    sharded models require; rank 0 draws.

    Args:
        num_worst: Number of the worst samples to draw, 0 for none.
        min_score: Detections with lower scores do not count for the worst samples, and are not drawn.
        confusion_score: Detections with lower scores are not in the confusion matrix; None for the threshold with the
            highest mean F1 over classes at IoU 0.5.
        confusion_iou: Smallest IoU of an object and its detection in the confusion matrix.
        max_classes: Largest number of classes to draw of an output; of more, the most frequent half and the rarest.
        folder: Folder of the files, or None for ``curves`` in the trainer's ``default_root_dir``.

    Raises:
        ValueError: If a number is out of range; at the start of a run, if the trainer has no data module of lit_loader.
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
        if num_worst < 0 or max_classes < 2:
            raise ValueError(f"num_worst={num_worst} must be 0 or more, and max_classes={max_classes} 2 or more")
        if not (0 <= min_score <= 1 and 0 <= (confusion_score or 0.0) <= 1 and 0 < confusion_iou <= 1):
            scores = f"min_score={min_score} and confusion_score={confusion_score}"
            raise ValueError(f"{scores} must be in [0, 1], and confusion_iou={confusion_iou} in (0, 1]")
        self.num_worst = num_worst
        self.min_score = min_score
        self.confusion_score = confusion_score
        self.confusion_iou = confusion_iou
        self.max_classes = max_classes
        self.folder = None if folder is None else Path(folder)
        self._worst: list[WorstSample] = []
        self._datamodule: Any = None  # set by `setup`

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check for matplotlib and a data module at the start of a run.

        Raises:
            ValueError: If the trainer has no data module of lit_loader.
            ImportError: If matplotlib is not installed.
        """
        # Also before a fit, since the test may follow after hours of training.
        require("matplotlib.figure", "plot")
        remedy = "give trainer.test one, such as DetectionDataModule, or leave the callback out"
        self._datamodule = table_datamodule(trainer, "EvaluationCurves", remedy=remedy)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the task record its curves."""
        self._worst = []
        if hasattr(pl_module, "record_curves"):
            pl_module.record_curves(min_score=self.confusion_score, min_iou=self.confusion_iou)

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
        # A module without the method, or a step without predictions, such as one of tiles.
        if not self.num_worst or outputs is None or not hasattr(pl_module, "sample_errors"):
            return
        errors = pl_module.sample_errors(batch, outputs, min_score=self.min_score)
        if not errors:
            return
        samples = zip(errors, _image_ids(batch), batch_duplicates(batch).tolist(), strict=True)
        self._worst += [
            WorstSample(error, dataloader_idx, image_id, text)
            for (error, text), image_id, is_duplicate in samples
            if error > 0 and not is_duplicate  # NaN, which was not measured, is not above 0
        ]
        self._worst = _largest(self._worst, self.num_worst)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the worst samples of all ranks, and draw them on rank 0."""
        if not self.num_worst:
            return
        worst = self._worst
        if dist.is_available() and dist.is_initialized():
            parts: list[list[WorstSample]] = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, worst)
            worst = _largest([sample for part in parts for sample in part], self.num_worst)
        self._worst = worst
        if worst:
            self._draw_worst(trainer, pl_module, worst)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the curves on rank 0."""
        curves = getattr(pl_module, "test_curves", [])
        if not trainer.is_global_zero or not curves:
            return
        folder = self._folder(trainer)
        write_curves(folder, curves)
        publish_picture(trainer, folder, "curves", draw_curves(curves, max_classes=self.max_classes))

    def _folder(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir, "curves") if self.folder is None else self.folder

    def _draw_worst(self, trainer: Trainer, module: LightningModule, worst: Sequence[WorstSample]) -> None:
        loaders: Any = trainer.test_dataloaders
        datasets = [
            getattr(loader, "dataset", None) for loader in (loaders if isinstance(loaders, list) else [loaders])
        ]
        tables = [getattr(dataset, "table", None) for dataset in datasets]
        if not all(table is not None and len(dataset) == table.num_images for dataset, table in zip(datasets, tables)):
            rank_zero_info("worst_images.png: left out, because a loader wraps the data set of the data module")
            return
        with isolate_rng():
            samples, paths = self._read(datasets, worst)
            collate = self._datamodule.collate_fn("test") or default_collate
            predictions = _merged([_predict(trainer, module, collate([sample])) for sample in samples])
        if trainer.is_global_zero:
            captions = [f"{sample.text}: {path}" for sample, path in zip(worst, paths, strict=True)]
            drawing: dict[str, Any] = {"captions": captions, "max_images": len(worst), "min_score": self.min_score}
            title = f"the {len(worst)} worst of the test"
            figure = draw_found(self._datamodule, collate(samples), predictions, title=title, **drawing)
            publish_picture(trainer, self._folder(trainer), "worst_images", figure)

    def _read(self, datasets: Sequence[Any], worst: Sequence[WorstSample]) -> tuple[list[Any], list[str]]:
        """Return the samples, as the test read them, and the paths of their images."""
        sample_by_key: dict[tuple[int, int], Any] = {}
        path_by_key: dict[tuple[int, int], str] = {}
        for number, dataset in enumerate(datasets):
            image_ids = [sample.image_id for sample in worst if sample.set_number == number]
            if not image_ids:
                continue
            row_by_id = {image_id: row for row, image_id in enumerate(dataset.table.image_numbers.tolist())}
            rows = [row_by_id[image_id] for image_id in image_ids]
            # Through a loader, which gives transforms their epoch and their generators.
            loader = DataLoader(
                Subset(dataset, rows), batch_size=len(rows), collate_fn=list, seed=self._datamodule.seed, num_workers=0
            )
            with loader:
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
    """Return the predictions of several batches as those of one batch."""
    first = predictions[0]
    if isinstance(first, Tensor):
        return torch.cat(list(predictions))
    if isinstance(first, Mapping):
        return {name: torch.cat([prediction[name] for prediction in predictions]) for name in first}
    return [prediction for batch_predictions in predictions for prediction in batch_predictions]
