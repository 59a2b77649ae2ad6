"""Fit a model, test its best checkpoint, and report on both."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig

from lit_loader.app.building import Run, build_run, checkpoint_path, console, loading, read_checkpoint
from lit_loader.app.checkpoints import use_durable_checkpoints
from lit_loader.app.report import print_report
from lit_loader.app.running import FULL_DISK, NOT_WRITABLE, config_errors, one_job, run
from lit_loader.configs import ConfigError
from lit_loader.datamodules import TableDataModule
from lit_loader.errors import LitLoaderError

__all__ = ["finish", "has_stage", "main", "numbers", "test", "train"]


def train(cfg: DictConfig) -> float | None:
    """Fit, test and report as a config says; resumes from ``ckpt_path``.

    With ``train`` false the weights of ``ckpt_path``, or those that the model is built with, are tested. A run without
    a test split ends with the fit.

    Args:
        cfg: A config as ``conf/train.yaml`` composes it.

    Returns:
        ``optimized_metric``, or the task's own where that is null: its best value where a checkpoint callback follows
        it, else the last one. None if it is null and the run gave no such metric.

    Raises:
        ConfigError: If a setting is refused, or no metric has the name of ``optimized_metric``.
        LitLoaderError: If the data cannot be used.
    """
    start = time.monotonic()
    with one_job():
        path, fits = checkpoint_path(cfg), cfg.get("train", True)
        if path is not None and fits:
            read_checkpoint(path, resumes=True)
        run = build_run(cfg, checkpoint=None if fits else path)
        metrics: dict[str, float] = {}
        if fits:
            checkpoints = use_durable_checkpoints(run.trainer)
            with config_errors(cfg, data_only=True), _disk_errors(run):
                run.trainer.fit(run.model, datamodule=run.datamodule, ckpt_path=path, weights_only=True)
            metrics, path = numbers(run), None
            if checkpoints is not None and run.trainer.is_global_zero:
                for failure in checkpoints.failures.values():
                    console().print(f"warning: {failure}", soft_wrap=True, markup=False)
        tested = "nothing"
        if cfg.get("test", True):
            tested = "nothing, there is no test split"
            if has_stage(run.datamodule, "test"):
                tested = test(run, path)
                metrics |= numbers(run)
        return finish(run, metrics, tested, start)


def finish(run: Run, metrics: Mapping[str, float], tested: str, start: float) -> float | None:
    """Print what a run has to tell, on rank 0, and return what a sweep optimises.

    Raises:
        ConfigError: If ``optimized_metric`` is not among the run's metrics.
    """
    if run.trainer.is_global_zero:
        out = console()
        out.print(f"tested: {tested}", soft_wrap=True)
        print_report(run.model, run.trainer, metrics, out)
        seconds = time.monotonic() - start
        out.print(
            f"finished in {seconds:.0f} s; pictures, logs and checkpoints in {run.folder}", soft_wrap=True
        )
    return _optimized(run, metrics)


def has_stage(datamodule: LightningDataModule, stage: Any) -> bool:
    """Return whether a data module has data for a stage; of one that is not lit_loader's, whether it has a loader."""
    if isinstance(datamodule, TableDataModule):
        return bool(datamodule.tables(stage))
    return True


def test(run: Run, path: str | None) -> str:
    """Test the best checkpoint of the fit, or the one given, and return what was tested."""
    if path is None:
        path = getattr(run.trainer.checkpoint_callback, "best_model_path", None) or None
        if path is not None and "://" not in path and not Path(path).exists():
            path = None  # the disk was full whenever it was saved
    with loading(run.cfg):
        run.trainer.test(
            run.model, datamodule=run.datamodule, ckpt_path=path, weights_only=True, verbose=False
        )
    return f"checkpoint {path}" if path else "the last weights: there is no checkpoint"


def numbers(run: Run) -> dict[str, float]:
    """Return the metrics that the trainer logged last."""
    return {name: float(value) for name, value in run.trainer.callback_metrics.items()}


@contextmanager
def _disk_errors(run: Run) -> Iterator[None]:
    """Raise what keeps a run from writing to its folder as an error of one line.

    Raises:
        LitLoaderError: If the disk is full, or a file of the run's folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        in_folder = str(error.filename or "").startswith(str(run.folder))
        if error.errno not in FULL_DISK and not (in_folder and error.errno in NOT_WRITABLE):
            raise
        raise LitLoaderError(
            f"{error}; the run writes to {run.folder}. Its checkpoints there are whole"
        ) from error


def _optimized(run: Run, metrics: Mapping[str, float]) -> float | None:
    """Return what a sweep optimises.

    Raises:
        ConfigError: If it is named and no metric has its name.
    """
    chosen: str | None = run.cfg.get("optimized_metric")
    name = chosen or getattr(run.model, "monitor", None)
    for callback in run.trainer.checkpoint_callbacks:
        if (
            isinstance(callback, ModelCheckpoint)
            and callback.monitor == name
            and callback.best_model_score is not None
        ):
            return float(callback.best_model_score)
    if name is not None and name in metrics:
        return metrics[name]
    if chosen is None:
        return None
    raise ConfigError(
        f"optimized_metric={chosen!r} is not among the metrics of this run: {', '.join(sorted(metrics)) or 'none'}"
    )


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Fit and test: ``lit-loader train``."""
    return train(cfg)


if __name__ == "__main__":
    run(main)
