"""A callback that draws batches, predictions and class reports for loggers and the run's folder."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from torch import Tensor

from lit_loader.callbacks.attached import find_callback, table_datamodule
from lit_loader.callbacks.monitors import ClassMix, ClassMixMonitor
from lit_loader.datamodules import ClassReport, draw_class_report, draw_found
from lit_loader.datamodules.pictures import draw_canvases
from lit_loader.foundation.extras import require
from lit_loader.foundation.files import new_file
from lit_loader.inspection import draw_mirrored
from lit_loader.inspection.show import mirrored_objects

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure

__all__ = ["PictureLogger", "class_reports", "publish_picture"]

# Objects in the picture of mirror images, which needs more room for its names than other pictures.
_NUM_MIRRORED = 6


class PictureLogger(Callback):
    """Draws the first training batch, predictions of validations, and a report of class shares and scores.

    Pictures are written as PNG files: ``train_batch.png``, ``predictions.png`` (of the last validation, with the ground
    truth) and ``class_report.png`` (of validation after a fit, of the test after a test), and at the start of a fit
    ``schedules.png``, if settings follow schedules, and ``mirrored.png``, if training exchanges the mirror pairs of
    points in flips: some objects and their mirror images with the names of points, see `draw_mirrored`. Every logger
    that accepts pictures gets them with the step under the names of the files: TensorBoard through ``add_figure``,
    others, such as W&B, through ``log_image``. A CSV logger gets none.

    No batch is loaded for a picture; the few images of ``mirrored.png`` are read. The first batch of a validation is
    predicted by an additional ``predict_step``, if the module has one. All ranks run it, as sharded models require;
    rank 0 draws. Random generators keep their states. The class report shows the shares counted by a `ClassMixMonitor`
    among the callbacks, and the metrics of a task with ``val_scores`` or ``test_scores``, as in `lit_loader.recipes`.

    Args:
        every_n_epochs: Number of epochs from one picture of predictions to the next.
        max_images: Largest number of images to draw of a batch.
        min_score: Detections with lower scores are not drawn.
        folder: Folder of the files, or None for ``pictures`` in the trainer's ``default_root_dir``.

    Raises:
        ValueError: If a number is out of range; at the start of a run, if the trainer has no data module of lit_loader.
        ImportError: At the start of a run, if matplotlib is not installed.
    """

    def __init__(
        self, *, every_n_epochs: int = 1, max_images: int = 16, min_score: float = 0.5, folder: Path | str | None = None
    ) -> None:
        if every_n_epochs < 1 or max_images < 1 or not 0 <= min_score <= 1:
            numbers = f"every_n_epochs={every_n_epochs} and max_images={max_images}"
            raise ValueError(f"{numbers} must be at least 1, and min_score={min_score} in [0, 1]")
        self.every_n_epochs = every_n_epochs
        self.max_images = max_images
        self.min_score = min_score
        self.folder = None if folder is None else Path(folder)
        self._has_batch = False  # whether a training batch was drawn
        self._last_epoch = -every_n_epochs  # epoch of the last picture of predictions
        self._datamodule: Any = None  # set by `setup`

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check for matplotlib and a data module before the first epoch.

        Raises:
            ValueError: If the trainer has no data module of lit_loader.
            ImportError: If matplotlib is not installed.
        """
        # At the start, because the first class report may be drawn after hours of training.
        require("matplotlib.figure", "plot")
        remedy = "give trainer.fit one, such as DetectionDataModule, or leave the callback out"
        self._datamodule = table_datamodule(trainer, "PictureLogger", remedy=remedy)
        self._has_batch = False
        self._last_epoch = -self.every_n_epochs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the schedules of the data module, and the mirror pairs of its points, if it has any."""
        if not trainer.is_global_zero:
            return
        if self._datamodule.schedules():
            self._publish(trainer, "schedules", self._datamodule.plot_schedules())
        figure = self._draw_mirrored()
        if figure is not None:
            self._publish(trainer, "mirrored", figure)

    def _draw_mirrored(self) -> Figure | None:
        """Return a picture of objects of the training sets and their mirror images, or None without mirror pairs."""
        datamodule = self._datamodule
        num_images = min(self.max_images, _NUM_MIRRORED)
        canvases: list[Tensor] = []
        for table in datamodule.tables("train"):
            pairs = datamodule.mirror_pairs(table)
            if not pairs or len(canvases) == num_images:
                continue
            object_rows = mirrored_objects(table, pairs, num_images=num_images - len(canvases))
            drawing = {"flip_pairs": pairs, "reading": datamodule.reading}
            canvases += [draw_mirrored(table, row, **drawing) for row in object_rows]
        title = "mirror images in training: the names must fit both halves"
        return draw_canvases(canvases, title=title) if canvases else None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Draw the first batch."""
        if self._has_batch:
            return
        self._has_batch = True
        if trainer.is_global_zero:
            figure = self._datamodule.draw_batch(batch, max_images=self.max_images, title="train batch")
            self._publish(trainer, "train_batch", figure)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw predictions of the first batch, which are made with the weights being validated."""
        # The sanity check would draw an untrained model, and is followed by the first validation anyway.
        is_due = trainer.current_epoch >= self._last_epoch + self.every_n_epochs
        is_first = not trainer.sanity_checking and batch_idx == 0 and dataloader_idx == 0
        if not (is_due and is_first and is_overridden("predict_step", pl_module)):
            return
        self._last_epoch = trainer.current_epoch
        # Random draws of the additional step would otherwise change the training that follows.
        with isolate_rng(), trainer.precision_plugin.predict_step_context():
            predictions = pl_module.predict_step(batch, batch_idx)
        if trainer.is_global_zero:
            title = f"predictions, epoch {trainer.current_epoch}"
            limits: dict[str, Any] = {"min_score": self.min_score, "max_images": self.max_images}
            figure = draw_found(self._datamodule, batch, predictions, title=title, **limits)
            self._publish(trainer, "predictions", figure)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the class report with the scores of the last validation."""
        self._draw_classes(trainer, getattr(pl_module, "val_scores", None), "last validation")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the class report with the scores of the test."""
        self._draw_classes(trainer, getattr(pl_module, "test_scores", None), "test")

    def _draw_classes(self, trainer: Trainer, scores: Any, stage: str) -> None:
        if not trainer.is_global_zero:
            return
        monitor = find_callback(trainer, ClassMixMonitor)
        # In a test without a fit the monitor has counted nothing.
        mixes = {} if monitor is None else monitor.mixes
        names = mixes or {"class": ClassMix("class", tuple(self._datamodule.class_names))}
        reports = class_reports(names, [] if scores is None else scores.report())
        if mixes or any(report.metrics for report in reports):
            self._publish(trainer, "class_report", draw_class_report(reports, title=f"classes, {stage}"))

    def _publish(self, trainer: Trainer, name: str, figure: Figure) -> None:
        folder = Path(trainer.default_root_dir, "pictures") if self.folder is None else self.folder
        publish_picture(trainer, folder, name, figure)


def publish_picture(trainer: Trainer, folder: Path, name: str, figure: Figure) -> None:
    """Write a picture as a PNG file to a folder, and pass it to every logger that accepts pictures, with the step.

    Args:
        trainer: The trainer with the loggers.
        folder: Folder of the file.
        name: Name of the picture, and of its file without the ending.
        figure: The picture.
    """
    # Encoded once, for the file and for loggers that take images.
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font may lack characters of a class name and draw boxes instead.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, format="png", dpi=120)
    with new_file(folder / f"{name}.png", mode=0o666) as file:
        file.write(buffer.getvalue())
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # Not closed, because the next logger may need the figure; without pyplot nothing else refers to it.
            logger.experiment.add_figure(name, figure, global_step=trainer.global_step, close=False)
        elif hasattr(logger, "log_image"):
            with Image.open(buffer) as image:
                logger.log_image(name, [image], step=trainer.global_step)


def class_reports(
    mixes: Mapping[str, ClassMix], sections: Sequence[tuple[str, Mapping[str, float]]]
) -> list[ClassReport]:
    """Combine the shares and metrics of classes and attributes into reports for `draw_class_report`.

    Args:
        mixes: ``ClassMixMonitor.mixes``.
        sections: Titles and values, as a task's ``test_report()`` returns them. A section with a value per class
            belongs to the first mix. A section with the title ``"ATTRIBUTE: METRIC"`` and a value per attribute value
            belongs to that attribute.
    """
    reports = []
    for index, (label, mix) in enumerate(mixes.items()):
        metrics: dict[str, Mapping[str, float]] = {}
        for title, values in sections:
            attribute, separator, metric = title.rpartition(": ")
            # An attribute may have the name of a class metric, so the separator decides, not the label.
            belongs_to_mix = attribute == label if separator else index == 0
            if belongs_to_mix and set(values) == set(mix.class_names):
                metrics[metric] = values
        arrived = mix.arrived if mix.counts.any() else None
        shares = {"natural": mix.natural, "expected": mix.expected, "arrived": arrived}
        reports.append(ClassReport(label=label, class_names=mix.class_names, metrics=metrics, **shares))
    return reports
