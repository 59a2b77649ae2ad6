"""A callback that reports the bad samples of all ranks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import MutableMapping
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn

from lit_loader.engine import BadSample, BadSampleLog, append_bad_samples
from lit_loader.engine.bad_samples import summarize
from lit_loader.loader import DataLoader

__all__ = ["BadSampleReport"]

_hook: Any = partialmethod  # typed as Any: mypy does not see a method in it


class BadSampleReport(Callback):
    """Gathers bad samples of all ranks at the end of each epoch, from loaders whose policy is not "raise".

    Rank 0 prints their number and the first ones, and appends all of them to a file. Their number over all ranks is
    logged as ``data/bad_samples`` (``data/val_bad_samples``, ``data/test_bad_samples``), except in a prediction, where
    Lightning logs nothing. The sanity check before training is ignored.

    Args:
        path: File for JSON lines with ``stage``, ``dataloader_idx`` and the fields of `BadSample`; None to write none.

    Attributes:
        records: Bad samples of the last epoch of all ranks, per stage (train, val, test, predict).
        num_bad_samples: Number of bad samples so far over all ranks, per stage.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.records: dict[str, list[BadSample]] = {}
        self.num_bad_samples: dict[str, int] = {}
        # Per stage, the logs of this epoch's iterators and the index of their loader.
        self._logs: dict[str, dict[BadSampleLog, int]] = {}
        # Weak keys: a log lives as long as its iterator, and a fit creates one for every validation.
        self._num_reported: MutableMapping[BadSampleLog, int] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        # Logs belong to the iterators of this process.
        return {**self.__dict__, "_logs": {}, "_num_reported": {}}

    def _note_logs(self, trainer: Trainer, *_: Any, stage: str, loaders: str) -> None:
        """Remember the logs of the loaders' current iterators.

        Called for every batch, because a loader that is shorter than others starts several iterators per epoch.
        """
        flattened = CombinedLoader(getattr(trainer, loaders), "sequential").flattened
        lit_loaders = [loader for loader in flattened if isinstance(loader, DataLoader)]
        for index, loader in enumerate(lit_loaders):
            log = loader._bad_sample_log
            if log is not None:
                self._logs.setdefault(stage, {}).setdefault(log, index)

    def _report(self, trainer: Trainer, pl_module: LightningModule, *, stage: str) -> None:
        """Report the bad samples of the epoch."""
        indexed_records: list[tuple[int, BadSample]] = []
        for log, index in self._logs.pop(stage, {}).items():
            # A validation in the middle of a loader's training epoch has reported a part of its log already.
            indexed_records += [(index, record) for record in log.records[self._num_reported.get(log, 0) :]]
            self._num_reported[log] = len(log.records)
        if trainer.sanity_checking:
            return
        # A collective: ranks without bad samples have to call it as well.
        if dist.is_available() and dist.is_initialized():
            records_by_rank: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(records_by_rank, indexed_records)
            indexed_records = list(itertools.chain.from_iterable(records_by_rank))
        records = [record for _, record in indexed_records]
        self.records[stage] = records
        self.num_bad_samples[stage] = self.num_bad_samples.get(stage, 0) + len(records)
        if stage != "predict":
            name = "data/bad_samples" if stage == "train" else f"data/{stage}_bad_samples"
            # Every rank has the number of all ranks, and their maximum changes nothing; a sum would multiply it.
            pl_module.log(name, float(len(records)), on_epoch=True, sync_dist=True, reduce_fx="max")
        if not records or not trainer.is_global_zero:
            return
        rank_zero_info(f"{stage}, epoch {trainer.current_epoch}, all ranks: {summarize(records)}")
        if self.path is None:
            return
        try:
            for index, record in indexed_records:
                append_bad_samples(self.path, [record], stage=stage, dataloader_idx=index)
        except OSError as error:
            # A full disk must not end the training.
            rank_zero_warn(f"bad samples of {stage} could not be written to {self.path}: {error}")

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the unfinished epoch of an earlier run."""
        self._logs = {}

    # In each stage, one hook remembers the logs, and another one reports the bad samples of the epoch.
    on_train_batch_start = _hook(_note_logs, stage="train", loaders="train_dataloader")
    on_train_epoch_end = _hook(_report, stage="train")
    on_validation_batch_start = _hook(_note_logs, stage="val", loaders="val_dataloaders")
    on_validation_epoch_end = _hook(_report, stage="val")
    on_test_batch_start = _hook(_note_logs, stage="test", loaders="test_dataloaders")
    on_test_epoch_end = _hook(_report, stage="test")
    on_predict_batch_start = _hook(_note_logs, stage="predict", loaders="predict_dataloaders")
    on_predict_epoch_end = _hook(_report, stage="predict")
