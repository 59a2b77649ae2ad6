"""A callback that reports the samples that could not be made, of all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn

from lit_loader.engine import BadSample, BadSampleLog, append_bad_samples
from lit_loader.engine.bad_samples import summarize
from lit_loader.loader import DataLoader

__all__ = ["BadSampleReport"]

_METRICS: Final = {
    "train": "data/bad_samples",
    "val": "data/val_bad_samples",
    "test": "data/test_bad_samples",
}


class BadSampleReport(Callback):
    """Gathers the bad samples of all ranks at the end of each epoch, of loaders with another policy than "raise".

    Rank zero says once how many there are and what the first ones are, and appends them to a file. Logs
    ``data/bad_samples`` (``data/val_bad_samples``, ``data/test_bad_samples``), their number over all ranks; Lightning
    logs nothing in a prediction. The sanity check before training is left out.

    Args:
        path: A file of JSON lines: ``stage``, ``dataloader_idx``, and what `BadSample` holds; None: no file.

    Attributes:
        records: For each stage (train, val, test, predict), the bad samples of the last epoch, all ranks' on each.
        num_bad_samples: For each stage, how many there were so far, over all ranks.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.records: dict[str, list[BadSample]] = {}
        self.num_bad_samples: dict[str, int] = {}
        self._loaders: dict[str, list[DataLoader[Any]]] = {}
        self._logs: dict[str, dict[BadSampleLog, int]] = {}  # of the epoch's passes, with the loader's number
        self._num_told: MutableMapping[BadSampleLog, int] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        # loaders and their passes stay with their process
        return {**self.__dict__, "_loaders": {}, "_logs": {}, "_num_told": {}}

    def _begin(self, stage: str, loaders: Any) -> None:
        self._loaders[stage], self._logs[stage] = list(_ours(loaders)), {}

    def _look(self, stage: str) -> None:
        """Note the passes that are being iterated: a loader that is shorter than others begins several an epoch."""
        for number, loader in enumerate(self._loaders.get(stage, [])):
            if loader._bad_sample_log is not None:
                self._logs[stage].setdefault(loader._bad_sample_log, number)

    def _untold(self, stage: str) -> list[tuple[int, BadSample]]:
        """Return what nobody has been told of yet: a loader may be validated on in the middle of its training pass."""
        self._look(stage)
        found: list[tuple[int, BadSample]] = []
        for log, number in self._logs.pop(stage, {}).items():
            records = log.records[self._num_told.get(log, 0) :]
            self._num_told[log] = len(log.records)
            found += [(number, record) for record in records]
        self._loaders.pop(stage, None)
        return found

    def _end(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        found = self._untold(stage)
        if trainer.sanity_checking:
            return
        if dist.is_available() and dist.is_initialized():  # all ranks come here, whether they have any or not
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, found)
            found = [each for of_rank in gathered for each in of_rank]
        records = self.records[stage] = [record for _, record in found]
        self.num_bad_samples[stage] = self.num_bad_samples.get(stage, 0) + len(records)
        if stage in _METRICS:
            pl_module.log(
                _METRICS[stage], float(len(records)), on_epoch=True, sync_dist=True, reduce_fx="max"
            )
        if records and trainer.is_global_zero:
            rank_zero_info(f"{stage}, epoch {trainer.current_epoch}, all ranks: {summarize(records)}")
            self._write(stage, found)

    def _write(self, stage: str, found: list[tuple[int, BadSample]]) -> None:
        if self.path is None:
            return
        try:
            for number, record in found:
                append_bad_samples(self.path, [record], stage=stage, dataloader_idx=number)
        except OSError as error:  # a full disk is no reason to end the training
            rank_zero_warn(f"the bad samples of {stage} were not written to {self.path}: {error}")

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look which loaders there are."""
        self._begin("train", trainer.train_dataloader)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Look which passes there are."""
        self._look("train")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        self._end(trainer, pl_module, "train")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look which loaders there are."""
        self._begin("val", trainer.val_dataloaders)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Look which passes there are."""
        self._look("val")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        self._end(trainer, pl_module, "val")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look which loaders there are."""
        self._begin("test", trainer.test_dataloaders)

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Look which passes there are."""
        self._look("test")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        self._end(trainer, pl_module, "test")

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look which loaders there are."""
        self._begin("predict", trainer.predict_dataloaders)

    def on_predict_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Look which passes there are."""
        self._look("predict")

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        self._end(trainer, pl_module, "predict")


def _ours(loaders: Any) -> Iterator[DataLoader[Any]]:
    """Yield the loaders of ours in what a trainer iterates: a loader, or a collection of them."""
    if isinstance(loaders, DataLoader):
        yield loaders
    elif isinstance(loaders, CombinedLoader):
        yield from _ours(loaders.iterables)
    elif isinstance(loaders, Mapping):
        for value in loaders.values():
            yield from _ours(value)
    elif isinstance(loaders, (list, tuple)):
        for value in loaders:
            yield from _ours(value)
