"""Data module over the user's data sets: any `Dataset` or `IterableDataset`, with the guarantees of the loader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeAlias

from torch.utils.data import Dataset, IterableDataset, Sampler

from lit_loader.datamodules.base import STAGES, LoaderDataModule, SplitData
from lit_loader.datasets import Stage
from lit_loader.samplers import RandomSampler
from lit_loader.types import CollateFn

__all__ = ["DatasetsDataModule"]

_Datasets: TypeAlias = Dataset[Any] | Iterable[Dataset[Any]] | None


class DatasetsDataModule(LoaderDataModule):
    """Loaders over existing data sets.

    Args:
        train_dataset: The training set, or a sequence that contains it, or None.
        val_dataset: A validation set, or a sequence of sets with a loader each, or None.
        test_dataset: The same for testing.
        predict_dataset: The same for prediction.
        train_sampler: Sampler of the training set, preferably from `lit_loader.samplers`, or None to visit each sample
            once an epoch, in a new order every epoch. Not for an iterable data set.
        collate_fn: Collates a list of samples into a batch, or None for `lit_loader.default_collate`.
        **settings: Batch sizes, workers and seed, as in `LoaderDataModule`.

    Raises:
        TypeError: If a data set is neither indexable nor an ``IterableDataset``.
        ValueError: If an iterable training set has a sampler, or a setting is out of range.
    """

    def __init__(
        self,
        *,
        train_dataset: _Datasets = None,
        val_dataset: _Datasets = None,
        test_dataset: _Datasets = None,
        predict_dataset: _Datasets = None,
        train_sampler: Sampler[int] | None = None,
        collate_fn: CollateFn | None = None,
        **settings: Any,
    ) -> None:
        self._save_arguments(DatasetsDataModule, locals())
        super().__init__(**settings)
        stage_arguments = (train_dataset, val_dataset, test_dataset, predict_dataset)
        self._datasets: dict[Stage, list[Dataset[Any]]] = {
            stage: _dataset_list(f"{stage}_dataset", argument)
            for stage, argument in zip(STAGES, stage_arguments, strict=True)
        }
        self._train_sampler = train_sampler
        self._collate = collate_fn
        if train_sampler is not None and any(map(_is_stream, self._datasets["train"])):
            raise ValueError(
                f"train_sampler={type(train_sampler).__name__} has no effect on an iterable data set, which decides "
                "its order itself; leave it out"
            )

    @classmethod
    def from_datasets(cls, *datasets: Any, batch_size: int = 1, **settings: Any) -> Self:
        """Return a data module over data sets, like Lightning's method of this name.

        Args:
            *datasets: The training, validation, test and prediction sets, in this order. They can also be given by
                name among ``settings``.
            batch_size: Samples a batch on each rank.
            **settings: Further arguments of the class.
        """
        stage_datasets = {f"{stage}_dataset": dataset for stage, dataset in zip(STAGES, datasets, strict=False)}
        return cls(batch_size=batch_size, **stage_datasets, **settings)

    def stage_data(self, stage: Stage) -> list[SplitData]:
        """Return the data sets of a stage with their samplers."""
        split_data: list[SplitData] = []
        dataset: Any
        for dataset in self._datasets[stage]:
            # An iterable data set decides its order, and evaluation is sequential.
            sampler: Sampler[int] | None = None
            if stage == "train" and not _is_stream(dataset):
                sampler = RandomSampler(dataset) if self._train_sampler is None else self._train_sampler
            split_data.append((dataset, sampler))
        return split_data

    def collate_fn(self, stage: Stage) -> CollateFn | None:
        """Return the collate function of all stages, or None for the default."""
        return self._collate


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset)


def _dataset_list(name: str, argument: Any) -> list[Dataset[Any]]:
    """Return data sets as a list. As in torch, anything with ``__getitem__`` is a data set."""
    if argument is None:
        return []
    # Lightning takes a mapping of loaders for training, but there is one training set here.
    if isinstance(argument, Mapping):
        raise TypeError(f"{name} is a {type(argument).__name__}; give a data set or a sequence of data sets")
    # A data set may be iterable too, so only these two types are taken for sequences of data sets.
    datasets = list(argument) if isinstance(argument, (list, tuple)) else [argument]
    for dataset in datasets:
        if not _is_stream(dataset) and not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"{name} contains a {type(dataset).__name__}, which is not a data set; a data set has __getitem__ or "
                "is an IterableDataset"
            )
    return datasets
