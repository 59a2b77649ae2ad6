"""Effects of samplers and batchings on a training set: class mix, repeats, unseen images, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable, LabelSets, image_labels, label_counts
from lit_loader.datamodules import (
    AspectRatioBatching,
    Batching,
    BlockShuffleSamplerConfig,
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    PlainBatching,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SamplerConfig,
    SequentialSamplerConfig,
    SizeBatching,
    WeightedSamplerConfig,
    expected_class_mix,
)
from lit_loader.datamodules.request_report import epoch_requests
from lit_loader.errors import SettingError
from lit_loader.images import ImageReading
from lit_loader.inspection.shuffle_quality import ShuffleQuality, shuffle_quality
from lit_loader.samplers import BlockShuffleSampler, OrderSampler
from lit_loader.samplers.order import epoch_visits
from lit_loader.types import IndexArray

__all__ = [
    "BATCHINGS",
    "BatchShape",
    "SAMPLERS",
    "SamplerStatistics",
    "SamplingStatistics",
    "for_table",
    "padding_share",
    "sampling_statistics",
]

_Floats: TypeAlias = npt.NDArray[np.float64]

SAMPLERS: Final[Mapping[str, type[SamplerConfig]]] = {
    "random": RandomSamplerConfig,
    "sequential": SequentialSamplerConfig,
    "weighted": WeightedSamplerConfig,
    "class_balanced": ClassBalancedSamplerConfig,
    "class_aware": ClassAwareSamplerConfig,
    "repeat_factor": RepeatFactorSamplerConfig,
    "effective_number": EffectiveNumberSamplerConfig,
    "block_shuffle": BlockShuffleSamplerConfig,
}
"""Sampler configs by their name in the config group ``sampler``."""

BATCHINGS: Final[Mapping[str, type[Batching]]] = {
    "plain": PlainBatching,
    "aspect_ratio": AspectRatioBatching,
    "size": SizeBatching,
}
"""Batchings by their name in the config group ``batching``."""


# Padding is measured on this many batches, since a sampler may need seconds for all batches of a large set.
_MAX_BATCHES: Final = 4096
_NUM_WINDOWS: Final = 16


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """Settings that decide the shape of a padded batch; by default as torchvision's detectors make it.

    Args:
        batch_size: Images a batch.
        size: Length of the shorter side after the resize, or None.
        max_size: Longest side allowed with ``size``; without it, the length of the longer side. None for both keeps
            the size of the images.
        size_divisor: Height and width of a batch are rounded up to a multiple of it.

    Raises:
        SettingError: If a setting is below 1, or ``max_size`` is not above ``size``.

    Source:
        torchvision's ``GeneralizedRCNNTransform``, whose resize may differ by a pixel from the one of v2.Resize here.
    """

    batch_size: int = 8
    size: int | None = 800
    max_size: int | None = 1333
    size_divisor: int = 32

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name not in ("size", "max_size"):
                raise SettingError(name, value, "must be a number of at least 1")
            if value is not None and value < 1:
                raise SettingError(name, value, "must be at least 1")
        if self.size is not None and self.max_size is not None and self.max_size <= self.size:
            rule = f"must be above size={self.size}, the length of the shorter side"
            raise SettingError("max_size", self.max_size, rule, "raise it, or leave it out")

    def resized(self, widths: npt.ArrayLike, heights: npt.ArrayLike) -> IndexArray:
        """Return width and height of images after the resize, int64 ``(n, 2)``.

        Args:
            widths: ``(n,)`` pixels, positive.
            heights: As ``widths``.
        """
        sizes = np.stack([np.asarray(widths), np.asarray(heights)], axis=1).astype(np.int64)
        if self.size is None and self.max_size is None:
            return sizes
        shorter = sizes.min(axis=1, initial=np.iinfo(np.int64).max)
        longer = sizes.max(axis=1, initial=1)
        # The arithmetic of torchvision's v2.Resize, which rounds down after each step.
        if self.size is None:
            new_longer = np.full(len(sizes), self.max_size)
            new_shorter = (new_longer * shorter / longer).astype(np.int64)
        else:
            new_shorter = np.full(len(sizes), self.size)
            new_longer = (new_shorter * longer / shorter).astype(np.int64)
            if self.max_size is not None:
                too_long = new_longer > self.max_size
                new_shorter[too_long] = (self.max_size * new_shorter[too_long] / new_longer[too_long]).astype(np.int64)
                new_longer[too_long] = self.max_size
        is_upright = sizes[:, 0] <= sizes[:, 1]
        resized = np.where(
            is_upright[:, None],
            np.stack([new_shorter, new_longer], axis=1),
            np.stack([new_longer, new_shorter], axis=1),
        )
        # An extremely long image would have no pixel left.
        return np.maximum(resized, 1)


@dataclass(frozen=True, kw_only=True)
class SamplerStatistics:
    """Effect of one sampler on a training set, by default from the orders of three epochs.

    Attributes:
        num_samples: Samples an epoch, over all ranks.
        class_mix: float64 ``(num_classes,)``, expected share of each class among the labels of an epoch, or None if it
            has no closed form.
        empty_share: Expected share of images without a label among the samples, or None as `class_mix`.
        max_repeats: How often one image appears at most in one of the epochs.
        num_unseen: Images that an epoch does not contain, in the mean over the epochs.
        num_unseen_in_all: Images that none of the epochs contains.
        padding: Share of padded pixels in batches of the first epoch for each batching, of at most 4,096 batches all
            over the epoch; None without images, if sizes of images are unknown, or for groups of block order.
        shuffle: Quality of the shuffle with consecutive samples in a batch, or None for images that are not in shards,
            or batches of one.
        requests: About how many requests to the store an image needs in an epoch that begins with an empty cache, or
            None if the images are single files or objects, or on this host.
    """

    num_samples: int
    class_mix: _Floats | None
    empty_share: float | None
    max_repeats: int
    num_unseen: float
    num_unseen_in_all: int
    padding: Mapping[str, float | None]
    shuffle: ShuffleQuality | None = None
    requests: float | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingStatistics:
    """Effects of several samplers and batchings on a training set.

    Attributes:
        class_names: Names of the classes, or of the attribute's values.
        num_images: Number of images, or of other samples.
        class_mix: float64 ``(num_classes,)``, share of each class among the labels of the set.
        empty_share: Share of images without a label.
        samplers: Statistics of each sampler by the override that selects it, such as ``sampler=random``.
        problems: Reason why a sampler cannot be used with the set, by its override.
        batch: Shape of the batches of the padding.
        num_epochs: Number of epochs that were drawn.
        num_unknown_sizes: Images of unknown size; padding is known only if there are none.
    """

    class_names: tuple[str, ...]
    num_images: int
    class_mix: _Floats
    empty_share: float
    samplers: Mapping[str, SamplerStatistics]
    problems: Mapping[str, str] = field(default_factory=dict)
    batch: BatchShape
    num_epochs: int
    num_unknown_sizes: int

    @property
    def changed_mixes(self) -> dict[str, _Floats]:
        """Class mixes that differ from the mix of the set by at least 0.05 %, by override."""
        mixes = {override: part.class_mix for override, part in self.samplers.items() if part.class_mix is not None}
        return {override: mix for override, mix in mixes.items() if (np.abs(mix - self.class_mix) >= 0.0005).any()}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data, with classes by name."""
        samplers = {}
        for override, sampler in self.samplers.items():
            mix = sampler.class_mix
            named_mix = None if mix is None else dict(zip(self.class_names, mix.tolist(), strict=True))
            shuffle = sampler.shuffle
            samplers[override] = {
                **vars(sampler),
                "class_mix": named_mix,
                "padding": dict(sampler.padding),
                "shuffle": None if shuffle is None else {"score": shuffle.score, **asdict(shuffle)},
            }
        return {
            "num_images": self.num_images,
            "class_mix": dict(zip(self.class_names, self.class_mix.tolist(), strict=True)),
            "empty_share": self.empty_share,
            "samplers": samplers,
            "problems": dict(self.problems),
            "batch": asdict(self.batch),
            "num_epochs": self.num_epochs,
            "num_unknown_sizes": self.num_unknown_sizes,
        }


