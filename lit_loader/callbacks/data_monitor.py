"""A callback that measures why training waits for data, and says how to change it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_loader.collate import ClassificationBatch
from lit_loader.datamodules import LoaderDataModule, TableDataModule
from lit_loader.datamodules.resuming import train_loaders
from lit_loader.errors import DataWaitWarning, SettingText, as_argument
from lit_loader.monitoring import DataReport, LoopMonitor, LoopTotals, Verdict, diagnose, gather_reports
from lit_loader.monitoring.report import LoaderSettings

__all__ = ["DataMonitor"]

_log = logging.getLogger(__name__)

# Steps that are left out of the diagnosis while workers start and caches fill, and the smallest number after them. A
# shorter fit has its diagnosis at the end, unless it is over within the warm-up.
_WARM_UP_STEPS = 20
_DIAGNOSED_STEPS = 50

# Seconds between two diagnoses during a run.
_DIAGNOSIS_DISTANCE_S = 20.0


class DataMonitor(Callback):
    """Measures how long training waits for data, finds the stage at fault, and names the setting to change.

    Waiting is the time in which a training loader of lit_loader has no batch; copies to the device by Lightning, other
    callbacks and waiting for the device are not. Validation and the time between epochs do not count. If no training
    loader is lit_loader's, all time between training steps counts as waiting.

    Logs per epoch ``data/wait_fraction`` and ``data/transfer_fraction``, fractions of loop time averaged over ranks;
    ``data/images_per_s``, images per second of loop time, summed over ranks; and ``data/queue_fraction``, the mean
    fraction of the batches ahead that were ready when a batch was asked for.

    Args:
        warn_above: Fraction of loop time spent waiting above which the run warns, once for each cause, from step 70 on;
            fits of 20 steps or more that did not warn do so at the end. None for no warning.
        num_bursts: Number of times in a run that the loader holds back a few batches, so that the steps between them
            show the rate without waiting. With 0 the headroom is an upper bound. ``fast_dev_run`` has none.
        num_records: Number of the last steps whose times are stored in ``loop.records``, for a timeline.
        path: JSON file for the reports of all ranks and the diagnosis at the end of a fit; None to write none.

    Attributes:
        loop: The monitor of the training loop.
        reports: The reports of all ranks at the end of a fit.
        num_batches: Number of this rank's training batches so far.
        setting_text: Function that writes the settings of a diagnosis; by default as arguments of Python.

    Raises:
        ValueError: If ``warn_above`` is not a fraction, or ``num_bursts`` or ``num_records`` is negative.
    """

    def __init__(
        self,
        *,
        warn_above: float | None = 0.05,
        num_bursts: int = 3,
        num_records: int = 0,
        path: Path | str | None = None,
    ) -> None:
        if warn_above is not None and not 0 <= warn_above <= 1:
            raise ValueError(f"warn_above={warn_above} must be a fraction of loop time from 0 to 1, or None")
        if num_bursts < 0:
            raise ValueError(f"num_bursts={num_bursts} must be at least 0")
        if num_records < 0:
            raise ValueError(f"num_records={num_records} must be at least 0")
        self.path = None if path is None else Path(path)
        self.loop = LoopMonitor(num_bursts=0)
        self.reports: list[DataReport] = []
        self.num_batches = 0
        self.setting_text: SettingText = as_argument
        self._warn_above = warn_above
        self._num_bursts = num_bursts
        self._num_records = num_records
        self._warned_causes: set[str] = set()
        self._epoch_start = LoopTotals()
        self._warm_totals: LoopTotals | None = None
        self._next_diagnosis_s = 0.0

    # -- figures --------------------------------------------------------------------------------------------

    def report(self) -> DataReport:
        """Return this rank's report of the fit so far."""
        # After a fit the reports of all ranks agree on the time of a step without waiting.
        return next((report for report in self.reports if report.rank == self.loop.rank), self.loop.report())

    def diagnosis(self) -> list[Verdict]:
        """Return why training waits, the main cause first: of all ranks after a fit, else of this rank."""
        if self.reports:
            return diagnose(self.report(), ranks=self.reports, above=self._threshold)
        return diagnose(self.report(), above=self._threshold)

    def lines(self) -> list[str]:
        """Return the report and the diagnosis as lines of plain text."""
        verdicts = [f"- {verdict.text(self.setting_text)}" for verdict in self.diagnosis()]
        return [*self.report().lines(), *verdicts]

    def epoch_rates(self) -> dict[str, float]:
        """Return the logged figures of this rank in the current epoch, without unknown ones."""
        return self._rates(self.loop.report(since=self._epoch_start))

    @staticmethod
    def _rates(report: DataReport) -> dict[str, float]:
        if report.total_s <= 0 or not report.num_steps:
            return {}
        rates = {"wait_fraction": report.wait_fraction, "transfer_fraction": report.transfer_fraction}
        if report.num_images:
            rates["images_per_s"] = report.num_images / report.total_s
        if report.stats.capacity:
            rates["queue_fraction"] = report.stats.ready_batches / report.stats.capacity
        return rates

    @property
    def _threshold(self) -> float:
        return 0.05 if self._warn_above is None else self._warn_above

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier fit."""
        if stage == "fit":
            num_bursts = 0 if getattr(trainer, "fast_dev_run", False) else self._num_bursts
            device = trainer.strategy.root_device
            self.loop = LoopMonitor(
                device=device, num_bursts=num_bursts, num_records=self._num_records, rank=trainer.global_rank
            )
            self.reports = []
            self.num_batches = 0
            self._warned_causes = set()
            self._warm_totals = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start waiting for the first batch."""
        # Lightning may have made new loaders.
        self._epoch_start = self.loop.start_epoch(train_loaders(trainer))
        self.loop.settings = _settings(trainer, self.loop)

    # A fit that resumes within an epoch does not call `on_train_epoch_start`.
    on_train_start = on_train_epoch_start

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        """Stop waiting for the batch."""
        # `LandmarkBatch`, `MultiTaskBatch` and pairs of detection are tuples with the images first.
        num_images = 0
        if isinstance(batch, tuple | ClassificationBatch):
            num_images = len(batch[0] if isinstance(batch, tuple) else batch.images)
        self.loop.start_step(num_images)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the step, and start waiting for the next batch."""
        self.loop.end_step()
        self.num_batches += 1
        if self._warn_above is not None:
            self._diagnose_now()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude a validation within the epoch."""
        self.loop.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue to wait for batches after a validation within the epoch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.loop.resume()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the values of the epoch, and warn of a slow rank."""
        self.loop.pause()
        rates = [self._rates(report) for report in gather_reports(self.loop.report(since=self._epoch_start))]
        # Ranks may know different figures, but log all the same ones, since each of them is a collective call.
        for name in dict.fromkeys(name for rank_rates in rates for name in rank_rates):
            values = [rank_rates[name] for rank_rates in rates if name in rank_rates]
            value = sum(values) if name == "images_per_s" else sum(values) / len(values)
            # Equal on all ranks. Without sync_dist Lightning would warn.
            pl_module.log(f"data/{name}", value, sync_dist=True)
        if trainer.world_size > 1 and self._warn_above is not None:
            reports = gather_reports(self.report())
            if self.num_batches >= _WARM_UP_STEPS + _DIAGNOSED_STEPS:
                self._warn(diagnose(reports[0], ranks=reports, above=self._warn_above))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the reports of all ranks, write them on rank 0, and warn unless the run warned before."""
        self.loop.pause()
        self.reports = gather_reports(self.report())
        if self._warn_above is not None and self.num_batches >= _WARM_UP_STEPS and not self._warned_causes:
            if max(report.wait_fraction for report in self.reports) > self._warn_above:
                self._warn(self.diagnosis())
            elif trainer.is_global_zero:
                _log.info("%s", self.diagnosis()[0].text(self.setting_text))
        if self.path is not None and trainer.is_global_zero:
            verdicts = [verdict.as_dict(self.setting_text) for verdict in self.diagnosis()]
            content = {"diagnosis": verdicts, "ranks": [report.as_dict() for report in self.reports]}
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(json.dumps(content, indent=1) + "\n")
            except OSError as error:
                # A full disk must not end the run.
                rank_zero_warn(f"the report on waiting for data could not be written to {self.path}: {error}")

    # -- warnings -------------------------------------------------------------------------------------------

    def _diagnose_now(self) -> None:
        """Diagnose a running fit now and then, after its warm-up."""
        if self._warm_totals is None:
            if self.num_batches >= _WARM_UP_STEPS:
                self._warm_totals = self.loop.totals()
            return
        if self.num_batches < _WARM_UP_STEPS + _DIAGNOSED_STEPS:
            return
        now = time.monotonic()
        if now >= self._next_diagnosis_s:
            self._next_diagnosis_s = now + _DIAGNOSIS_DISTANCE_S
            report = self.loop.report(since=self._warm_totals)
            self._warn(diagnose(report, above=self._threshold))

    def _warn(self, verdicts: Sequence[Verdict]) -> None:
        """Warn of the main cause, if it is a new one."""
        main = next((verdict for verdict in verdicts if verdict.cause != "consumer"), None)
        if main is not None and main.cause not in self._warned_causes:
            self._warned_causes.add(main.cause)
            advice = "; ".join(verdict.text(self.setting_text) for verdict in verdicts)
            rank_zero_warn(advice, category=DataWaitWarning)


def _settings(trainer: Trainer, loop: LoopMonitor) -> LoaderSettings:
    """Return the settings of the training loader, and how a data module of lit_loader reads images."""
    settings = loop.loader_settings()
    datamodule: Any = getattr(trainer, "datamodule", None)
    settings = replace(settings, has_datamodule=isinstance(datamodule, LoaderDataModule))
    if not isinstance(datamodule, TableDataModule):
        return settings
    reading = datamodule.reading_arguments
    return replace(settings, decode=reading["reading"].decode, cache=bool(reading["cache"]))
