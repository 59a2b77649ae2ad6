"""Callbacks that measure training: the classes that batches bring, and the time that it waits for data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_loader.collate import ClassificationBatch
from lit_loader.collate.batches import masked_labels
from lit_loader.datamodules import TableDataModule
from lit_loader.datamodules.resuming import train_loaders
from lit_loader.types import FIRST_LABEL

__all__ = ["ClassMix", "ClassMixMonitor", "DataWaitMonitor"]

Shares = npt.NDArray[np.float64]


class EpochCount:
    """Counts of labels on the device that batches are on: to read them in each step would wait for its work.

    Args:
        num_classes: Labels are 0 to ``num_classes - 1``; others are noticed by `check`.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._counts: Tensor | None = None
        self._range: Tensor | None = None  # minus the smallest label, and the largest one

    def add(self, labels: Tensor, mask: Tensor | None) -> None:
        """Count labels.

        Args:
            labels: int64, any shape.
            mask: bool, of the same shape, True where a label counts, or None if all do.
        """
        if labels.numel() == 0:
            return
        last = self._num_classes
        places = labels.long().clamp(-1, last).flatten()
        # Labels that do not count, and those out of range, are in the last place, which is not read.
        places = torch.where(places < 0, last, places)
        if mask is not None:
            labels = torch.where(mask, labels, 0)
            places = torch.where(mask.flatten(), places, last)
        counts = torch.zeros(last + 1, dtype=torch.int64, device=labels.device)
        counts.index_add_(0, places, torch.ones_like(places))
        label_range = torch.stack([-labels.min(), labels.max()])
        self._counts = counts if self._counts is None else self._counts + counts
        self._range = label_range if self._range is None else torch.maximum(self._range, label_range)

    def read(self) -> npt.NDArray[np.int64]:
        """Return how often each class came, int64 ``(num_classes,)``."""
        if self._counts is None:
            return np.zeros(self._num_classes, dtype=np.int64)
        counts: npt.NDArray[np.int64] = self._counts[:-1].cpu().numpy()
        return counts

    def check(self, first_label: int) -> None:
        """Refuse labels of no class.

        Args:
            first_label: What batches have for label 0, for the message.

        Raises:
            ValueError: If there were any.
        """
        if self._range is None:
            return
        below, highest = self._range.tolist()
        if below > 0:
            raise ValueError(f"a batch holds label {first_label - below}, below first_label={first_label}.")
        if highest >= self._num_classes:
            raise ValueError(
                f"a batch holds class {highest}, counted from 0, and there are {self._num_classes} class_names; give "
                "all names, and first_label as the data module has it"
            )


@dataclass(eq=False)
class ClassMix:
    """How often each class, or each value of an attribute, came in training.

    Attributes:
        label: ``"class"``, or the attribute's name.
        class_names: Names of the classes, or of the attribute's values.
        natural: float64 ``(num_classes,)``, the share of each in the training set, or None if it is not known.
        expected: float64 ``(num_classes,)``, the share that the sampler delivers in the mean, with the weights that it
            has at the start of training; or None if it is not known.
        epoch_count: This rank's count of the current epoch.
    """

    label: str
    class_names: tuple[str, ...]
    natural: Shares | None = None
    expected: Shares | None = None
    _past: npt.NDArray[np.int64] = field(init=False)
    epoch_count: EpochCount = field(init=False)

    def __post_init__(self) -> None:
        self._past = np.zeros(len(self.class_names), dtype=np.int64)
        self.epoch_count = EpochCount(len(self.class_names))

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """int64 ``(num_classes,)``, how often each came.

        Of all ranks in the epochs that have ended, and of this rank in the current one. To read it waits for the
        device.
        """
        return self._past + self.epoch_count.read()

    def end_epoch(self, counts: npt.NDArray[np.int64]) -> None:
        """Add an epoch's counts, and begin to count another one."""
        self._past += counts
        self.epoch_count = EpochCount(len(self.class_names))

    @property
    def arrived(self) -> Shares:
        """float64 ``(num_classes,)``, the share of each among the labels counted; zeros before the first."""
        return _shares(self.counts)


