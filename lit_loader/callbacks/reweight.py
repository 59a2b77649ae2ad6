"""New class weights for the training sampler after each epoch, such as those of `recall_weights`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_loader.annotations import AnnotationTable, image_weights
from lit_loader.datamodules import TableDataModule, expected_class_mix
from lit_loader.datamodules.sampling import Reduce
from lit_loader.loader.arguments import check_choice
from lit_loader.samplers import GroupedSampler, WeightedRandomSampler

__all__ = ["ClassWeights", "ReweightClasses", "recall_weights"]

ClassWeights: TypeAlias = Callable[
    [Trainer, LightningModule], Sequence[float] | npt.NDArray[Any] | torch.Tensor | None
]
"""Returns the weights of the classes after an epoch, or None to leave them."""


class _Target(NamedTuple):
    """The training set's table, the sampler that draws from it, and the sampler's own weights."""

    table: AnnotationTable
    sampler: WeightedRandomSampler
    own: torch.Tensor


# Of samplers that draw by weights set here: their own, and the revision that we set.
_own_weights: WeakKeyDictionary[WeightedRandomSampler, tuple[torch.Tensor, int]] = WeakKeyDictionary()


class ReweightClasses(Callback):
    """Asks for class weights after each training epoch and sets them on the training sampler for the next.

    The epoch's last validation has run by then: it asks when that validation ends, before a checkpoint is written
    there, and without one at the end of the training epoch. They become weights of images by
    `lit_loader.annotations.image_weights` over the training table. The weights are in the checkpoint: a
    run that is resumed draws by them from its first batch on. They stay when the run ends, so that a checkpoint saved
    then fits too; the next run with this callback begins with the sampler's own. For one without it make a new data
    module, or call ``set_weights``. Where the trainer has loggers, the share that each class is expected to have among
    the labels of the next epoch goes to them as ``data/class_mix/<name>``.

    The data module must be a `TableDataModule` whose training sampler is a `WeightedRandomSampler`, alone or in
    batches of like shape. With ``Trainer(overfit_batches=...)`` Lightning draws in order, and this has no effect.

    Args:
        class_weights: ``class_weights(trainer, pl_module)`` returns one weight a class (or value of ``balance_by``),
            finite, not negative, not all zero; None leaves them as they are. It is called on every rank, so that it may
            gather what they hold; rank zero's weights are set on all of them. See `recall_weights`.
        balance_by: The attribute whose values are weighted, or None for the class.
        reduce: How the weights of an image's objects become the image's.
        empty_weight: Weight of an image without objects that count, or None for the smallest of the others.

    Attributes:
        last_class_weights: The weights set last, a list, or None before the first.
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
                f"`class_weights` must be a function of (trainer, pl_module), got {type(class_weights).__name__}; "
                "weights that do not change belong to the sampler"
            )
        check_choice("reduce", reduce, Reduce)
        self.class_weights, self.balance_by = class_weights, balance_by
        self.reduce, self.empty_weight = reduce, empty_weight
        self.last_class_weights: list[float] | None = None
        self._last_epoch = -1  # the epoch after which they were asked for
        self._target: _Target | None = None

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the weights in force, and the epoch after which they were set."""
        return {"class_weights": self.last_class_weights, "epoch": self._last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the weights of a checkpoint, and set them if the sampler is known, as it is in a trainer.

        Raises:
            ValueError: If they do not fit the training table.
        """
        self.last_class_weights, self._last_epoch = state_dict["class_weights"], state_dict["epoch"]
        self._set_weights()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_target": None}  # found again where a trainer is

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the sampler of a fit; in other stages a checkpoint's weights change nothing.

        Raises:
            ValueError: There is none whose weights can be set, or the table has no attribute ``balance_by``.
        """
        self._target = None
        if stage != "fit":
            return
        self._target = _find_target(trainer)
        self._target.table.labels_of(self.balance_by)
        if trainer.current_epoch == 0:  # a new run; one that is resumed has its state loaded after this
            self.last_class_weights, self._last_epoch = None, -1
        self._set_weights()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if it is another sampler that training uses."""
        loaders = trainer.fit_loop._combined_loader
        used = [getattr(loader, "sampler", None) for loader in loaders.flattened] if loaders else []
        if self._target is not None and not any(_inner(sampler) is self._target.sampler for sampler in used):
            names = ", ".join(type(sampler).__name__ for sampler in used)
            rank_zero_warn(
                f"{type(self).__name__} has no effect: training draws by {names} in the place of the data module's "
                "sampler; is Trainer(overfit_batches=...) set?"
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask after the validation that ends an epoch."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fitting and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._ask(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask if no validation ended the epoch.

        Raises:
            ValueError: The weights do not fit the table, or leave nothing to draw.
        """
        self._ask(trainer, pl_module)

    # -- weights --------------------------------------------------------------------------------------------

    def _ask(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._last_epoch == trainer.current_epoch:
            return
        answer = self.class_weights(trainer, pl_module)
        values = None if answer is None else torch.as_tensor(answer, dtype=torch.float64).tolist()
        weights = trainer.strategy.broadcast(values)
        self._last_epoch = trainer.current_epoch
        if weights is not None:
            self.last_class_weights = weights
            self._set_weights()
            self._log_mix(trainer)

    def _set_weights(self) -> None:
        if self._target is None:
            return
        table, sampler, own = self._target
        options: Any = {"by": self.balance_by, "reduce": self.reduce, "empty_weight": self.empty_weight}
        given = self.last_class_weights
        sampler.set_weights(own if given is None else image_weights(table, given, **options))
        _own_weights[sampler] = own, sampler.revision  # for the next run

    def _log_mix(self, trainer: Trainer) -> None:
        if self._target is None or not trainer.loggers:
            return
        table, sampler, _ = self._target
        mix = expected_class_mix(table, sampler, by=self.balance_by)
        if mix is not None:
            names = [f"data/class_mix/{name}" for name in table.labels_of(self.balance_by)[1]]
            shares = dict(zip(names, mix.tolist(), strict=True))
            for logger in trainer.loggers:
                logger.log_metrics(shares, step=trainer.global_step)


def _inner(sampler: Any) -> Any:
    return sampler.sampler if isinstance(sampler, GroupedSampler) else sampler


def _find_target(trainer: Trainer) -> _Target:
    """Return the training table and its weighted sampler.

    Raises:
        ValueError: If there is no such sampler.
    """
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, TableDataModule):
        found = "no data module" if datamodule is None else f"the data module {type(datamodule).__name__}"
        raise ValueError(
            f"ReweightClasses needs the annotation table that training draws from, and the trainer has {found}; give "
            "`Trainer.fit` a data module of lit_loader, or call set_weights of your own sampler"
        )
    sets = datamodule._open("train")
    sampler = _inner(sets[0][1]) if len(sets) == 1 else None
    if not isinstance(sampler, WeightedRandomSampler):
        found = f"draws by {type(sampler).__name__}" if len(sets) == 1 else f"has {len(sets)} training sets"
        raise ValueError(
            f"ReweightClasses sets the weights of a WeightedRandomSampler, and {type(datamodule).__name__} {found}; "
            "give it train_sampler=WeightedSamplerConfig() (sampler=weighted in Hydra), or leave the callback out"
        )
    table = datamodule.tables("train")[0]
    if table.num_images != sampler.num_indices:
        raise ValueError(
            f"the training sampler has {sampler.num_indices} weights and the training table {table.num_images} "
            "samples; give the sampler one weight a sample"
        )
    own, revision = _own_weights.get(sampler, (None, -1))
    return _Target(table, sampler, sampler.weights if own is None or revision != sampler.revision else own)


def recall_weights(confusion: npt.ArrayLike | torch.Tensor, *, floor: float = 0.1) -> npt.NDArray[np.float64]:
    """Return a weight for each class that rises as its recall falls.

    ``w_c = (1 - r_c + floor) / mean``, with ``r_c = confusion[c, c] / confusion[c].sum()`` and the mean over the
    classes that were seen; a class that was not, an empty row, gets 1. So weights are 1 in the mean, and those of two
    classes differ by at most the factor ``(1 + floor) / floor``: 11 by default.

    Args:
        confusion: ``(num_classes, num_classes)`` counts or shares, finite and not negative, rows the true class, as
            scikit-learn and torchmetrics have it.
        floor: Above 0, so that a class with a recall of 1 is still drawn; the lower, the stronger the weights.

    Returns:
        float64 ``(num_classes,)``, each above 0.

    Raises:
        ValueError: If the matrix is not square, an entry is negative or not finite, or the floor is not above 0.
    """
    counts = torch.as_tensor(confusion, dtype=torch.float64).numpy(force=True)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise ValueError(
            f"`confusion` must have shape (num_classes, num_classes), got {counts.shape}; leave a background class out"
        )
    wrong = np.argwhere(~(np.isfinite(counts) & (counts >= 0)))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"`confusion` must be finite and not negative, got confusion[{row}, {column}]={counts[row, column]}; "
            "give counts, or shares of all rows together (a matrix normalised by row has NaN for a class not seen)"
        )
    if not 0 < floor < np.inf:
        raise ValueError(
            f"floor={floor} must be above 0 and finite; at 0 a class with a recall of 1 is never drawn"
        )
    totals = counts.sum(axis=1)
    seen = totals > 0
    lacking = 1.0 - np.diagonal(counts) / np.where(seen, totals, 1.0) + floor
    return np.where(seen, lacking / lacking.mean(where=seen), 1.0) if seen.any() else np.ones(len(counts))
