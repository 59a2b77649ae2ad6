"""A data set whose samples are mixed with other samples of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import BatchMixing
from lit_loader.datasets.joined import JoinedDataset
from lit_loader.datasets.landmarks import LandmarkDataset
from lit_loader.errors import SettingError
from lit_loader.foundation.stage_times import TRANSFORMING
from lit_loader.mixing import Mix, MixSample, PartnerDataset, PartnerPool, mix_parts
from lit_loader.seeding import sample_rng
from lit_loader.transforms.copy_paste import CopyPaste
from lit_loader.transforms.image_mix import ImageMix, as_mix_sample, as_pair, fields_of
from lit_loader.transforms.mix_objects import check_target
from lit_loader.transforms.sanitize import DeclaredFields

if TYPE_CHECKING:
    from lit_loader.storage.images import StoredSamples

__all__ = ["Mixing", "MixingDataset", "as_mixes", "check_mixes_oriented"]

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
        per_object: Names of per-object fields of the targets in addition to ``PER_OBJECT_FIELDS``, for the mixes in
            `lit_loader.transforms`. A `DetectionDataset` knows its fields, and the names that a `SanitizeObjects` in
            its transforms declares.
        per_image: As ``per_object``, of per-image fields in addition to ``PER_IMAGE_FIELDS``.

    Attributes:
        dataset: The data set.
        mixing: Tuple of the mixes.

    Raises:
        TypeError: ``mixing`` contains anything else, ``transforms`` cannot be called, or ``dataset`` is not a map data
            set, contains lit_loader's data sets in another one, or its samples are crops of objects.
        SettingError: ``mixing`` is empty or has a `CopyPaste` for oriented boxes, or another argument belongs into the
            data set.
        ValueError: A name is in ``per_object`` and in ``per_image``.
    """

    def __init__(
        self,
        dataset: Any,
        mixing: Mixing,
        *,
        transforms: Callable[..., Any] | None = None,
        per_object: Sequence[str] = (),
        per_image: Sequence[str] = (),
    ) -> None:
        _check_dataset(dataset)
        if transforms is not None and not callable(transforms):
            raise TypeError(f"transforms={transforms!r} cannot be called; give a function or a transform.")
        self.dataset = dataset
        self.mixing = as_mixes(mixing)
        if not self.mixing:
            raise SettingError("mixing", mixing, "has no mix", "give one such as Mosaic(), or use the data set itself")
        self._parts = dataset.datasets if isinstance(dataset, JoinedDataset) else [dataset]
        if any(getattr(part, "oriented", None) is not None for part in self._parts):
            check_mixes_oriented(self.mixing)
        if any(isinstance(part, LandmarkDataset) for part in self._parts):
            raise TypeError(
                "samples of a LandmarkDataset are crops of objects, which are not mixed; give a "
                "DetectionDataset(keypoints=True), whose samples are whole images"
            )
        kind = type(self._parts[0]).__name__
        if any(hasattr(part, "finish_sample") for part in self._parts):
            if transforms is not None:
                remedy = f"give all transforms to the {kind}"
                raise SettingError(
                    "transforms", transforms, f"would be applied after the {kind} has applied its transforms", remedy
                )
            for argument, names in (("per_object", per_object), ("per_image", per_image)):
                if names:
                    remedy = f"give the names to SanitizeObjects or to the preset in the transforms of the {kind}"
                    raise SettingError(argument, names, "is for other data sets", remedy)
        self.transforms = transforms
        self.fields = DeclaredFields(per_object, per_image)
        self._mixes_images = all(isinstance(mix, ImageMix) for mix in self.mixing)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """Raise an error, since a sample has no partners here.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "MixingDataset has no single samples: lit_loader.DataLoader(dataset, seed=0) plans the partners of each "
            "sample and mixes them; other loaders and data sets around this one do not, so make MixingDataset the "
            "outermost data set of the loader; for one sample without mixing, index its attribute `dataset`"
        )

    def sample_path(self, index: int) -> Path | str:
        """Return the path or URL of a sample's image, if the data set has a method ``sample_path``."""
        path: Path | str = self.dataset.sample_path(index)
        return path

    def stored_samples(self) -> list[StoredSamples]:
        """Return the stores of the data set's images, if it has a method ``stored_samples``.

        Images of partners are requested when they are read.
        """
        stored_samples = getattr(self.dataset, "stored_samples", list)
        samples: list[StoredSamples] = stored_samples()
        return samples

    def partner_pool(self, number: int) -> PartnerPool | None:
        """Return a new pool of mix number ``number``, or None for the order of the epoch."""
        tables: list[Any] = [getattr(part, "table", None) for part in self._parts]
        # A pool counts indices through all tables, so one data set without a table makes the others useless.
        if not all(isinstance(table, AnnotationTable) for table in tables):
            tables = []
        return self.mixing[number].pool(tables)

    def read_part(self, index: int, object_row: int | None = None) -> Any:
        """Return a sample before it is mixed, see `PartnerDataset.read_part`.

        The mixes in `lit_loader.transforms` need certain samples, so wrong ones fail here, where their index is known.

        Raises:
            TypeError: The mixes cannot mix the sample.
            ValueError: Fields of the target are not declared, or transforms removed objects of the annotations.
        """
        dataset, position = self._located(index)
        if not hasattr(dataset, "open_sample"):
            sample = dataset[position]
            if self._mixes_images:
                check_target(as_mix_sample(sample).target, self.fields)
            return sample
        part: MixSample = dataset.open_sample(position)
        if self._mixes_images:
            check_target(part.target, fields_of(part))
        if object_row is not None:
            objects = dataset.table.objects(position)
            num_rows = objects.stop - objects.start
            num_boxes = len(part.target["boxes"])
            if num_boxes != num_rows:
                problem = f"object {object_row} of {num_rows} was drawn from the annotations"
                remedy = "transforms before mixing must keep all objects, so move them to extra_after"
                raise ValueError(f"{problem}, but its target has {num_boxes} objects; {remedy}.")
        return MixSample(part.image, part.target, object_row, part.fields)

    def mixed_sample(self, index: int, part: Any, partners: Sequence[tuple[int, Any]]) -> Any:
        """Return the sample ``index``, mixed with its partners and transformed."""
        with TRANSFORMING:
            mixed = self._mixed(part, partners) if partners else part
        if isinstance(part, MixSample) and not isinstance(mixed, MixSample):
            kinds = ", ".join(type(mix).__name__ for mix in self.mixing)
            raise TypeError(f"expected a MixSample from `apply` of {kinds}, got {type(mixed).__name__}")
        dataset, position = self._located(index)
        if hasattr(dataset, "finish_sample"):
            return dataset.finish_sample(position, mixed.image, mixed.target)
        if self.transforms is None:
            return mixed
        with TRANSFORMING:
            return self.transforms(*mixed) if isinstance(mixed, tuple) else self.transforms(mixed)

    def _mixed(self, part: Any, partners: Sequence[tuple[int, Any]]) -> Any:
        """Return the part, mixed with its partners, as a sample of the same kind."""
        if isinstance(part, MixSample) or not self._mixes_images:
            return mix_parts(self.mixing, part, partners, sample_rng())
        # Tuples cannot name the fields of their targets.
        partner_samples = [(number, as_mix_sample(sample, self.fields)) for number, sample in partners]
        mixed: MixSample = mix_parts(self.mixing, as_mix_sample(part, self.fields), partner_samples, sample_rng())
        return as_pair(mixed, like=part)

    def _located(self, index: int) -> tuple[Any, int]:
        """Return the data set that reads an index, and the index in it."""
        return self.dataset.locate(index) if isinstance(self.dataset, JoinedDataset) else (self.dataset, index)


