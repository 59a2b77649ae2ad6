"""Fit a model, test its best checkpoint, and report on both."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig

from lit_loader.app.building import Run, build_run, checkpoint_path, console, loading, read_checkpoint
from lit_loader.app.checkpoints import use_durable_checkpoints
from lit_loader.app.composition import ConfigError
from lit_loader.app.launch import checkpoint_to_continue, read_launch
from lit_loader.app.report import print_report
from lit_loader.app.results import BestValidation, plain_scores, scores_of_sets, write_results
from lit_loader.app.run_folder import RunPage, commands, last_checkpoint, masked_overrides, secret_overrides
from lit_loader.app.running import FULL_DISK, NOT_WRITABLE, config_errors, one_job, run
from lit_loader.callbacks import SigtermCheckpoint
from lit_loader.datamodules import TableDataModule
from lit_loader.errors import LitLoaderError

__all__ = ["disk_errors", "finish", "has_stage", "logged_metrics", "main", "test", "train"]


def train(cfg: DictConfig) -> float | None:
    """Fit a model, test it and print a report; resume from ``ckpt_path`` if it is set.

    With ``train: false``, the weights of ``ckpt_path`` are tested, or the initial weights of the model. Without a test
    split, the run ends with the fit.

    Args:
        cfg: A config as ``conf/train.yaml`` composes it.

    Returns:
        ``optimized_metric``, or the metric of the task if that is null: the best value if a checkpoint callback
        monitors it, else the last value. None if it is null and the run logged no metric of the task.

    Raises:
        ConfigError: If a setting is refused, or ``optimized_metric`` is not a metric of the run.
        LitLoaderError: If the data cannot be used.
    """
    start = time.monotonic()
    with one_job(cfg):
        # Refuse a wrong checkpoint before the data is read, which may take minutes.
        path = checkpoint_path(cfg)
        fits = cfg.get("train", True)
        _check_resume_folder(cfg, path if fits else None)
        if fits:
            path = _checkpoint_of_restart(cfg) or path
        if path is not None and fits:
            read_checkpoint(path, resumes=True)
        validation = BestValidation()
        callbacks = (validation, _ShortRunLogging()) if fits else ()
        run = build_run(cfg, checkpoint=None if fits else path, callbacks=callbacks)
        # Without a shared disk only rank 0 has the last checkpoint of the run.
        path = run.trainer.strategy.broadcast(path)
        page = RunPage(run, validation, checkpoint=path if fits else None)
        with _described(page):
            metrics: dict[str, float] = {}
            if fits:
                _fit(run, path)
                # Lightning clears the metrics when the test begins.
                metrics = logged_metrics(run)
                path = None  # test the best checkpoint of this fit
            tested = "nothing"
            if cfg.get("test", True):
                tested = "nothing, the data has no test split"
                if has_stage(run.datamodule, "test"):
                    tested = test(run, path)
                    metrics |= logged_metrics(run)
            optimized = finish(run, metrics, tested, start, validation)
        page.write(f"finished in {time.monotonic() - start:.0f} s", tested=tested)
        return optimized


def _checkpoint_of_restart(cfg: DictConfig) -> str | None:
    """Return the checkpoint from which a named run continues after a restart, on rank 0, and print that it does.

    Raises:
        ConfigError: If the folder has a run with other overrides.
    """
    # Further ranks receive the path of rank 0. A resume in place is the wish to continue with other overrides.
    launch = read_launch(os.environ)
    rank = getattr(rank_zero_only, "rank", 0) if launch is None else launch.rank
    if rank > 0 or cfg.get("resume_in_place"):
        return None
    path = checkpoint_to_continue(Path(cfg.paths.output_dir), masked_overrides(), os.environ)
    if path is not None:
        console().print(f"LIT_LOADER_RUN={os.environ['LIT_LOADER_RUN']}: continues from {path}", soft_wrap=True)
    return path


@contextmanager
def _described(page: RunPage) -> Iterator[None]:
    """Write the page of a run before it starts, and with the reason if it ends with an error."""
    page.write("running, or killed: this page is written again at the end of the run", is_running=True)
    try:
        yield
    except BaseException as error:
        if isinstance(error, SIGTERMException) or isinstance(error.__context__, SIGTERMException):
            state = "stopped by SIGTERM"
        elif isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            state = "stopped by Ctrl-C"
        else:
            state = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        page.write(state)
        raise


class _ShortRunLogging(Callback):
    """Callback that lowers ``log_every_n_steps`` to the length of an epoch or of the run, so that a loss is logged."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # With the default of 50, a run of fewer batches would log no training loss at all.
        num_batches = trainer.num_training_batches
        if trainer.max_steps > 0:
            num_batches = min(num_batches, trainer.max_steps * trainer.accumulate_grad_batches)
        if 0 < num_batches < trainer.log_every_n_steps:  # type: ignore[attr-defined] # set by a connector of Lightning
            trainer.log_every_n_steps = int(num_batches)  # type: ignore[attr-defined]


