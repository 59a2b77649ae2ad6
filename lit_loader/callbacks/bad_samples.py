"""A callback that reports the samples that could not be made, of all ranks."""

from __future__ import annotations

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

_hook: Any = partialmethod  # mypy takes it for no method


class BadSampleReport(Callback):
    """Gathers the bad samples of all ranks at the end of each epoch, of loaders with another policy than "raise".

    Rank zero prints how many there are and what the first ones are, and appends them to a file. Logs
    ``data/bad_samples`` (``data/val_bad_samples``, ``data/test_bad_samples``), their number over all ranks; Lightning
    logs nothing in a prediction. The sanity check before training is left out.

    Args:
        path: A file of JSON lines: ``stage``, ``dataloader_idx`` and the fields of `BadSample`; or None for no file.

    Attributes:
        records: For each stage (train, val, test, predict), the bad samples of the last epoch; every rank has those of
            all ranks.
        num_bad_samples: For each stage, their number so far, over all ranks.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.records: dict[str, list[BadSample]] = {}
        self.num_bad_samples: dict[str, int] = {}
        # Of each stage, the logs of the loaders' iterations in this epoch, with the loader's number.
        self._logs: dict[str, dict[BadSampleLog, int]] = {}
        self._num_reported: MutableMapping[BadSampleLog, int] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_logs": {}, "_num_reported": {}}  # logs stay with their process

    def _note_logs(self, trainer: Trainer, *_: Any, stage: str, loaders: str) -> None:
        """Note which logs are written now: a loader that is shorter than others is iterated several times an epoch."""
        given = CombinedLoader(getattr(trainer, loaders), "sequential").flattened
        for number, loader in enumerate(each for each in given if isinstance(each, DataLoader)):
            if loader._bad_sample_log is not None:
                self._logs.setdefault(stage, {}).setdefault(loader._bad_sample_log, number)

    def _report(self, trainer: Trainer, pl_module: LightningModule, *, stage: str) -> None:
        """Report the bad samples of the epoch."""
        found: list[tuple[int, BadSample]] = []
        for log, number in self._logs.pop(stage, {}).items():
            # A loader may be validated on in the middle of its training epoch, which reports a part of its log.
            records = log.records[self._num_reported.get(log, 0) :]
            self._num_reported[log] = len(log.records)
            found += [(number, record) for record in records]
        if trainer.sanity_checking:
            return
        # a collective: ranks without bad samples call it too
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, found)
            found = [each for of_rank in gathered for each in of_rank]
        records = self.records[stage] = [record for _, record in found]
        self.num_bad_samples[stage] = self.num_bad_samples.get(stage, 0) + len(records)
        if stage != "predict":
            name = "data/bad_samples" if stage == "train" else f"data/{stage}_bad_samples"
            pl_module.log(name, float(len(records)), on_epoch=True, sync_dist=True, reduce_fx="max")
        if not records or not trainer.is_global_zero:
            return
        rank_zero_info(f"{stage}, epoch {trainer.current_epoch}, all ranks: {summarize(records)}")
        if self.path is None:
            return
        try:
            for number, record in found:
                append_bad_samples(self.path, [record], stage=stage, dataloader_idx=number)
        except OSError as error:  # a full disk does not end the training
            rank_zero_warn(f"the bad samples of {stage} were not written to {self.path}: {error}")

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the epoch in which an earlier run was broken off."""
        self._logs = {}

    # The hooks of a stage note the logs that are written, and report the bad samples of its epoch.
    on_train_batch_start = _hook(_note_logs, stage="train", loaders="train_dataloader")
    on_train_epoch_end = _hook(_report, stage="train")
    on_validation_batch_start = _hook(_note_logs, stage="val", loaders="val_dataloaders")
    on_validation_epoch_end = _hook(_report, stage="val")
    on_test_batch_start = _hook(_note_logs, stage="test", loaders="test_dataloaders")
    on_test_epoch_end = _hook(_report, stage="test")
    on_predict_batch_start = _hook(_note_logs, stage="predict", loaders="predict_dataloaders")
    on_predict_epoch_end = _hook(_report, stage="predict")