def _check_dataset(dataset: Any) -> None:
    """Refuse iterable data sets, and data sets of torch around a data set of lit_loader.

    Raises:
        TypeError: The data set is refused.
    """
    is_map = all(hasattr(dataset, method) for method in ("__len__", "__getitem__"))
    # torch's IterableDataset inherits a __getitem__ that raises.
    if not is_map or isinstance(dataset, IterableDataset):
        raise TypeError(f"expected a map data set with __len__ and __getitem__, got {type(dataset).__name__}.")
    if isinstance(dataset, PartnerDataset):
        raise TypeError(
            f"expected a data set without mixing, got {type(dataset).__name__}; give all mixes to one MixingDataset "
            "as a list"
        )
    if isinstance(dataset, JoinedDataset) or not isinstance(dataset, ConcatDataset | Subset):
        return
    # Its samples would be mixed after their transforms.
    if any(hasattr(part, "open_sample") or isinstance(part, PartnerDataset) for part in _inner_datasets(dataset)):
        remedies = {
            Subset: "take the subset of the mixing data set, Subset(MixingDataset(...), indices), or of the table",
            ConcatDataset: "join them by lit_loader.datasets.JoinedDataset",
        }
        remedy = next(text for kind, text in remedies.items() if isinstance(dataset, kind))
        raise TypeError(f"samples in a {type(dataset).__name__} would be mixed after their transforms; {remedy}.")


def _inner_datasets(dataset: Any) -> list[Any]:
    """Return the data sets inside of torch's Subset and ConcatDataset."""
    if isinstance(dataset, Subset):
        return _inner_datasets(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [inner for part in dataset.datasets for inner in _inner_datasets(part)]
    return [dataset]


def check_mixes_oriented(mixes: Sequence[Mix]) -> None:
    """Refuse mixes that cannot keep oriented boxes.

    Raises:
        SettingError: One of them is a `CopyPaste`, which cuts out boxes along the axes.
    """
    for mix in mixes:
        if isinstance(mix, CopyPaste):
            rule = "cuts objects out along the axes, and targets have oriented boxes"
            raise SettingError("mixing", type(mix).__name__, rule, "use Mosaic() or MixUp()")


def as_mixes(mixing: Mixing | None) -> tuple[Mix, ...]:
    """Return mixes as a tuple, in the order in which they are applied; empty for None.

    Raises:
        SettingError: One of them is a `BatchMixing`, which is for classification.
        TypeError: An entry is not a `Mix`.
    """
    # A config may contain anything.
    entries: Any = mixing
    if isinstance(entries, Mapping):
        mixes = [mix for mix in entries.values() if mix is not None]
    elif isinstance(entries, Sequence) and not isinstance(entries, str):
        mixes = list(entries)
    else:
        mixes = [] if entries is None else [entries]
    for mix in mixes:
        if isinstance(mix, BatchMixing):
            rule = "mixes batches of classification, and these samples have objects"
            remedy = (
                "choose Mosaic(), MixUp() or CopyPaste(), in a config mixing=mosaic, mixup or copy_paste, or give it "
                "to a ClassificationDataModule"
            )
            raise SettingError("mixing", type(mix).__name__, rule, remedy)
        if not isinstance(mix, Mix):
            raise TypeError(
                f"mixing contains {mix!r} of type {type(mix).__name__}; expected a lit_loader.Mix, such as "
                "lit_loader.transforms.Mosaic()"
            )
    return tuple(mixes)
