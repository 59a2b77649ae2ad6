"""A callback that counts the classes in training batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_loader.callbacks.attached import table_datamodule
from lit_loader.collate.batches import counted_labels
from lit_loader.datamodules import TableDataModule, expected_class_mix
from lit_loader.types import FIRST_LABEL

__all__ = ["ClassMix", "ClassMixMonitor"]

Shares = npt.NDArray[np.float64]


@dataclass(eq=False)
class ClassMix:
    """Shares of the classes, or of the values of an attribute, in training batches.

    Attributes:
        label: ``"class"``, or the name of the attribute.
        class_names: Names of the classes, or of the attribute's values.
        natural: float64 ``(num_classes,)``, share of each class in the training set; None if unknown.
        expected: float64 ``(num_classes,)``, expected share of each class among sampled labels, with the sampler's
            weights at the start of training; None if unknown. If the sampler has schedules, it is the mean over the
            epochs that have ended, by their numbers of labels.
        attribute: Attribute that is counted; None for the class, or for the labels of samples.
        expected_in: Takes an epoch and returns its expected shares, for a sampler with schedules; otherwise None.
    """

    label: str
    class_names: tuple[str, ...]
    natural: Shares | None = None
    expected: Shares | None = None
    attribute: str | None = None
    expected_in: Callable[[int], Shares | None] | None = None
    _past: npt.NDArray[np.int64] = field(init=False)
    _expected_labels: Shares = field(init=False)
    # This rank's current epoch: counts, with a bin below and one above the classes; negated smallest and largest class.
    # They stay on the device of the batches, because reading them would wait for it.
    _epoch: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._past = np.zeros(len(self.class_names), dtype=np.int64)
        self._expected_labels = np.zeros(len(self.class_names))

    def add(self, classes: Tensor, num_labels: Tensor | None) -> None:
        """Count the labels of a batch.

        Args:
            classes: int64, any shape, 0 for the first class; `check` refuses values that are not classes.
            num_labels: How often each counts, int64 or bool of the same shape; None for once.
        """
        if classes.numel() == 0:
            return
        classes = classes.long().flatten()
        weights = torch.ones_like(classes) if num_labels is None else num_labels.long().flatten()
        classes = torch.where(weights > 0, classes, 0)
        counts = classes.new_zeros(len(self.class_names) + 2)
        # Clamped, since an index out of range would end the CUDA context. Not `bincount`, which waits for the device.
        counts.index_add_(0, classes.clamp(-1, len(self.class_names)) + 1, weights)
        extremes = torch.stack([-classes.min(), classes.max()])
        if self._epoch is not None:
            counts += self._epoch[0]
            extremes = torch.maximum(extremes, self._epoch[1])
        self._epoch = counts, extremes

    def check(self, first_label: int) -> None:
        """Check that all labels of the current epoch are classes, which waits for the device.

        Args:
            first_label: Label of the first class in batches, for the message.

        Raises:
            ValueError: If a label is not.
        """
        if self._epoch is None:
            return
        negated_lowest, highest = self._epoch[1].tolist()
        if negated_lowest > 0:
            label = first_label - negated_lowest
            raise ValueError(f"got label {label}, below first_label={first_label}; give the data module's first_label")
        if highest >= len(self.class_names):
            count = len(self.class_names)
            rule = f"expected classes below {count} in a batch, for {count} class_names"
            raise ValueError(f"{rule}, got class {highest}; give all names, and the data module's first_label")

    @property
    def epoch_counts(self) -> npt.NDArray[np.int64]:
        """Number of labels per class in the current epoch of this rank. Reading it waits for the device."""
        if self._epoch is None:
            return np.zeros_like(self._past)
        counts: npt.NDArray[np.int64] = self._epoch[0][1:-1].cpu().numpy()
        return counts

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of labels per class, int64 ``(num_classes,)``.

        Includes past epochs of all ranks, and the current epoch of this rank. Reading it waits for the device.
        """
        return self._past + self.epoch_counts

    def end_epoch(self, counts: npt.NDArray[np.int64], epoch: int) -> None:
        """Add the counts of an epoch, and start the next one.

        Args:
            counts: int64 ``(num_classes,)``.
            epoch: The epoch, from 0.
        """
        self._past += counts
        self._epoch = None
        shares = None if self.expected_in is None else self.expected_in(epoch)
        if shares is not None and counts.any():
            self._expected_labels += int(counts.sum()) * shares
            self.expected = self._expected_labels / self._expected_labels.sum()

    @property
    def arrived(self) -> Shares:
        """Share of each class among all counted labels, float64 ``(num_classes,)``; zeros before the first label."""
        return _shares(self.counts)