def _check_resume_folder(cfg: DictConfig, path: str | None) -> None:
    """Refuse ``resume_in_place`` if the run does not continue in the folder of its checkpoint.

    Raises:
        ConfigError: If the run resumes from no checkpoint, or writes into another folder.
    """
    if not cfg.get("resume_in_place"):
        return
    folder = Path(cfg.paths.output_dir).absolute()
    if path is None or Path(path).absolute().parent.parent != folder:
        raise ConfigError(
            f"resume_in_place={cfg.resume_in_place} continues in the folder of a run, and this one would resume from "
            f"ckpt_path={path} in {folder}; pass resume_in_place=true ckpt_path=FILE on the command line"
        )


def _fit(run: Run, path: str | None) -> None:
    """Fit a model, starting from a checkpoint if one is given.

    Raises:
        SystemExit: After SIGTERM and Ctrl-C; the command that resumes the run has been printed.
        LitLoaderError: If the data cannot be used, or the run's folder cannot be written.
    """
    trainer = run.trainer
    _check_early_stopping(run)
    checkpoints = use_durable_checkpoints(trainer)
    try:
        with config_errors(run.cfg, data_only=True), disk_errors(run), warnings.catch_warnings():
            # Both are expected: a resumed run writes to a new folder, or to its old one with resume_in_place.
            warnings.filterwarnings("ignore", "The dirpath has changed")
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            trainer.fit(run.model, datamodule=run.datamodule, ckpt_path=path, weights_only=True)
    except SystemExit as stop:
        if isinstance(stop, SIGTERMException) or isinstance(stop.__context__, KeyboardInterrupt):
            _print_how_to_resume(run)
        raise
    # If the signal arrives in the last batch, the fit is complete, but the scheduler leaves no time for a test.
    sigterm_callbacks = [
        callback for callback in trainer.checkpoint_callbacks if isinstance(callback, SigtermCheckpoint)
    ]
    if trainer.received_sigterm or any(callback.received for callback in sigterm_callbacks):
        _print_how_to_resume(run)
        raise SIGTERMException
    if checkpoints is not None and trainer.is_global_zero:
        for failure in checkpoints.failures.values():
            console().print(f"warning: {failure}", soft_wrap=True, markup=False)


def _check_early_stopping(run: Run) -> None:
    """Refuse early stopping on a metric of validation if no validation runs.

    Raises:
        ConfigError: If early stopping watches the metric of the task, and the data has no validation split.
    """
    metric = getattr(run.model, "monitor", None)
    if has_stage(run.datamodule, "val"):
        return
    for callback in run.trainer.early_stopping_callbacks:
        if callback.monitor == metric:
            raise ConfigError(
                f"callbacks.early_stopping watches {metric}, which needs a validation split; name one with "
                "dataset.val=NAME, or remove the callback with ~callbacks.early_stopping"
            )


