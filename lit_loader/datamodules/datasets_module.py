"""A data module over data sets of the user's own: any `Dataset` or `IterableDataset`, with the loader's promises."""

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
    """Loaders over data sets that are there already.

    Args:
        train_dataset: What is trained on; one, or a sequence of one.
        val_dataset: What is validated on: one, or a sequence, which makes as many loaders, or None. Likewise the
            next two.
        test_dataset: For testing.
        predict_dataset: For prediction.
        train_sampler: How training samples are drawn, best by one of `lit_loader.samplers`, or None for each once, in a
            new order every epoch. Not for an iterable data set.
        collate_fn: Makes a batch of a list of samples, or None for `lit_loader.default_collate`.
        settings: Batch sizes, workers and seed, as `LoaderDataModule` takes them.

    Raises:
        TypeError: If something is given that is no data set.
        ValueError: If a sampler is given for an iterable data set, or another setting is out of range.
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
        given = (train_dataset, val_dataset, test_dataset, predict_dataset)
        self._datasets: dict[Stage, list[Dataset[Any]]] = {
            stage: _listed(f"{stage}_dataset", each) for stage, each in zip(STAGES, given, strict=True)
        }
        self._train_sampler, self._collate = train_sampler, collate_fn
        if train_sampler is not None and any(map(_is_stream, self._datasets["train"])):
            raise ValueError(
                f"train_sampler={type(train_sampler).__name__} has no meaning for an iterable data set, which has an "
                "order of its own; leave it out"
            )

    @classmethod
    def from_datasets(cls, *datasets: Any, batch_size: int = 1, **settings: Any) -> Self:
        """Return a data module of data sets, as Lightning's method of this name, with this package's loader.

        Args:
            *datasets: To train on, to validate, to test and to predict on, in this order; or by their names among
                ``settings``.
            batch_size: Samples a batch on each rank.
            **settings: As the class takes them.
        """
        named = {f"{stage}_dataset": each for stage, each in zip(STAGES, datasets, strict=False)}
        return cls(batch_size=batch_size, **named, **settings)

    def stage_data(self, stage: Stage) -> list[SplitData]:
        """Return the data sets of a stage with their samplers."""
        return [(dataset, self._sampler(stage, dataset)) for dataset in self._datasets[stage]]

    def _sampler(self, stage: Stage, dataset: Any) -> Sampler[int] | None:
        if stage != "train" or _is_stream(dataset):
            return None
        return RandomSampler(dataset) if self._train_sampler is None else self._train_sampler

    def collate_fn(self, stage: Stage) -> CollateFn | None:
        """Return the collate function of all stages, or None for the default."""
        return self._collate


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset)


def _listed(name: str, given: Any) -> list[Dataset[Any]]:
    """Return data sets as a list; anything that has ``__getitem__`` is one, as torch has it."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        raise TypeError(f"{name} is a {type(given).__name__}; give a data set or a sequence of them")
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for dataset in found:
        if not _is_stream(dataset) and not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"{name} holds a {type(dataset).__name__}, which is no data set: it has neither __getitem__ nor is it "
                "an IterableDataset"
            )
    return found
