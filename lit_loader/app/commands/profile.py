"""``lit-loader profile``: measure why a training run of a config would wait, without running it."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from hydra.utils import instantiate
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from omegaconf import DictConfig

from lit_loader.app.building import build_model
from lit_loader.app.commands.config_data import loader_datamodule
from lit_loader.app.commands.printing import print_lines, print_table, shows_progress
from lit_loader.app.commands.settings import UsageError
from lit_loader.app.commands.transform_times import measure_transforms
from lit_loader.app.commands.window import WARM_UP_SHARE, Window, sufficient_s
from lit_loader.app.running import config_errors, setting_override
from lit_loader.callbacks import DataMonitor
from lit_loader.datamodules import LoaderDataModule
from lit_loader.engine.stats import BatchRecord
from lit_loader.foundation.extras import require
from lit_loader.loader.device import moved
from lit_loader.monitoring import DataReport, LoopMonitor, LoopTotals, StepRecord, Verdict, diagnose, save_timeline

__all__ = ["profile"]

# Share of --seconds for the loader alone, and for the step alone.
_ALONE_SHARE: Final = 1 / 3

# Share of --seconds for single transforms, which are measured only if transforms are at fault.
_TRANSFORM_SHARE: Final = 0.1

_MAX_TRANSFORMS: Final = 5

# Steps before a measurement of the step alone, in which memory is allocated and kernels are chosen.
_WARM_UP_STEPS: Final = 3

# Steps whose times a timeline can show.
_MAX_RECORDS: Final = 4096


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """Measurements of a config.

    Attributes:
        loader: Report of a loop that only takes batches.
        step_s: Seconds per step on one repeated batch; None if not measured.
        run: Report of the training.
        steps: Times of its last steps.
        batches: Times of its last batches.
        verdicts: Causes of its waiting.
        transforms: Seconds per sample by the name of a transform; None if transforms are not at fault.
    """

    loader: DataReport
    step_s: float | None
    run: DataReport
    steps: list[StepRecord]
    batches: list[BatchRecord]
    verdicts: list[Verdict]
    transforms: dict[str, float] | None


def profile(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument or the config is wrong.
        ValueError: If the data yields no training batch.
        OSError: If a file cannot be read, or the timeline cannot be written.
        ImportError: If matplotlib is not installed, and a timeline is asked for.
    """
    _check(arguments)
    original_path = list(sys.path)
    num_threads = torch.get_num_threads()
    # The config may name modules in the current folder, as in `lit_loader.app.run`.
    sys.path.insert(0, str(Path.cwd()))
    try:
        cfg, datamodule = loader_datamodule(arguments)
        torch.set_num_threads(cfg.get("num_threads") or num_threads)
        # A dataset or a model may print, and stdout may be JSON.
        with redirect_stdout(sys.stderr), config_errors(cfg), _quiet_lightning():
            datamodule.prepare_data()
            measured = _measure(cfg, datamodule, arguments)
        write = setting_override(cfg)
    finally:
        sys.path[:] = original_path
        torch.set_num_threads(num_threads)
    verdicts = measured.verdicts
    if arguments.timeline is not None:
        save_timeline(arguments.timeline, measured.batches, measured.steps)
    if arguments.json:
        result = {
            "loader": measured.loader.as_dict(),
            "step_s": measured.step_s,
            "run": measured.run.as_dict(),
            "transforms": measured.transforms,
            "diagnosis": [verdict.as_dict(write) for verdict in verdicts],
        }
        print_lines(json.dumps(result, indent=1))
        return
    _print(measured, arguments.seconds)
    print_lines(*(f"- {verdict.text(write)}" for verdict in verdicts))
    overrides = [write(name, value) for verdict in verdicts for name, value in verdict.settings.items()]
    if overrides:
        print_lines("", "overrides to try, each alone:", "", *(f"  {override}" for override in overrides))
    if arguments.timeline is not None:
        print_lines("", f"timeline: {arguments.timeline}")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse wrong arguments before the long measurement."""
    if not 0 < arguments.seconds < math.inf:
        raise UsageError(f"--seconds {arguments.seconds:g} must be a time above 0 seconds")
    if arguments.timeline is None:
        return
    formats = require("matplotlib.figure", "plot").Figure().canvas.get_supported_filetypes()
    path = Path(arguments.timeline)
    if path.suffix[1:].lower() not in formats:
        raise UsageError(f"--timeline {arguments.timeline}: expected a file name ending in .{', .'.join(formats)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--timeline {arguments.timeline}: the folder {path.absolute().parent} does not exist")


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's messages: the trainer here is not the one of a real run."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", message=".*no `val_dataloader`")
            # torch warns about more workers than cores, but the diagnosis counts the cores.
            warnings.filterwarnings("ignore", message="This DataLoader will create .* worker processes in total")
            # Lightning 2.6 calls a deprecated function of torch for iterables such as `_Repeat`.
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")
            yield
    finally:
        logger.setLevel(level)


def _measure(cfg: DictConfig, datamodule: LoaderDataModule, arguments: argparse.Namespace) -> _Profile:
    """Measure the loader alone, the step alone, and both together."""
    alone_s = _ALONE_SHARE * arguments.seconds
    has_progress = shows_progress(arguments)

    def show(text: str) -> None:
        # A progress bar of rich would have a thread, which must not live when workers fork.
        if has_progress:
            sys.stderr.write(f"\r{f'measuring {text}':40}")
            sys.stderr.flush()

    with tempfile.TemporaryDirectory(prefix="lit-loader-profile-") as folder:
        make_trainer = partial(_make_trainer, cfg, folder)
        show("the loader alone")
        loader_report, batch = _measure_loader(datamodule, alone_s)
        step_s: float | None = None
        if arguments.step:
            show("the step alone")
            step_s = measure_step(build_model(cfg, datamodule), make_trainer, datamodule, batch, alone_s)
        del batch
        show("both together")
        run = _TimedRun(arguments.seconds, num_bursts=0 if arguments.step else 3)
        make_trainer(run).fit(build_model(cfg, datamodule), datamodule=datamodule)
    report = replace(run.loop.report(since=run.warm_totals), free_step_s=step_s or run.report().free_step_s)
    loaders = run.loop.loaders
    batches = loaders[0].batch_records() if loaders else []
    verdicts = diagnose(report)
    transforms: dict[str, float] | None = None
    if any(verdict.cause == "transform" for verdict in verdicts):
        show("single transforms")
        transforms = measure_transforms(datamodule, _TRANSFORM_SHARE * arguments.seconds)
    if has_progress:
        sys.stderr.write(f"\r{'':40}\r")
    return _Profile(
        loader=loader_report,
        step_s=step_s,
        run=report,
        steps=list(run.loop.records),
        batches=batches,
        verdicts=verdicts,
        transforms=transforms,
    )


def _make_trainer(cfg: DictConfig, folder: str, callback: Callback) -> Trainer:
    """Return a trainer of the config on one device, without its callbacks, loggers, checkpoints and validation."""
    trainer: Trainer = instantiate(
        cfg.trainer,
        callbacks=[callback],
        logger=False,
        default_root_dir=folder,
        devices=1,
        num_nodes=1,
        strategy="auto",
        # Not -1, since schedules of the learning rate divide by the number of steps.
        max_epochs=1_000_000,
        max_steps=-1,
        # The measurements end the training, neither earlier nor later.
        max_time=None,
        min_epochs=None,
        min_steps=None,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        overfit_batches=0.0,
        fast_dev_run=False,
        profiler=None,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        _convert_="all",
        _recursive_=False,
    )
    return trainer


def _measure_loader(datamodule: LoaderDataModule, seconds: float) -> tuple[DataReport, Any]:
    """Take batches for some seconds, and return the report and a batch."""
    loader = datamodule.train_dataloader()
    loaders = loader if isinstance(loader, list) else [loader]
    monitor = LoopMonitor(loaders[0], num_bursts=0)
    window = Window(loaders[:1], (1 - WARM_UP_SHARE) * seconds)
    warm_totals: LoopTotals | None = None
    batch: Any = None
    window.begin()
    try:
        while not window.is_over:
            for loaded_batch in monitor.batches():
                batch = loaded_batch
                if window.add_batch():
                    break
                if warm_totals is None and window.is_warm:
                    warm_totals = monitor.totals()
            if batch is None:
                raise ValueError("training has no batch")
        return monitor.report(since=warm_totals), batch
    finally:
        datamodule.teardown()  # closes the loader


class _RepeatedBatch(LightningDataModule):
    """Data module that yields one batch again and again, with the transfer of another data module.

    Args:
        datamodule: The other data module.
        batch: The batch.
    """

    def __init__(self, datamodule: LightningDataModule, batch: Any) -> None:
        super().__init__()
        self._datamodule = datamodule
        self._batch = batch

    def setup(self, stage: str) -> None:
        """Let the other data module see the trainer, and move the batch to its device once."""
        assert self.trainer is not None
        self._datamodule.trainer = self.trainer
        self._batch = moved(self._batch, self.trainer.strategy.root_device)

    def train_dataloader(self) -> _Repeat:
        return _Repeat(self._batch)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self._datamodule.on_before_batch_transfer(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return self._datamodule.transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self._datamodule.on_after_batch_transfer(batch, dataloader_idx)


class _Repeat:
    """Iterable of one batch, without end."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._batch


