"""A callback that draws batches, predictions and classes for loggers and the run's folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image

from lit_loader.callbacks.monitors import ClassMix, ClassMixMonitor
from lit_loader.datamodules import ClassReport, TableDataModule, draw_class_report, draw_found
from lit_loader.foundation.extras import require
from lit_loader.foundation.files import new_file

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure

__all__ = ["PictureLogger", "class_reports"]


class PictureLogger(Callback):
    """Draws the first training batch, predictions in validations, and how classes came and were scored.

    Pictures are PNG files in a folder, ``train_batch.png``, ``predictions.png`` (of the last validation that was drawn,
    with the ground truth) and ``class_report.png`` (of validation after a fit, of the test after a test); and every
    logger that takes pictures gets them with the step, as ``train_batch``, ``predictions`` and ``class_report``:
    TensorBoard by ``add_figure``, others, such as W&B, by ``log_image``. A CSV logger gets none.

    The batches are those that the loaders give to the run: none is loaded for a picture. Predictions are those of the
    first batch of a validation, by one more ``predict_step``, if the module has one, which every rank takes, so that
    sharded models can; rank 0 draws. Generators are left as they were. The class report needs a `ClassMixMonitor` among
    the callbacks for the shares that arrived, and a task with ``val_scores`` or ``test_scores``, as those of
    `lit_loader.recipes`, for the metrics.

    Args:
        every_n_epochs: Epochs from one picture of predictions to the next.
        max_images: Images drawn of a batch at most.
        min_score: Detections below it are left out.
        folder: Where files are written, or None for ``pictures`` in the trainer's ``default_root_dir``.

    Raises:
        ValueError: If a number is out of range; at the start of a run, if the trainer has no data module of lit_loader.
        ImportError: At the start of a run, if matplotlib is not installed.
    """

    def __init__(
        self,
        *,
        every_n_epochs: int = 1,
        max_images: int = 16,
        min_score: float = 0.5,
        folder: Path | str | None = None,
    ) -> None:
        if every_n_epochs < 1 or max_images < 1 or not 0 <= min_score <= 1:
            raise ValueError(
                f"every_n_epochs={every_n_epochs} and max_images={max_images} must be at least 1, and "
                f"min_score={min_score} lie in [0, 1]"
            )
        self.every_n_epochs, self.max_images, self.min_score = every_n_epochs, max_images, min_score
        self.folder = None if folder is None else Path(folder)
        self._has_batch, self._last_epoch = False, -every_n_epochs

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that there is what drawing needs, before the first epoch.

        Raises:
            ValueError: If the trainer has no data module of lit_loader.
            ImportError: If matplotlib is not installed.
        """
        require("matplotlib.figure", "plot")
        datamodule: Any = getattr(trainer, "datamodule", None)
        if not isinstance(datamodule, TableDataModule):
            found = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
            raise ValueError(
                "PictureLogger draws by a data module of lit_loader that reads tables, such as DetectionDataModule, "
                f"and the trainer has {found}; leave the callback out"
            )
        self._has_batch, self._last_epoch = False, -self.every_n_epochs

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Draw the first batch."""
        if self._has_batch:
            return
        self._has_batch = True
        if trainer.is_global_zero:
            datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
            self._give(
                trainer,
                "train_batch",
                datamodule.draw_batch(batch, max_images=self.max_images, title="train batch"),
            )

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw predictions of the first batch, with the weights that are validated."""
        is_due = trainer.current_epoch >= self._last_epoch + self.every_n_epochs
        is_first = not trainer.sanity_checking and batch_idx == 0 and dataloader_idx == 0
        if not (is_due and is_first and is_overridden("predict_step", pl_module)):
            return
        self._last_epoch = trainer.current_epoch
        with isolate_rng(), trainer.precision_plugin.predict_step_context():
            found = pl_module.predict_step(batch, batch_idx)
        if trainer.is_global_zero:
            datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
            drawing: dict[str, Any] = {"min_score": self.min_score, "max_images": self.max_images}
            title = f"predictions, epoch {trainer.current_epoch}"
            self._give(trainer, "predictions", draw_found(datamodule, batch, found, title=title, **drawing))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the classes with the scores of the last validation."""
        self._draw_classes(trainer, getattr(pl_module, "val_scores", None), "last validation")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the classes with the scores of the test."""
        self._draw_classes(trainer, getattr(pl_module, "test_scores", None), "test")

    def _draw_classes(self, trainer: Trainer, scores: Any, stage: str) -> None:
        if not trainer.is_global_zero:
            return
        monitors = [each for each in trainer.callbacks if isinstance(each, ClassMixMonitor) and each.mixes]  # type: ignore[attr-defined]
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        mixes = monitors[0].mixes if monitors else {"class": ClassMix("class", datamodule.class_names)}
        reports = class_reports(mixes, [] if scores is None else scores.report())
        if monitors or any(report.metrics for report in reports):
            self._give(trainer, "class_report", draw_class_report(reports, title=f"classes, {stage}"))

    def _give(self, trainer: Trainer, name: str, figure: Figure) -> None:
        """Write a picture to the folder, and give it to the loggers."""
        folder = Path(trainer.default_root_dir, "pictures") if self.folder is None else self.folder
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        with new_file(folder / f"{name}.png", mode=0o666) as file:
            file.write(buffer.getvalue())
        for logger in trainer.loggers:
            _log_picture(logger, name, figure, buffer, step=trainer.global_step)


def _log_picture(logger: Logger, name: str, figure: Figure, png: io.BytesIO, *, step: int) -> None:
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_figure(name, figure, global_step=step, close=False)
    elif hasattr(logger, "log_image"):
        with Image.open(png) as image:
            logger.log_image(name, [image], step=step)


def class_reports(
    mixes: Mapping[str, ClassMix], sections: Sequence[tuple[str, Mapping[str, float]]]
) -> list[ClassReport]:
    """Return how classes and attributes came, each with its metrics, for `draw_class_report`.

    Args:
        mixes: ``ClassMixMonitor.mixes``.
        sections: What ``test_report()`` of a task returns: a section with a number for each class belongs to the first
            mix, one with the title ``"ATTRIBUTE: METRIC"`` and a number for each value to that attribute's.
    """
    found = []
    for number, (label, mix) in enumerate(mixes.items()):
        metrics: dict[str, Mapping[str, float]] = {}
        for title, values in sections:
            of, is_of_attribute, metric = title.rpartition(": ")
            if set(values) == set(mix.class_names) and (of == label if is_of_attribute else number == 0):
                metrics[metric] = values
        arrived = mix.arrived if mix.counts.any() else None
        shares = {"natural": mix.natural, "expected": mix.expected, "arrived": arrived}
        found.append(ClassReport(label=label, class_names=mix.class_names, metrics=metrics, **shares))
    return found