class ClassMixMonitor(Callback):
    """Counts the labels of each class in the training batches of all ranks.

    By default it counts the classes of the trainer's data module (or the values of the attribute that labels samples),
    and the values of every attribute in its batches. Batches are ``(images, targets)``, `LandmarkBatch`,
    `ClassificationBatch` or `MultiTaskBatch`. In a mixed batch a class counts by its proportions, so that each image
    counts once in all. Ranks add up their counts at the end of an epoch.

    Logs the shares of each training epoch as ``data/mix/NAME`` for classes and ``data/mix/ATTRIBUTE/VALUE`` for
    attributes.

    Args:
        class_names: Names of the classes, or of the values of ``label``, for loaders without a data module of
            lit_loader. None for the names of the data module.
        first_label: Label of the first class in detection and multi-task batches, if ``class_names`` is given.
            Attributes and other batches count from 0.
        label: Attribute to count, if ``class_names`` is given; None for the class, or for the labels of a
            `ClassificationBatch`.

    Attributes:
        mixes: One `ClassMix` for ``"class"`` and for each attribute, by name. Without ``class_names`` it is empty until
            training starts.

    Raises:
        ValueError: If ``label`` is given without ``class_names``; at the start of training, if there is neither a data
            module of lit_loader nor ``class_names``.
    """

    def __init__(
        self, class_names: Sequence[str] | None = None, *, first_label: int = FIRST_LABEL, label: str | None = None
    ) -> None:
        # Both describe the given names; a data module has its own first label and attributes.
        if class_names is None and (label is not None or first_label != FIRST_LABEL):
            settings = f"label={label!r} and first_label={first_label}"
            raise ValueError(f"{settings} have no effect without class_names; give class_names, or leave them out")
        if isinstance(class_names, str):
            raise TypeError(f"class_names={class_names!r} must be a list of names")
        self._uses_datamodule = class_names is None
        self._first_label = first_label
        self.mixes: dict[str, ClassMix] = {}
        if class_names is not None:
            name = label or "class"
            self.mixes = {name: ClassMix(name, tuple(class_names), attribute=label)}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read the classes and attributes to count from the data module.

        Raises:
            ValueError: If the trainer has no data module of lit_loader, and no ``class_names`` were given.
        """
        if stage != "fit" or not self._uses_datamodule:
            return
        remedy = "give class_names=[...], or leave the callback out"
        datamodule = table_datamodule(trainer, "ClassMixMonitor", remedy=remedy)
        self._first_label = getattr(datamodule, "first_label", FIRST_LABEL)
        mixes: dict[str, ClassMix] = {}
        # Several training sets also have summaries under other names. Without a training set the list is empty, which
        # Lightning reports.
        summaries = [summary for summary in datamodule.summaries(["train"]) if summary.name == "train"]
        # The first summary is of the labels of samples.
        for index, summary in enumerate(summaries):
            if index == 0 or summary.label in datamodule.attributes:
                attribute = None if index == 0 else summary.label
                shares = (summary.natural_mix, summary.expected_mix)
                mix = ClassMix(summary.label, summary.class_names, *shares, attribute)
                if summary.mix_by_epoch:
                    mix.expected_in = partial(_expected_train_mix, datamodule, summary.label)
                mixes[summary.label] = mix
        # A second fit on the same data continues the counts of the first one.
        names = {label: mix.class_names for label, mix in mixes.items()}
        if names != {label: mix.class_names for label, mix in self.mixes.items()}:
            self.mixes = mixes

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch. Counts of an interrupted epoch are kept for this rank only."""
        for mix in self.mixes.values():
            mix.end_epoch(mix.epoch_counts, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the labels of a batch on its device.

        Raises:
            TypeError: If targets are columns, or the batch has no attributes.
            ValueError: If the batch lacks the attribute, or a label of a batch on the CPU has no class name.
        """
        for mix in self.mixes.values():
            labels, counts = counted_labels(batch, label=mix.attribute, first_label=self._first_label)
            mix.add(labels, counts)
            # On another device, reading the labels would wait for it; those are checked when the epoch ends.
            if labels.device.type == "cpu":
                mix.check(self._first_label)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add up the counts of all ranks, and log the shares of the epoch.

        Raises:
            ValueError: If a label has no class name.
        """
        for mix in self.mixes.values():
            mix.check(self._first_label)
        rank_counts = [mix.epoch_counts for mix in self.mixes.values()]
        # One reduction for all mixes: their counts in one vector.
        flat_counts = torch.tensor(np.concatenate(rank_counts), device=pl_module.device)
        remaining = trainer.strategy.reduce(flat_counts, reduce_op="sum").cpu().numpy()
        shares: dict[str, float] = {}
        for mix in self.mixes.values():
            counts, remaining = np.split(remaining, [len(mix.class_names)])
            mix.end_epoch(counts, trainer.current_epoch)
            prefix = "data/mix" if mix.attribute is None else f"data/mix/{mix.attribute}"
            names = [f"{prefix}/{class_name}" for class_name in mix.class_names]
            shares |= zip(names, _shares(counts).tolist(), strict=True)
        # Not `pl_module.log`, which does not know that all ranks have the same shares already.
        for logger in trainer.loggers:
            logger.log_metrics(shares, step=trainer.global_step)


def _expected_train_mix(datamodule: TableDataModule, label: str, epoch: int) -> Shares | None:
    """Return the expected shares of a data module's training set in an epoch."""
    attribute = None if label == "class" else label
    sampler = datamodule._open("train")[0][1]
    assert sampler is not None  # training always has one
    counting: dict[str, Any] = {"by": attribute, "distinct": datamodule.counts_images, "mixing": datamodule.mixing}
    return expected_class_mix(datamodule.tables("train"), sampler, epoch=epoch, **counting)


def _shares(counts: npt.NDArray[np.int64]) -> Shares:
    shares: Shares = counts / max(1, int(counts.sum()))
    return shares