class _StepClock(Callback):
    """Measures steps after a warm-up, and stops the training.

    Args:
        seconds: Duration of the measurement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._num_steps = 0
        self._begin_s = 0.0
        self._warm_s = 0.0
        self.step_s = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_s = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._num_steps += 1
        if self._num_steps < _WARM_UP_STEPS:
            return
        elapsed_s = time.perf_counter() - self._begin_s
        if self._num_steps > _WARM_UP_STEPS and elapsed_s < self._seconds:
            return
        device = trainer.strategy.root_device
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        now = time.perf_counter()
        if self._num_steps == _WARM_UP_STEPS:
            self._warm_s = now
        else:
            self.step_s = (now - self._warm_s) / (self._num_steps - _WARM_UP_STEPS)
            trainer.should_stop = True


def measure_step(
    model: LightningModule, make_trainer: Any, datamodule: LightningDataModule, batch: Any, seconds: float
) -> float | None:
    """Train on one repeated batch, and return the seconds per step, or None if the model ended the training."""
    clock = _StepClock(seconds)
    make_trainer(clock).fit(model, datamodule=_RepeatedBatch(datamodule, batch))
    if not clock.step_s:
        warnings.warn("the step alone was not measured: the model ended the training before", UserWarning, stacklevel=2)
    return clock.step_s or None


class _TimedRun(DataMonitor):
    """Monitor that stops the training after a warm-up and some seconds.

    Args:
        seconds: Duration of the measurement.
        num_bursts: See `DataMonitor`.

    Attributes:
        warm_totals: Sums at the end of the warm-up; None before.
    """

    def __init__(self, seconds: float, num_bursts: int) -> None:
        super().__init__(warn_above=None, num_bursts=num_bursts, num_records=_MAX_RECORDS)
        self.warm_totals: LoopTotals | None = None
        self._seconds = seconds
        self._window: Window | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._window = Window(self.loop.loaders, self._seconds, min_skipped=_WARM_UP_STEPS)
        self._window.begin()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        super().on_train_batch_end(trainer, pl_module)
        assert self._window is not None
        if self._window.add_batch():
            trainer.should_stop = True
        if self._window.is_warm and self.warm_totals is None:
            self.warm_totals = self.loop.totals()


def _print(measured: _Profile, seconds: float) -> None:
    """Print the tables of the loop and of its stages."""
    run = measured.run
    batches_per_s = measured.loader.num_steps / max(measured.loader.total_s, 1e-9)
    rows = [["loader alone", f"{1e3 / max(batches_per_s, 1e-9):.2f}", f"{batches_per_s:.1f}"]]
    if measured.step_s is not None:
        rows.append(["step alone", f"{measured.step_s * 1e3:.2f}", f"{1 / measured.step_s:.1f}"])
    batch_ms = run.total_s / max(run.num_steps, 1) * 1e3
    rows.append(["both together", f"{batch_ms:.2f}", f"{1e3 / max(batch_ms, 1e-9):.1f}"])
    print_table("rates", ["", "ms per batch", "batches/s"], rows)
    loader_s = sufficient_s(measured.loader)
    if loader_s is not None:
        print_lines(
            f"only {measured.loader.num_steps} batches of the loader alone were measured, so its rate is uncertain; "
            f"pass --seconds {math.ceil(max(seconds, loader_s / _ALONE_SHARE))}",
            "",
        )
    print_table(f"training loop, {run.num_steps} steps", ["part", "seconds", "share"], run.loop_rows())
    title = "workers" if run.stats.num_workers else "making batches, without workers"
    print_table(title, ["stage", "seconds", "share", "ms per sample"], run.stage_rows())
    if measured.transforms:
        sum_s = sum(measured.transforms.values())
        rows = [
            [name, f"{sample_s * 1e3:.3f}", f"{sample_s / max(sum_s, 1e-9):.1%}"]
            for name, sample_s in list(measured.transforms.items())[:_MAX_TRANSFORMS]
        ]
        print_table("slowest transforms, without workers", ["transform", "ms per sample", "share"], rows)
    print_lines(run.figures_text(), run.headroom_text())
