"""A callback that sets new class weights on the training sampler after each epoch, such as `recall_weights`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn

from lit_loader.annotations import AnnotationTable, image_weights
from lit_loader.callbacks.attached import table_datamodule
from lit_loader.datamodules import TableDataModule, expected_class_mix
from lit_loader.datamodules.sampling import Reduce
from lit_loader.loader.arguments import check_choice
from lit_loader.samplers import GroupedSampler, MixedSourceSampler, WeightedRandomSampler

__all__ = ["ClassWeights", "ReweightClasses", "recall_weights"]

ClassWeights: TypeAlias = Callable[[Trainer, LightningModule], Sequence[float] | npt.NDArray[Any] | torch.Tensor | None]
"""A function that returns new class weights after an epoch, or None to keep the current ones."""


class _Target(NamedTuple):
    """A training table, the sampler that draws from it, and the sampler's initial weights."""

    table: AnnotationTable
    sampler: WeightedRandomSampler
    initial_weights: torch.Tensor


# For samplers whose weights this callback has set: the initial weights, and the revision after the callback's change.
# Another revision means that the user has set new weights since, which then count as the initial ones.
_initial_weights: WeakKeyDictionary[WeightedRandomSampler, tuple[torch.Tensor, int]] = WeakKeyDictionary()