def sampling_statistics(
    table: AnnotationTable,
    samplers: Mapping[str, SamplerConfig] | None = None,
    batchings: Mapping[str, Batching] | None = None,
    *,
    batch: BatchShape | None = None,
    attribute: str | None = None,
    reading: ImageReading | None = None,
    seed: int = 0,
    num_epochs: int = 3,
) -> SamplingStatistics:
    """Return the effects of samplers and batchings on a training set, from their real orders.

    Args:
        table: The training samples, such as ``datamodule.tables("train")[0]``.
        samplers: Sampler configs by override; by default the `SAMPLERS` that suit the table, with their defaults.
        batchings: Batchings by override; by default each of `BATCHINGS` with its defaults.
        batch: Shape of a batch, by default `BatchShape`'s.
        attribute: Attribute whose values are counted, or None for the class.
        reading: Reading of a packed set in a store, such as ``datamodule.reading``, to estimate its requests, or None.
        seed: Seed of the orders.
        num_epochs: Number of epochs that are drawn.

    Raises:
        ValueError: If the table has no such attribute, or ``num_epochs`` is below 1.
    """
    if num_epochs < 1:
        raise SettingError("num_epochs", num_epochs, "must be at least 1")
    samplers = for_table(_shipped_configs("sampler", SAMPLERS), table) if samplers is None else samplers
    batchings = _shipped_configs("batching", BATCHINGS) if batchings is None else batchings
    measures = _Measures(
        table=table,
        batchings=batchings,
        batch=BatchShape() if batch is None else batch,
        attribute=attribute,
        reading=reading,
        seed=seed,
        num_epochs=num_epochs,
    )
    counts = label_counts(table, by=attribute)
    statistics: dict[str, SamplerStatistics] = {}
    problems: dict[str, str] = {}
    for override, config in samplers.items():
        # A sampler of classes refuses a set without objects.
        try:
            sampler = config.make_sampler(table)
        except ValueError as error:
            problems[override] = str(error)
        else:
            statistics[override] = measures.of(sampler)
    return SamplingStatistics(
        class_names=table.labels_of(attribute)[1],
        num_images=table.num_images,
        class_mix=counts / max(1, counts.sum()),
        empty_share=float(measures.is_empty.sum() / max(1, table.num_images)),
        samplers=statistics,
        problems=problems,
        batch=measures.batch,
        num_epochs=num_epochs,
        num_unknown_sizes=measures.num_unknown_sizes,
    )


