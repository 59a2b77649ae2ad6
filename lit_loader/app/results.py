"""The results of a run as a file: metrics and scores of its best validation and of its test."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_loader.foundation.files import new_file
from lit_loader.recipes import Task
from lit_loader.recipes.metrics import Report
from lit_loader.recipes.set_scores import full_report

__all__ = ["BestValidation", "plain_scores", "scores_of_sets", "write_results"]

_KEY: Final = "lit_loader_best_validation"


class BestValidation(Callback):
    """Callback that records the best validation of a fit, by the metric that chooses the best checkpoint.

    Checkpoints hold the record, so a resumed run knows an earlier best validation. Without a metric, the record is of
    the last validation.

    Attributes:
        best: ``epoch``, ``step`` and ``metrics`` by name; for a `Task` also ``scores``, see `plain_scores`, ``sets``,
            the scores of each of several sets by name, and ``report``, see `Report`. Empty before the first
            validation.
    """

    def __init__(self) -> None:
        self.best: dict[str, Any] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record this validation if it is the best so far."""
        # Lightning also calls this hook for `trainer.validate` and for its sanity check before the fit.
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        monitor, mode = _monitored(trainer, pl_module)
        # Compare with the metric that chooses best.ckpt, so that the record describes this checkpoint.
        previous = self.best.get("metrics", {}).get(monitor)
        value = metrics.get(str(monitor))
        is_better = operator.lt if mode == "min" else operator.gt
        if previous is not None and value is not None and not is_better(value, previous):
            return
        self.best = {"epoch": trainer.current_epoch, "step": trainer.global_step, "metrics": metrics}
        if isinstance(pl_module, Task):
            self.best["scores"] = plain_scores(pl_module.val_scores)
            self.best["sets"] = scores_of_sets(pl_module, "val")
            report = full_report(pl_module.val_scores, pl_module.val_set_scores)
            self.best["report"] = [list(section) for section in report]

    def report(self) -> Report:
        """Return the report of the best validation; empty without a `Task`."""
        sections = self.best.get("report", [])
        return [("best validation" if title == "test" else title, figures) for title, figures in sections]

    # The record has its own key. With `state_dict`, Lightning would warn wherever the callback is absent.
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the best validation so far into a checkpoint, in plain values."""
        checkpoint[_KEY] = self.best

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the best validation from the checkpoint that a fit resumes from."""
        if trainer.state.fn == "fit":
            self.best = checkpoint.get(_KEY, {})


def _monitored(trainer: Trainer, model: LightningModule) -> tuple[str | None, str]:
    """Return the metric that chooses the best checkpoint, and its mode, ``"min"`` or ``"max"``."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
            return callback.monitor, callback.mode
    return getattr(model, "monitor", None), getattr(model, "monitor_mode", "min")


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write nested dicts as JSON; NaN, which JSON lacks, becomes null.

    Raises:
        OSError: If the file cannot be written.
    """
    # The umask applies, so that other users can read the results as they read the logs.
    with new_file(path, mode=0o666) as file:
        file.write(json.dumps(_without_nan(results), indent=1).encode())


def plain_scores(scores: Any) -> dict[str, Any] | None:
    """Return scores as dicts of numbers by name, or None if they are not a dataclass."""
    return asdict(scores) if is_dataclass(scores) and not isinstance(scores, type) else None


def scores_of_sets(model: LightningModule, stage: Literal["val", "test"]) -> dict[str, Any]:
    """Return the scores of each of several sets of a stage by name, see `plain_scores`; empty for a single set."""
    scores_by_set: Mapping[str, Any] = getattr(model, f"{stage}_set_scores", {})
    return {name: plain_scores(scores) for name, scores in scores_by_set.items()}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    # Python would write NaN and Infinity, which other JSON parsers refuse.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