class ReweightClasses(Callback):
    """Computes class weights after each training epoch, and sets them on the training sampler for the next one.

    The weights are computed after the epoch's last validation, before checkpoints are saved there; without a
    validation, at the end of the training epoch. `lit_loader.annotations.image_weights` turns them into weights of the
    images of the training table. Checkpoints contain the weights, so a resumed run draws with them from its first batch
    on. After a run the sampler keeps them, for checkpoints that are saved then. The next run with this callback starts
    with the sampler's initial weights; for a run without it, create a new data module or call ``set_weights``. The
    expected share of each class among the labels of the next epoch is logged as ``data/class_mix/<name>``.

    The data module must be a `TableDataModule` whose training sampler is a `WeightedRandomSampler`, also with grouped
    batches, or a mix of several sources that draws from each of them with one. With ``Trainer(overfit_batches=...)``,
    Lightning draws in order and this callback has no effect.

    Args:
        class_weights: Function ``class_weights(trainer, pl_module)`` that returns one weight per class (or per value of
            ``balance_by``), finite, not negative and not all zero; None keeps the current weights. It is called on
            every rank, so it may gather values; the weights of rank 0 are used. See `recall_weights`.
        balance_by: Attribute whose values are weighted; None for the class.
        reduce: How the weights of an image's objects are combined to the weight of the image.
        empty_weight: Weight of an image without objects that count; None for the smallest weight of the others.

    Attributes:
        last_class_weights: List of the current class weights; None before the first.
    """

    def __init__(
        self,
        class_weights: ClassWeights,
        *,
        balance_by: str | None = None,
        reduce: Reduce = "mean",
        empty_weight: float | None = None,
    ) -> None:
        if not callable(class_weights):
            raise TypeError(
                f"class_weights must be a function of (trainer, pl_module), got {type(class_weights).__name__}; "
                "give constant weights to the sampler instead"
            )
        check_choice("reduce", reduce, Reduce)
        self.class_weights = class_weights
        self.balance_by = balance_by
        self.reduce = reduce
        self.empty_weight = empty_weight
        self.last_class_weights: list[float] | None = None
        self._last_epoch = -1  # epoch after which the weights were last computed
        self._targets: list[_Target] = []

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the current class weights, and the epoch after which they were computed."""
        return {"class_weights": self.last_class_weights, "epoch": self._last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the weights of a checkpoint, and set them on the sampler if a fit has been set up.

        Raises:
            ValueError: If they do not fit the training table.
        """
        self.last_class_weights = state_dict["class_weights"]
        self._last_epoch = state_dict["epoch"]
        self._set_weights()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_targets": []}  # `setup` sets them again

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the samplers for a fit; in other stages, the weights of a checkpoint have no effect.

        Raises:
            ValueError: If no sampler has weights to set, or the table lacks the attribute ``balance_by``.
        """
        self._targets = []
        if stage != "fit":
            return
        self._targets = _find_targets(trainer)
        self._targets[0].table.labels_of(self.balance_by)  # raises for an unknown attribute
        # A new run. Lightning loads the state of a resumed run after this hook.
        if trainer.current_epoch == 0:
            self.last_class_weights = None
            self._last_epoch = -1
        # Also without weights: the sampler may still have those that an earlier run has set.
        self._set_weights()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if training uses another sampler."""
        loaders = CombinedLoader(trainer.train_dataloader, "sequential").flattened
        samplers = [getattr(loader, "sampler", None) for loader in loaders]
        drawing = [inner for sampler in samplers for inner in _inner_samplers(sampler)]
        if all(any(target.sampler is inner for inner in drawing) for target in self._targets):
            return
        names = ", ".join(type(sampler).__name__ for sampler in samplers)
        rank_zero_warn(
            f"{type(self).__name__} has no effect: expected training to draw with the data module's sampler, got "
            f"{names}; is Trainer(overfit_batches=...) set?"
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the weights after the last validation of an epoch."""
        # After the last validation of an epoch, because checkpoints are saved in this hook and have to include the new
        # weights; validations before the end of the epoch (`val_check_interval`) change nothing.
        is_fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if is_fitting and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._update(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the weights if no validation ended the epoch.

        Raises:
            ValueError: If the weights do not fit the table, or leave nothing to draw.
        """
        self._update(trainer, pl_module)

    # -- weights --------------------------------------------------------------------------------------------

    def _update(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A validation at the end of the epoch has updated them already.
        if self._last_epoch == trainer.current_epoch:
            return
        new_weights = self.class_weights(trainer, pl_module)
        values = None if new_weights is None else torch.as_tensor(new_weights, dtype=torch.float64).tolist()
        # Ranks must draw with the same weights, and metrics may differ between them in the last bits.
        weights = trainer.strategy.broadcast(values)
        self._last_epoch = trainer.current_epoch
        if weights is None or not self._targets:
            return
        self.last_class_weights = weights
        self._set_weights()
        tables = [target.table for target in self._targets]
        # The sampler of the data module draws from all tables, as the sampler of a table alone does not.
        datamodule, sampler = _training_set(trainer)
        counting: dict[str, Any] = {"distinct": datamodule.counts_images, "mixing": datamodule.mixing}
        # Shares of a mix may change by epoch, and the new weights apply from the next one on.
        epoch = trainer.current_epoch + 1
        mix = None
        if trainer.loggers:
            mix = expected_class_mix(tables, sampler, by=self.balance_by, epoch=epoch, **counting)
        if mix is not None:
            names = [f"data/class_mix/{name}" for name in tables[0].labels_of(self.balance_by)[1]]
            shares = dict(zip(names, mix.tolist(), strict=True))
            # Not `pl_module.log`, which Lightning refuses at the end of a validation.
            for logger in trainer.loggers:
                logger.log_metrics(shares, step=trainer.global_step)

    def _set_weights(self) -> None:
        for table, sampler, initial_weights in self._targets:
            weights: torch.Tensor | npt.NDArray[np.float64] = initial_weights
            if self.last_class_weights is not None:
                settings: dict[str, Any] = {"reduce": self.reduce, "empty_weight": self.empty_weight}
                weights = image_weights(table, self.last_class_weights, by=self.balance_by, **settings)
            sampler.set_weights(weights)
            _initial_weights[sampler] = initial_weights, sampler.revision


def _inner_samplers(sampler: Any) -> list[Any]:
    """Return the samplers of single sets in a sampler, in the order of the sets."""
    if isinstance(sampler, MixedSourceSampler):
        return list(sampler.sources)
    return [sampler.sampler if isinstance(sampler, GroupedSampler) else sampler]


def _training_set(trainer: Trainer) -> tuple[TableDataModule, Any]:
    """Return the data module of a trainer, and its training sampler."""
    remedy = "give `Trainer.fit` one, or call set_weights of your own sampler"
    datamodule = table_datamodule(trainer, "ReweightClasses", remedy=remedy)
    sets = datamodule._open("train")
    return datamodule, sets[0][1] if len(sets) == 1 else None


def _find_targets(trainer: Trainer) -> list[_Target]:
    """Return the training tables and their weighted samplers.

    Raises:
        ValueError: If training draws with another kind of sampler, or from several sets that are not joined.
    """
    datamodule, sampler = _training_set(trainer)
    samplers = _inner_samplers(sampler)
    other_names = [type(inner).__name__ for inner in samplers if not isinstance(inner, WeightedRandomSampler)]
    if other_names:
        draws_from = f"{len(datamodule.tables('train'))} training sets" if sampler is None else f"a {other_names[0]}"
        raise ValueError(
            f"ReweightClasses expected {type(datamodule).__name__} to draw with one WeightedRandomSampler, got "
            f"{draws_from}; give it train_sampler=WeightedSamplerConfig(), in Hydra sampler=weighted"
        )
    if any(inner.schedules for inner in samplers):
        raise ValueError(
            "ReweightClasses sets the weights of every epoch, and would replace the schedule of the training sampler; "
            "give WeightedSamplerConfig a constant exponent, in Hydra sampler.exponent=1.0, or "
            "leave the callback out"
        )
    targets = []
    for table, inner in zip(datamodule.tables("train"), samplers, strict=True):
        if table.num_images != inner.num_indices:
            rule = f"expected a weight for each of the {table.num_images} samples of the training table"
            raise ValueError(f"{rule}, got {inner.num_indices} weights; give the sampler one weight per sample")
        initial_weights, revision = _initial_weights.get(inner, (inner.weights, inner.revision))
        if revision != inner.revision:
            initial_weights = inner.weights
        targets.append(_Target(table, inner, initial_weights))
    return targets


def recall_weights(confusion: npt.ArrayLike | torch.Tensor, *, floor: float = 0.1) -> npt.NDArray[np.float64]:
    """Return class weights that are larger for classes with lower recall.

    ``w_c = (1 - r_c + floor) / mean``, with ``r_c = confusion[c, c] / confusion[c].sum()`` and the mean over classes
    with samples. A class without samples (an empty row) gets weight 1. So the mean weight is 1, and the weights of two
    classes differ by at most the factor ``(1 + floor) / floor``, 11 by default.

    Args:
        confusion: Counts or shares ``(num_classes, num_classes)``, finite and not negative, one row per true class, as
            in scikit-learn and torchmetrics.
        floor: Number above 0, which keeps classes with a recall of 1 in the draws. A smaller floor makes the weights
            differ more.

    Returns:
        float64 ``(num_classes,)``, all above 0.

    Raises:
        ValueError: If the matrix is not square, an entry is negative or not finite, or the floor is not above 0.
    """
    counts = torch.as_tensor(confusion, dtype=torch.float64).numpy(force=True)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise ValueError(f"confusion must be square, got {counts.shape}; leave a background class out")
    invalid = np.argwhere(~(np.isfinite(counts) & (counts >= 0)))
    if len(invalid):
        row, column = invalid[0].tolist()
        raise ValueError(
            f"confusion must be finite and not negative, got confusion[{row}, {column}]={counts[row, column]}; "
            "give counts, or shares of the total (a matrix normalised by row has NaN for a class without samples)"
        )
    if not 0 < floor < np.inf:
        raise ValueError(f"floor={floor} must be above 0 and finite; at 0 a class with a recall of 1 is never drawn")
    totals = counts.sum(axis=1)
    has_samples = totals > 0
    # Before the first validation: numpy's mean of nothing would be NaN, with a warning.
    if not has_samples.any():
        return np.ones(len(counts))
    weights = 1.0 - np.diagonal(counts) / np.where(has_samples, totals, 1.0) + floor
    return np.where(has_samples, weights / weights.mean(where=has_samples), 1.0)
