"""A data set whose samples are mixed with other samples of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch.utils.data import Dataset

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import BatchMixing
from lit_loader.datasets.joined import JoinedDataset
from lit_loader.datasets.landmarks import LandmarkDataset
from lit_loader.errors import SettingError
from lit_loader.mixing import Mix, MixSample, PartnerDataset, PartnerPool, mix_parts
from lit_loader.seeding import sample_rng

__all__ = ["Mixing", "MixingDataset", "as_mixes"]

Mixing: TypeAlias = Mix | Sequence[Mix] | Mapping[str, Mix | None]
"""One mix, or several in the order in which they are applied; names are for configs, and None leaves a mix out."""


class MixingDataset(PartnerDataset, Dataset[Any]):
    """Any map data set, whose samples are mixed with partners by ``lit_loader.DataLoader(seed=int)``.

    The loader draws the partners when it plans an epoch, so a mixed sample depends on (seed, epoch, position) alone.
    ``dataset[i]`` therefore raises: torch's loader would never mix.

    A `lit_loader.DetectionDataset` reads the parts of a mix without its transforms, except those that
    `DecodeAwareCompose.before_mixing` counts, and applies the others to the mixed sample. Of other data sets a part is
    ``dataset[i]``: for the mixes in `lit_loader.transforms` a pair ``(image, target)`` with a uint8 image
    ``(3, H, W)``, as a detection data set of torchvision returns it with ``transforms=v2.ToImage()``.

    Runs in: the main process, where loaders read its length and pools, workers and threads.

    Args:
        dataset: The data set.
        mixing: One `Mix`, or a list or a mapping of several, which are applied in this order.
        transforms: Applied to mixed samples and to the others, as ``transforms(image, target)`` to tuples and as
            ``transforms(sample)`` otherwise; for data sets that do not transform mixed samples themselves.

    Attributes:
        dataset: The data set.
        mixing: Tuple of the mixes.

    Raises:
        TypeError: ``mixing`` contains anything else, or the samples of ``dataset`` are crops of objects.
        SettingError: ``mixing`` is empty, or ``transforms`` belong into the data set.
    """

    def __init__(self, dataset: Any, mixing: Mixing, *, transforms: Callable[..., Any] | None = None) -> None:
        self.dataset = dataset
        self.mixing = as_mixes(mixing)
        if not self.mixing:
            raise SettingError("mixing", mixing, "has no mix", "give one such as Mosaic(), or use the data set itself")
        self._parts = dataset.datasets if isinstance(dataset, JoinedDataset) else [dataset]
        if any(isinstance(part, LandmarkDataset) for part in self._parts):
            raise TypeError(
                "samples of a LandmarkDataset are crops of objects, which are not mixed; give a "
                "DetectionDataset(keypoints=True), whose samples are whole images"
            )
        if transforms is not None and any(hasattr(part, "finish_sample") for part in self._parts):
            kind = type(self._parts[0]).__name__
            raise SettingError(
                "transforms", transforms, f"would follow those of the {kind}; give all of them to the {kind}"
            )
        self.transforms = transforms

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """Raise an error, since a sample has no partners here.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "MixingDataset has no single samples: lit_loader.DataLoader(dataset, seed=0) plans the partners of each "
            "sample and mixes them, other loaders do not; for one sample without mixing, index its attribute `dataset`"
        )

    def sample_path(self, index: int) -> Path:
        """Return the path of a sample's image file, if the data set has a method ``sample_path``."""
        path: Path = self.dataset.sample_path(index)
        return path

    def partner_pool(self, number: int) -> PartnerPool | None:
        """Return a new pool of mix number ``number``, or None for the order of the epoch."""
        tables: list[Any] = [getattr(part, "table", None) for part in self._parts]
        # A pool counts indices through all tables, so one data set without a table makes the others useless.
        if not all(isinstance(table, AnnotationTable) for table in tables):
            tables = []
        return self.mixing[number].pool(tables)

    def read_part(self, index: int, object_row: int | None = None) -> Any:
        """Return a sample before it is mixed, see `PartnerDataset.read_part`."""
        dataset, position = self._located(index)
        if not hasattr(dataset, "open_sample"):
            return dataset[position]
        part: MixSample = dataset.open_sample(position)
        return part._replace(object_row=object_row)

    def mixed_sample(self, index: int, part: Any, partners: Sequence[tuple[int, Any]]) -> Any:
        """Return the sample ``index``, mixed with its partners and transformed."""
        mixed = mix_parts(self.mixing, part, partners, sample_rng()) if partners else part
        if isinstance(part, MixSample) and not isinstance(mixed, MixSample):
            kinds = ", ".join(type(mix).__name__ for mix in self.mixing)
            raise TypeError(f"expected a MixSample from `apply` of {kinds}, got {type(mixed).__name__}")
        dataset, position = self._located(index)
        if hasattr(dataset, "finish_sample"):
            return dataset.finish_sample(position, mixed.image, mixed.target)
        if self.transforms is None:
            return mixed
        return self.transforms(*mixed) if isinstance(mixed, tuple) else self.transforms(mixed)

    def _located(self, index: int) -> tuple[Any, int]:
        """Return the data set that reads an index, and the index in it."""
        return self.dataset.locate(index) if isinstance(self.dataset, JoinedDataset) else (self.dataset, index)


def as_mixes(mixing: Mixing | None) -> tuple[Mix, ...]:
    """Return mixes as a tuple, in the order in which they are applied; empty for None.

    Raises:
        SettingError: One of them is a `BatchMixing`, which is for classification.
        TypeError: An entry is not a `Mix`.
    """
    if isinstance(mixing, Mapping):
        mixes = [mix for mix in mixing.values() if mix is not None]
    else:
        mixes = [mixing] if isinstance(mixing, Mix) else list(mixing or ())
    for mix in mixes:
        if isinstance(mix, BatchMixing):
            rule = "mixes batches of classification, and these samples have objects"
            remedy = "choose Mosaic(), MixUp() or CopyPaste(), in a config mixing=mosaic, mixup or copy_paste"
            raise SettingError("mixing", type(mix).__name__, rule, remedy)
        if not isinstance(mix, Mix):
            raise TypeError(
                f"mixing contains {mix!r} of type {type(mix).__name__}; expected a lit_loader.Mix, such as "
                "lit_loader.transforms.Mosaic()"
            )
    return tuple(mixes)