def for_table(samplers: Mapping[str, SamplerConfig], table: AnnotationTable) -> dict[str, SamplerConfig]:
    """Return the sampler configs that a table can have: without block order if its images are not in shards."""
    return {
        override: config
        for override, config in samplers.items()
        if table.shards is not None or not isinstance(config, BlockShuffleSamplerConfig)
    }


def _shipped_configs(group: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configs of a group with their defaults, by override."""
    return {f"{group}={name}": config_type() for name, config_type in types.items()}


@dataclass(frozen=True, kw_only=True)
class _Measures:
    """Measures of samplers on one training set; see `sampling_statistics` for the fields."""

    table: AnnotationTable
    batchings: Mapping[str, Batching]
    batch: BatchShape
    attribute: str | None
    reading: ImageReading | None
    seed: int
    num_epochs: int

    def of(self, sampler: OrderSampler) -> SamplerStatistics:
        """Return the statistics of a sampler."""
        epochs = range(self.num_epochs)
        orders = [sampler.order(seed=self.seed, epoch=epoch)[0 : len(sampler)] for epoch in epochs]
        # How often each image appears in each epoch.
        appearances = np.stack([np.bincount(order, minlength=sampler.num_indices) for order in orders])
        visits = _expected_visits(sampler)
        return SamplerStatistics(
            num_samples=len(sampler),
            class_mix=expected_class_mix([self.table], sampler, by=self.attribute),
            empty_share=None if visits is None else float(visits[self.is_empty].sum() / max(1, len(sampler))),
            max_repeats=int(appearances.max(initial=0)),
            num_unseen=float((appearances == 0).sum(axis=1).mean()),
            num_unseen_in_all=int((appearances == 0).all(axis=0).sum()),
            padding={name: self._padding(batching, sampler) for name, batching in self.batchings.items()},
            shuffle=self._shuffle(orders),
            requests=None if self.reading is None else epoch_requests(self.table, sampler, self.reading),
        )

    @cached_property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """True for each image without an object that has a label, ``(num_images,)``."""
        is_empty: npt.NDArray[np.bool_] = np.diff(self._labels.offsets) == 0
        return is_empty

    @cached_property
    def num_unknown_sizes(self) -> int:
        """Number of images of unknown size."""
        return int(((self.table.widths == 0) | (self.table.heights == 0)).sum())

    @cached_property
    def _labels(self) -> LabelSets:
        return image_labels(self.table, by=self.attribute)

    @cached_property
    def _sizes(self) -> IndexArray:
        return self.batch.resized(self.table.widths, self.table.heights)

    def _shuffle(self, orders: Sequence[IndexArray]) -> ShuffleQuality | None:
        """Return the quality of a shuffle of images in shards, or None without shards, or pairs in a batch."""
        if self.table.shards is None or self.batch.batch_size < 2 or len(orders[0]) < 2:
            return None
        return shuffle_quality(orders, self.table.shards, batch_size=self.batch.batch_size, labels=self._labels)

    def _padding(self, batching: Batching, sampler: OrderSampler) -> float | None:
        """Return the padded share of batches of the first epoch, or None if it is not known."""
        # Batchings, too, need the size of every image.
        if len(sampler) == 0 or self.num_unknown_sizes:
            return None
        if isinstance(sampler, BlockShuffleSampler) and not isinstance(batching, PlainBatching):
            return None
        length = self.batch.batch_size
        order = batching.batched(sampler, self.table).batch_order(seed=self.seed, epoch=0, global_batch=length)
        num_batches = -(-len(order) // length)
        if num_batches <= _MAX_BATCHES:
            return padding_share(order[0 : len(order)], self._sizes, self.batch)
        # Windows all over the epoch, because a sequential order may begin with images of one size.
        window = _MAX_BATCHES // _NUM_WINDOWS
        firsts = np.linspace(0, len(order) // length - window, _NUM_WINDOWS).astype(np.int64).tolist()
        windows = [order[first * length : (first + window) * length] for first in firsts]
        return padding_share(np.concatenate(windows), self._sizes, self.batch)


def _expected_visits(sampler: OrderSampler) -> _Floats | None:
    try:
        return epoch_visits(sampler, 0)
    except ValueError:  # no closed form
        return None


def padding_share(indices: IndexArray, sizes: IndexArray, batch: BatchShape) -> float:
    """Return the share of padded pixels in consecutive batches. The last batch may be smaller.

    Args:
        indices: int64 ``(n,)``, the order of the images, at least one.
        sizes: int64 ``(num_images, 2)``, width and height of the resized images.
        batch: Shape of a batch; its resize is not applied.
    """
    starts = np.arange(0, len(indices), batch.batch_size)
    image_sizes = sizes[indices]
    divisor = batch.size_divisor
    batch_sizes = -(-np.maximum.reduceat(image_sizes, starts, axis=0) // divisor) * divisor
    batch_lengths = np.diff([*starts, len(indices)])
    # float64, because areas of many large images exceed int64.
    num_pixels = image_sizes.astype(np.float64).prod(axis=1).sum()
    return float(1 - num_pixels / (batch_sizes.astype(np.float64).prod(axis=1) * batch_lengths).sum())