class ClassMixMonitor(Callback):
    """Counts the labels of each class in the training batches of all ranks, whatever kind of batch they are.

    Without arguments it counts what the trainer's data module has: its classes (or the attribute that labels samples),
    and the values of every attribute that batches hold. Batches are ``(images, targets)``, `LandmarkBatch`,
    `ClassificationBatch` or `MultiTaskBatch`. Ranks add their counts when an epoch ends.

    Gives the loggers, at the end of each training epoch, the shares of this epoch: ``data/mix/NAME`` for classes and
    ``data/mix/ATTRIBUTE/VALUE`` for attributes.

    Args:
        class_names: For loaders without a data module of lit_loader: names of the classes, or of the values of
            ``label``. None for those of the data module.
        first_label: Label of the first class in batches of detection and of several tasks, where ``class_names`` is
            given; attributes and the other batches count from 0.
        label: The attribute to count where ``class_names`` is given, or None for the class, or for what a
            `ClassificationBatch` is labelled by.

    Attributes:
        mixes: What was counted, by ``"class"`` or the attribute's name; empty until training starts if it follows the
            data module.

    Raises:
        ValueError: If ``label`` is given without ``class_names``; at the start of training, if there is no data module
            of lit_loader and no ``class_names``.
    """

    def __init__(
        self,
        class_names: Sequence[str] | None = None,
        *,
        first_label: int = FIRST_LABEL,
        label: str | None = None,
    ) -> None:
        if class_names is None and (label is not None or first_label != FIRST_LABEL):
            raise ValueError(
                f"label={label!r} and first_label={first_label} have no effect without class_names; give them too, or "
                "leave all out to count what the data module has"
            )
        if isinstance(class_names, str):
            raise TypeError(f"class_names={class_names!r} must be a list of names")
        self._follows_datamodule, self._first_label = class_names is None, first_label
        self.mixes: dict[str, ClassMix] = {}
        self._labels: dict[str, str | None] = {}  # of each mix the argument of `batch_labels`
        if class_names is not None:
            self._set([ClassMix(label or "class", tuple(class_names))], {label or "class": label})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find out what there is to count.

        Raises:
            ValueError: If the trainer has no data module of lit_loader, and no ``class_names`` were given.
        """
        if stage != "fit" or not self._follows_datamodule:
            return
        datamodule: Any = getattr(trainer, "datamodule", None)
        if not isinstance(datamodule, TableDataModule):
            found = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
            raise ValueError(
                f"ClassMixMonitor takes the names of classes from a data module of lit_loader, and the trainer has "
                f"{found}; give class_names=[...], or leave the callback out"
            )
        self._first_label = getattr(datamodule, "first_label", FIRST_LABEL)
        if not (summaries := datamodule.summaries(["train"])):
            return  # the data module says that there is nothing to train on
        labelled, *others = summaries
        held = [each for each in others if each.label in datamodule.attributes]
        mixes = [
            ClassMix(each.label, each.class_names, each.natural_mix, each.expected_mix)
            for each in (labelled, *held)
        ]
        # a second fit on the same data goes on counting
        if [(mix.label, mix.class_names) for mix in mixes] != [
            (m.label, m.class_names) for m in self.mixes.values()
        ]:
            self._set(mixes, {labelled.label: None} | {each.label: each.label for each in held})

    def _set(self, mixes: Sequence[ClassMix], labels: Mapping[str, str | None]) -> None:
        self.mixes, self._labels = {mix.label: mix for mix in mixes}, dict(labels)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch; what an epoch that was broken off has counted stays this rank's."""
        for mix in self.mixes.values():
            mix.end_epoch(mix.epoch_count.read())

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, on the device that it is on.

        Raises:
            TypeError: If targets come as columns, or the batch has no attributes.
            ValueError: If the attribute is missing, or a label of a batch on the CPU lies outside ``class_names``.
        """
        for name, mix in self.mixes.items():
            labels, mask = masked_labels(batch, label=self._labels[name], first_label=self._first_label)
            mix.epoch_count.add(labels, mask)
            if labels.device.type == "cpu":
                mix.epoch_count.check(self._first_label)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch's counts of all ranks, and give its shares to the loggers.

        Raises:
            ValueError: If a label of a batch on a device lay outside ``class_names``.
        """
        for mix in self.mixes.values():
            mix.epoch_count.check(self._first_label)
        rank_counts = [mix.epoch_count.read() for mix in self.mixes.values()]
        own = torch.tensor(np.concatenate(rank_counts), device=pl_module.device)
        total = trainer.strategy.reduce(own, reduce_op="sum").cpu().numpy()
        shares: dict[str, float] = {}
        for name, mix in self.mixes.items():
            of_all, total = np.split(total, [len(mix.class_names)])
            mix.end_epoch(of_all)
            prefix = "data/mix" if self._labels[name] is None else f"data/mix/{name}"
            values = _shares(of_all).tolist()
            shares |= {
                f"{prefix}/{value}": share for value, share in zip(mix.class_names, values, strict=True)
            }
        for logger in trainer.loggers:
            logger.log_metrics(shares, step=trainer.global_step)