def _print_how_to_resume(run: Run) -> None:
    """Print the command that resumes a run from its last checkpoint, on rank 0."""
    out = console()
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        out.print("stopped before the first checkpoint was saved", soft_wrap=True)
        return
    command = commands(run, (checkpoint, checkpoint), relative=False)["resume"]
    secrets = secret_overrides(checkpoint)
    remark = f"; add, with their values: {', '.join(secrets)}" if secrets else ""
    launch = read_launch(os.environ)
    if launch is not None:
        remark += f". Put {launch.launcher} with its options in front on each host"
    out.print(
        f"stopped; to resume:\n\n  {command}\n\nresume_in_place=true continues in the same folder{remark}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def finish(
    run: Run, metrics: Mapping[str, float], tested: str, start: float, validation: BestValidation | None = None
) -> float | None:
    """Print the report of a run and write ``results.json``, on rank 0; return the value that a sweep optimises.

    Args:
        run: The run.
        metrics: The metrics that were logged last, by name.
        tested: Description of the tested checkpoint.
        start: Start of the run, as `time.monotonic` returned it.
        validation: The best validation of the fit, or None without a fit.

    Raises:
        ConfigError: If ``optimized_metric`` is not a metric of the run.
    """
    # Lightning gathers metrics over all ranks, so rank 0 can report alone.
    if run.trainer.is_global_zero:
        out = console()
        out.print(f"tested: {tested}", soft_wrap=True)
        print_report(run.model, run.trainer, metrics, out, [] if validation is None else validation.report())
        seconds = time.monotonic() - start
        best = {} if validation is None else {name: item for name, item in validation.best.items() if name != "report"}
        if best:
            best["checkpoint"] = getattr(run.trainer.checkpoint_callback, "best_model_path", None) or None
        test_scores = plain_scores(getattr(run.model, "test_scores", None))
        test_sets = scores_of_sets(run.model, "test")
        test_metrics = {name: value for name, value in metrics.items() if name.startswith("test/")}
        results = {
            "best_validation": best or None,
            "test": {"tested": tested, "metrics": test_metrics, "scores": test_scores, "sets": test_sets},
            "metrics": metrics,
            "seconds": round(seconds, 1),
        }
        try:
            write_results(run.folder / "results.json", results)
        except OSError as error:  # the disk is full
            out.print(f"warning: results.json could not be written: {error}", soft_wrap=True, markup=False)
        out.print(
            f"finished in {seconds:.0f} s; results.json, pictures, logs and checkpoints in {run.folder}", soft_wrap=True
        )
    return _optimized(run, metrics)


def has_stage(datamodule: LightningDataModule, stage: Any) -> bool:
    """Return True if a data module has data for a stage; always True for data modules of other packages."""
    if isinstance(datamodule, TableDataModule):
        return bool(datamodule.tables(stage))
    return True


def test(run: Run, path: str | None) -> str:
    """Test a checkpoint, by default the best or else the last one of the fit, and return its description."""
    if path is None:
        path = getattr(run.trainer.checkpoint_callback, "best_model_path", None) or None
        # The best checkpoint may be missing: if the disk was full at each save, only its path was recorded.
        if path is None or ("://" not in path and not Path(path).exists()):
            path = last_checkpoint(run)
    # Without a shared disk only rank 0 has the file.
    path = run.trainer.strategy.broadcast(path)
    with loading(run.cfg), disk_errors(run):
        run.trainer.test(run.model, datamodule=run.datamodule, ckpt_path=path, weights_only=True, verbose=False)
    return f"checkpoint {path}" if path else "the last weights, since the run has no checkpoint"


def logged_metrics(run: Run) -> dict[str, float]:
    """Return the metrics that the trainer logged last."""
    return {name: float(value) for name, value in run.trainer.callback_metrics.items()}


@contextmanager
def disk_errors(run: Run) -> Iterator[None]:
    """Turn errors from writing to a run's folder into one-line errors.

    Raises:
        LitLoaderError: If the disk is full, or a file in the run's folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        # Files of the data may be missing, too, but a full disk is always the disk of an output.
        in_folder = str(error.filename or "").startswith(str(run.folder))
        if error.errno not in FULL_DISK and not (in_folder and error.errno in NOT_WRITABLE):
            raise
        raise LitLoaderError(f"{error}; the run writes to {run.folder}. Its checkpoints there are complete") from error


def _optimized(run: Run, metrics: Mapping[str, float]) -> float | None:
    """Return the value that a sweep optimises.

    Raises:
        ConfigError: If ``optimized_metric`` is set, and the run logged no metric of this name.
    """
    configured_name: str | None = run.cfg.get("optimized_metric")
    name = configured_name or getattr(run.model, "monitor", None)
    # The best value rather than the last one: a sweep compares the checkpoints that its jobs keep.
    for callback in run.trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor == name and callback.best_model_score is not None:
            return float(callback.best_model_score)
    if name is not None and name in metrics:
        return metrics[name]
    if configured_name is None:
        return None
    raise ConfigError(
        f"optimized_metric={configured_name!r} is not a metric of this run: {', '.join(sorted(metrics)) or 'none'}"
    )


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Fit and test: ``lit-loader train``."""
    return train(cfg)


if __name__ == "__main__":
    run(main)
