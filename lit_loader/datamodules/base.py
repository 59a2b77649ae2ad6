"""Base of all data modules: one factory makes the loaders of every stage, and their workers end with the run."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self, TypeAlias, get_args

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import Sampler

from lit_loader.datamodules.keywords import (
    arguments_of,
    as_settings,
    check_at_least,
    check_types,
    plain_arguments,
    unexpected_argument,
)
from lit_loader.datamodules.resuming import held_loaders, resume_callback
from lit_loader.datamodules.validation import close_after_validation
from lit_loader.datamodules.workers import NumWorkers, WorkerSettings, auto_num_workers
from lit_loader.datasets import Stage
from lit_loader.engine import OnBadSample, Resume
from lit_loader.loader import DataLoader
from lit_loader.loader.arguments import check_choice, check_policy
from lit_loader.seeding import key64
from lit_loader.types import CollateFn

__all__ = ["LoaderDataModule", "SplitData"]

SplitData: TypeAlias = tuple[Any, Sampler[int] | None]
"""A data set and its sampler, or None for the data set's order."""

STAGES: tuple[Stage, ...] = get_args(Stage)

# Lightning passes a TrainerFn to setup(), a str enum with these values.
RUN_STAGES: dict[str, tuple[Stage, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class LoaderDataModule(LightningDataModule):
    """Loaders for every stage from one factory.

    A subclass defines the data of a stage (`stage_data`) and, if needed, its collate function (`collate_fn`).

    Arguments with plain values are in `hparams` and so in checkpoints; ``load_from_checkpoint`` takes the others, such
    as sources, data sets, samplers and functions, as keywords. A subclass of your own adds its arguments with
    Lightning's ``save_hyperparameters("name", ...)``, and removes those that it decides itself with ``ignore=[...]``.

    Args:
        batch_size: Samples a batch on each rank, for every stage without its own batch size. Setting the attribute
            later changes the training loader too, as Lightning's ``BatchSizeFinder`` expects.
        train_batch_size: Batch size of training, or None for ``batch_size``.
        val_batch_size: Batch size of validation, or None for ``batch_size``.
        test_batch_size: Batch size of testing, or None for ``batch_size``.
        predict_batch_size: Batch size of prediction, or None for ``batch_size``.
        num_workers: Workers of each loader, or ``"auto"``; None for ``workers.num_workers``.
        workers: Worker settings, or a mapping of their fields, or None for the defaults.
        on_bad_sample: ``"raise"``, ``"skip"`` or ``"substitute"`` a sample that fails, in every stage; see
            `lit_loader.DataLoader`. In evaluation a skipped sample does not count, and a substitute counts twice.
        max_bad_samples: Maximum number of bad samples an epoch on each rank, or None for 100.
        drop_last: True to drop the last, partial training batch.
        check_repeatability: True to make the first samples twice and warn if they differ, see `DataLoader`.
        resume: Treatment of a checkpoint state that does not fit the training loader: ``"exact"`` refuses it; for
            ``"same_sample"`` and ``"restart"`` see `lit_loader.DataLoader`.
        seed: Seed of orders and augmentation, or None for the seed of ``seed_everything``, or 0 if that was not called.
        **unknown: Always refused; the error suggests the argument that was probably meant.

    Raises:
        ValueError: If a batch size or worker setting is out of range.
        TypeError: If an argument is unknown or has a wrong type.

    Determinism: every loader has a seed, so batches do not depend on the workers; see `lit_loader.DataLoader`. Each
        stage, and each set of a stage, has a different seed.
    Owns: the workers of the loaders it has made, and of the copies that Lightning makes of them; `teardown` ends all.
    """

    def __init__(
        self,
        *,
        batch_size: int = 8,
        train_batch_size: int | None = None,
        val_batch_size: int | None = None,
        test_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        num_workers: NumWorkers | None = None,
        workers: WorkerSettings | Mapping[str, Any] | None = None,
        on_bad_sample: OnBadSample = "raise",
        max_bad_samples: int | None = None,
        drop_last: bool = False,
        check_repeatability: bool = True,
        resume: Resume = "exact",
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        # First, while locals() holds only the arguments.
        self._save_arguments(LoaderDataModule, locals())
        super().__init__()
        if unknown:
            raise unexpected_argument(type(self), next(iter(unknown)))
        self.workers = as_settings(WorkerSettings, workers)
        if num_workers is not None:
            self.workers = replace(self.workers, num_workers=num_workers)
        # A checkpoint holds plain values, so `workers` also takes a mapping.
        self.hparams["workers"] = asdict(self.workers)
        check_policy(on_bad_sample, max_bad_samples)
        check_choice("resume", resume, Resume)
        self.resume = resume
        self.drop_last = drop_last
        self.on_bad_sample = on_bad_sample
        self.max_bad_samples = max_bad_samples
        self.check_repeatability = check_repeatability
        self._seed = seed
        # Batch sizes of None stay None, so that batch_size can still change them.
        stage_sizes = (train_batch_size, val_batch_size, test_batch_size, predict_batch_size)
        self._stage_batch_sizes: dict[Stage, int | None] = dict(zip(STAGES, stage_sizes, strict=True))
        size_arguments = {f"{stage}_batch_size": size for stage, size in self._stage_batch_sizes.items()}
        check_at_least(1, batch_size=batch_size, **size_arguments)
        self._batch_size = batch_size
        # Decisions of num_workers="auto", by number of ranks and kind of device.
        self._auto_workers: dict[Any, int] = {}
        # Open data. A stage without data has an empty list.
        self._data: dict[Stage, list[SplitData]] = {}
        # Weak references, so that an unused loader is collected and ends its workers.
        self._loaders: list[weakref.ref[DataLoader[Any]]] = []
        # A state that was loaded without a trainer, for the next training loader.
        self._train_state: dict[str, Any] | None = None

    def _save_arguments(self, owner: type, values: Mapping[str, Any]) -> None:
        """Check the types of the arguments of one class's ``__init__`` and keep the plain ones in `hparams`.

        Args:
            owner: The class.
            values: ``locals()`` at the start of its ``__init__``.
        """
        arguments = arguments_of(owner, values)
        check_types(owner, arguments)
        self.hparams.update(plain_arguments(arguments))

    # -- hooks of a subclass --------------------------------------------------------------------------------

    @abstractmethod
    def stage_data(self, stage: Stage) -> list[SplitData]:
        """Return the data sets of a stage, each with its sampler or None for the data set's order.

        `setup` calls it once for each stage. A stage may have none, one or several; training needs one.
        """

    def collate_fn(self, stage: Stage) -> CollateFn | None:
        """Return the function that collates samples into a batch, or None for `lit_loader.default_collate`."""
        return None

    # -- settings -------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Samples a training batch on each rank."""
        return self._stage_batch_size("train")

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        check_types(LoaderDataModule, {"batch_size": batch_size})
        check_at_least(1, batch_size=batch_size)
        self._batch_size = batch_size
        self._stage_batch_sizes["train"] = None

    def _stage_batch_size(self, stage: Stage) -> int:
        return self._stage_batch_sizes[stage] or self._batch_size

    @property
    def trainer(self) -> Trainer | None:
        """The trainer that uses the data module, or None.

        Raises:
            TypeError: If it is set to a Trainer of ``pytorch_lightning``. That Trainer takes only data modules of its
                own package, and would fail with "Expected a parent".
        """
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        # The class may be a user's subclass of Trainer, so every base counts.
        packages = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
        if "pytorch_lightning" in packages:
            raise TypeError(
                f"{type(self).__name__} is a data module of lightning.pytorch, got a Trainer of pytorch_lightning; "
                "import Trainer and LightningModule from lightning.pytorch, or return lit_loader.DataLoader from a "
                "data module of pytorch_lightning"
            )
        self._trainer = trainer

    @property
    def seed(self) -> int:
        """Seed of orders and augmentation."""
        return int(os.environ.get("PL_GLOBAL_SEED", 0)) if self._seed is None else self._seed

    @property
    def num_workers(self) -> NumWorkers:
        """Setting for the workers of each loader: a number, or ``"auto"``."""
        return self.workers.num_workers

    @property
    def num_workers_of_loaders(self) -> int:
        """Number of workers of a new loader: ``num_workers``, or this host's number for ``"auto"``."""
        if self.workers.num_workers != "auto":
            return self.workers.num_workers
        return auto_num_workers(self._auto_workers, self.trainer, self.workers.worker_method)

    train_dataset = property(
        lambda self: self._stage_dataset("train"),
        doc="The training data set. Available after `setup`, like the next three; a list if the stage has several.",
    )
    val_dataset = property(lambda self: self._stage_dataset("val"), doc="The validation data set.")
    test_dataset = property(lambda self: self._stage_dataset("test"), doc="The test data set.")
    predict_dataset = property(lambda self: self._stage_dataset("predict"), doc="The prediction data set.")

    def _stage_dataset(self, stage: Stage) -> Any:
        if stage not in self._data:
            setup_stage = next(name for name, stages in RUN_STAGES.items() if stage in stages)
            raise RuntimeError(f"{stage}_dataset is not open yet; call setup({setup_stage!r}) first")
        datasets = [dataset for dataset, _ in self._data[stage]]
        if not datasets:
            raise RuntimeError(f"{stage}_dataset: {type(self).__name__} has no data for this stage")
        return datasets[0] if len(datasets) == 1 else datasets

    # -- Lightning's hooks ----------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Open the data of a stage, or of all stages if it is None; open data stays open.

        Raises:
            ValueError: If the stage is unknown, or the trainer tests or predicts without data.
        """
        # setup() is the first hook with a trainer; adding a callback later would miss the sanity check.
        close_after_validation(self.trainer)
        if self.trainer is not None:
            resume_callback(self.trainer)
        # TrainerFn is a str enum, whose str() is "TrainerFn.FITTING" and whose value is "fit".
        key = None if stage is None else str(getattr(stage, "value", stage))
        if key is not None and key not in RUN_STAGES:
            raise ValueError(f"stage={key!r} is not one of {list(RUN_STAGES)}, or None for all stages")
        for name in STAGES if key is None else RUN_STAGES[key]:
            split_data = self._open(name)
            # Without data Lightning would silently do nothing. An error in `..._dataloader` would come too late:
            # Lightning would leave torch's classes patched.
            if not split_data and name == key and self.trainer is not None and self.trainer.state.fn == key:
                raise ValueError(
                    f"{type(self).__name__} has nothing to {name} on; give it by {name}= of the source, or by "
                    f"{name}_dataset= of a DatasetsDataModule"
                )

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader.

        Raises:
            ValueError: If the number of training sets is not one, or the training set has no batch.
        """
        loaders = self._make_loaders("train")
        if len(loaders) != 1:
            raise ValueError(f"training needs one data set, and {type(self).__name__} has {len(loaders)}")
        (loader,) = loaders
        # Only the next loader continues from the state, even if it refuses the state.
        state = self._train_state
        self._train_state = None
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Return the validation loader, or a list with one loader for each set."""
        return _one_or_all(self._make_loaders("val"))

    def test_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Return the test loader, or a list with one loader for each set."""
        return _one_or_all(self._make_loaders("test"))

    def predict_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Return the prediction loader, or a list with one loader for each set."""
        return _one_or_all(self._make_loaders("predict"))

    @classmethod
    def from_datasets(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise an error, because Lightning's method would use torch's loader.

        Raises:
            TypeError: Always; use `lit_loader.datamodules.DatasetsDataModule.from_datasets`.
        """
        raise TypeError(
            f"{cls.__name__}.from_datasets would make torch's loaders, without seed, sampler and collate function; use "
            "lit_loader.datamodules.DatasetsDataModule for your own data sets"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loader, because Lightning does not always load its own copy of it."""
        # See NOTE [Gaps in Lightning's resume].
        if self.trainer is None:
            return {}
        states, position = resume_callback(self.trainer).saved(self.trainer)
        return {"train": states[0], "position": position} if states else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state when training starts; testing a checkpoint changes nothing.

        Without a trainer, the next training loader continues from the state.
        """
        if self.trainer is None:
            self._train_state = state_dict.get("train")
        # A trainer loads the state later, after it has made the loaders.
        elif self.trainer.state.fn == "fit" and "train" in state_dict:
            resume_callback(self.trainer).load_later([state_dict["train"]], state_dict.get("position"))

    def teardown(self, stage: str | None = None) -> None:
        """End the workers of every loader made so far, and of the copies that Lightning made of them."""
        loaders = [loader for reference in self._loaders if (loader := reference()) is not None]
        for loader in (*loaders, *held_loaders(self.trainer)):
            loader.close()
        self._loaders.clear()

    def __getstate__(self) -> dict[str, Any]:
        # Weak references cannot be pickled, and a copy makes its own loaders.
        return {**self.__dict__, "_loaders": []}

    # -- the factory ----------------------------------------------------------------------------------------

    def _open(self, stage: Stage) -> list[SplitData]:
        if stage not in self._data:
            self._data[stage] = self.stage_data(stage)
        return self._data[stage]

    def _make_loaders(self, stage: Stage, *, to_device: bool = True) -> list[DataLoader[Any]]:
        trainer = self.trainer
        # Without a trainer the loader looks for a process group.
        rank, world_size = (None, None) if trainer is None else (trainer.global_rank, trainer.world_size)
        workers = self.workers.loader_arguments(self.num_workers_of_loaders)
        # first_batch() draws pictures on the CPU, where neither page-locking nor a copy is of use.
        transfer = self._transfer_arguments() if to_device else {}
        loaders: list[DataLoader[Any]] = []
        for number, (dataset, sampler) in enumerate(self._open(stage)):
            loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_size=self._stage_batch_size(stage),
                sampler=sampler,
                collate_fn=self.collate_fn(stage),
                on_bad_sample=self.on_bad_sample,
                max_bad_samples=self.max_bad_samples,
                # Evaluation must see every sample.
                drop_last=self.drop_last and stage == "train",
                check_repeatability=self.check_repeatability,
                resume=self.resume,
                # 63 bits, so that the seed fits into a signed int64.
                seed=key64(self.seed, stage, number) >> 1,
                rank=rank,
                world_size=world_size,
                **workers,
                **transfer,
            )
            if stage == "train":
                self._check_not_empty(loader)
            loaders.append(loader)
        # Lightning may ask for loaders in every epoch, so dead references are removed.
        self._loaders = [reference for reference in self._loaders if reference() is not None]
        self._loaders.extend(map(weakref.ref, loaders))
        return loaders

    def _check_not_empty(self, loader: DataLoader[Any]) -> None:
        """Refuse a training loader without batches, because Lightning would train nothing and report success."""
        try:
            if len(loader) > 0:
                return
            num_samples = len(loader.sampler)  # type: ignore[arg-type]
        except TypeError:  # a stream has no length
            return
        raise ValueError(
            f"training has no batch: {num_samples} samples with batch_size={self.batch_size}, "
            f"world_size={loader.world_size or 1} and drop_last={self.drop_last}; lower batch_size, give "
            "drop_last=False, or give more samples"
        )

    def _transfer_arguments(self) -> dict[str, Any]:
        """Return whether loaders page-lock batches, and the device to which they copy them, None if Lightning does."""
        device: torch.device | None = None if self.trainer is None else self.trainer.strategy.root_device
        # The trainer may run on the CPU of a machine with an accelerator.
        accelerated = device is not None and device.type != "cpu" and torch.accelerator.is_available()
        pin_memory = self.workers.pin_memory
        if pin_memory is None:
            # MPS does not copy from page-locked memory. On a CPU page-locking would only copy each batch, and create a
            # context on the accelerator.
            pin_memory = accelerated and device is not None and device.type != "mps"
        prefetch = self.workers.prefetch_to_device
        if prefetch is None:
            prefetch = accelerated
        return {"pin_memory": pin_memory, "device": device if prefetch else None}

    def __str__(self) -> str:
        # Lightning's method would call all four *_dataloader methods.
        sizes = ", ".join(f"{stage}: {[len(data) for data, _ in sets]}" for stage, sets in self._data.items())
        return f"{type(self).__name__}(batch_size={self.batch_size}, num_workers={self.workers.num_workers}, {sizes})"


def _one_or_all(loaders: Sequence[DataLoader[Any]]) -> DataLoader[Any] | list[DataLoader[Any]]:
    return loaders[0] if len(loaders) == 1 else list(loaders)