def _shares(counts: npt.NDArray[np.int64]) -> Shares:
    shares: Shares = counts / max(1, int(counts.sum()))
    return shares


class DataWaitMonitor(Callback):
    """Sums the time that training waits for its loaders' workers, or while they make batches without workers.

    Copies to the device, other callbacks and waiting for the device count as training. Validation and what runs between
    epochs do not count. If no training loader is lit_loader's, all time between training steps counts as waiting.

    Attributes:
        wait_s: Seconds waited so far.
        step_s: Other seconds of the training loop so far.
        num_batches: Training batches so far.
        num_images: Images in them, or crops; 0 for batches of another kind than lit_loader's.

    Logs at the epoch's end ``data/wait_fraction``, the share of the epoch's loop time that was spent waiting, the mean
    of all ranks, and ``data/images_per_s``, images a second of loop time, of all ranks together. The attributes are
    this rank's.
    """

    def __init__(self) -> None:
        self.wait_s = self.step_s = 0.0
        self.num_batches = self.num_images = 0
        self._mark = 0.0
        self._loaders_wait_s = 0.0
        self._epoch_start = (0.0, 0.0, 0)

    @property
    def wait_fraction(self) -> float:
        """Share of the loop's time that was spent waiting, over the whole fit."""
        return self.wait_s / max(self.wait_s + self.step_s, 1e-9)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the wait for the first batch of a fit that is resumed in an epoch, whose start is not called again."""
        self._set_mark(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the wait for the first batch."""
        self._epoch_start = (self.wait_s, self.step_s, self.num_images)
        self._set_mark(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        """End the wait for the batch."""
        self._add_time(trainer, is_between_steps=True)
        if isinstance(batch, tuple | ClassificationBatch):
            self.num_images += len(batch[0] if isinstance(batch, tuple) else batch.images)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the step and begin the wait for the next batch."""
        self._add_time(trainer, is_between_steps=False)
        self.num_batches += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave a validation inside the epoch out."""
        self._set_mark(trainer)

    def _set_mark(self, trainer: Trainer) -> None:
        self._mark = time.perf_counter()
        self._loaders_wait_s = sum(loader.wait_s for loader in train_loaders(trainer))

    def _add_time(self, trainer: Trainer, *, is_between_steps: bool) -> None:
        """Add the time since the last mark."""
        mark = self._mark
        wait_s = self._loaders_wait_s
        self._set_mark(trainer)
        elapsed_s = self._mark - mark
        waited_s = elapsed_s if is_between_steps else 0.0
        if train_loaders(trainer):
            waited_s = self._loaders_wait_s - wait_s
        self.wait_s += waited_s
        self.step_s += elapsed_s - waited_s

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's share."""
        wait, step = self.wait_s - self._epoch_start[0], self.step_s - self._epoch_start[1]
        images, seconds = self.num_images - self._epoch_start[2], max(wait + step, 1e-9)
        pl_module.log("data/wait_fraction", wait / seconds, sync_dist=True)
        if images:
            pl_module.log("data/images_per_s", images / seconds, sync_dist=True, reduce_fx="sum")
