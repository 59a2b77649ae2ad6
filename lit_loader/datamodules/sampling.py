"""Sampler configs: plain settings from which an annotation table gets its sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_info

from lit_loader.annotations import AnnotationTable, class_weights, image_labels, image_weights, label_counts
from lit_loader.errors import SettingError
from lit_loader.loader.arguments import check_choice
from lit_loader.samplers import (
    BlockShuffleSampler,
    ClassAwareSampler,
    ClassBalancedSampler,
    OrderSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    WeightedRandomSampler,
    effective_number_image_weights,
    repeat_factors,
)
from lit_loader.samplers.checks import check_settings
from lit_loader.samplers.epoch_settings import epoch_schedule
from lit_loader.schedules import EpochSchedule, Schedule, Scheduled

__all__ = [
    "BlockShuffleSamplerConfig",
    "ClassAwareSamplerConfig",
    "ClassBalancedSamplerConfig",
    "EffectiveNumberSamplerConfig",
    "RandomSamplerConfig",
    "RepeatFactorSamplerConfig",
    "SamplerConfig",
    "SequentialSamplerConfig",
    "WeightedSamplerConfig",
]

Reduce: TypeAlias = Literal["mean", "max", "sum"]
"""Reduction of the weights of an image's objects to the weight of the image."""


class SamplerConfig(ABC):
    """Settings of a sampler over the images of a table, which it weights without opening them.

    Where a sample is one object, the table has one image row for each object, so the same configs apply.
    """

    @abstractmethod
    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table."""


@dataclass(frozen=True, kw_only=True)
class SequentialSamplerConfig(SamplerConfig):
    """Every image once, in the order of the table."""

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table."""
        return SequentialSampler(table.num_images)


@dataclass(frozen=True, kw_only=True)
class RandomSamplerConfig(SamplerConfig):
    """Every image once an epoch, in a new order each time.

    Args:
        empty_share: Share of an epoch's samples for images without any object, such as tiles that show nothing, in
            [0, 1). Every other image still comes once an epoch. Those without objects come in shuffled cycles that
            continue from epoch to epoch, so all of them are seen in time. None for each of them once an epoch, which
            also applies to a table whose images all have objects, or none.
    """

    empty_share: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.empty_share, Mapping | Schedule):
            raise SettingError(
                "empty_share",
                self.empty_share,
                "is a schedule, and the length of an epoch follows from it, which must not change",
                "give it to ClassBalancedSamplerConfig(exponent=0.0, num_samples=...), in Hydra sampler=class_balanced",
            )
        check_settings(vars(self))
        if self.empty_share == 1:
            raise ValueError("empty_share=1 leaves no sample for images with objects; give a share below 1")

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table."""
        if self.empty_share is None:
            return RandomSampler(table.num_images)
        # All images with objects are one class, whose quota is their number: each comes once an epoch.
        labels = np.where(np.diff(table.offsets) > 0, 0, -1)
        num_labelled = int((labels == 0).sum())
        # Among several training tables some may be of one kind only.
        if num_labelled in (0, len(labels)):
            kind = "an object" if num_labelled else "no object"
            rank_zero_info(f"empty_share={self.empty_share} does not apply to {table!r}: every image has {kind}")
            return RandomSampler(table.num_images)
        num_samples = round(num_labelled / (1 - self.empty_share))
        if self.empty_share > 0:
            # The sampler gives any share above 0 a position, which must not be one of the class's.
            num_samples = max(num_samples, num_labelled + 1)
        return ClassBalancedSampler(labels, exponent=0, num_samples=max(num_samples, 1), empty_share=self.empty_share)


@dataclass(frozen=True, kw_only=True)
class _BalancedSamplerConfig(SamplerConfig):
    # Names of the settings that may be schedules of epochs.
    _scheduled: ClassVar[tuple[str, ...]] = ()

    balance_by: str | None = None

    def __post_init__(self) -> None:
        for name in self._scheduled:
            # A frozen dataclass has no other way to convert the mapping of a YAML file.
            object.__setattr__(self, name, epoch_schedule(name, getattr(self, name)))
        # The sampler checks its settings too, but it is made only after the data was prepared, which may take hours.
        check_settings(vars(self), scheduled=self._scheduled)

    def _labels(self, table: AnnotationTable) -> Any:
        """Return the labels of each image; ValueError if no object has a value of the attribute to balance."""
        attribute = self.balance_by
        if attribute is not None and table.num_images and not label_counts(table, by=attribute).any():
            # All images would silently get the same weight.
            rule = f"names an attribute that none of the {table.num_objects} objects of {table!r} has"
            raise SettingError("balance_by", attribute, rule, "give another attribute", settings={"balance_by": None})
        return image_labels(table, by=attribute)


@dataclass(frozen=True, kw_only=True)
class WeightedSamplerConfig(_BalancedSamplerConfig):
    """Images drawn with weights that increase with the rarity of their classes or attribute values.

    Args:
        balance_by: Attribute whose values are balanced, or None for the class.
        exponent: 0 gives all classes the same weight, 1 a weight inverse to their number of objects. It may be a
            schedule of epochs, such as ``{"points": {0: 0.0, 10: 1.0}}``.
        reduce: Reduction of the weights of an image's objects to the weight of the image.
        num_samples: Images an epoch, or None for the number of images in the table.
        replacement: True if an image may be drawn more than once in an epoch.
    """

    _scheduled = ("exponent",)

    exponent: Scheduled = 1.0
    reduce: Reduce = "mean"
    num_samples: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reduce", self.reduce, Reduce)

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        # Called for its check alone: weights are computed per object, from the table.
        self._labels(table)
        if isinstance(self.exponent, EpochSchedule):
            schedule = _MappedSchedule(self.exponent, partial(self._image_weights, table))
            return WeightedRandomSampler(schedule, self.num_samples, self.replacement)
        weights = self._image_weights(table, self.exponent)
        return WeightedRandomSampler(weights, self.num_samples, self.replacement)

    def _image_weights(self, table: AnnotationTable, exponent: Any) -> npt.NDArray[np.float64]:
        weight_by_class = class_weights(label_counts(table, by=self.balance_by), exponent=exponent)
        return image_weights(table, weight_by_class, by=self.balance_by, reduce=self.reduce)


@dataclass(frozen=True, eq=False)
class _MappedSchedule(EpochSchedule):
    """Values that are a function of the values of another schedule, such as weights that follow from an exponent."""

    schedule: EpochSchedule
    function: Callable[[Any], Any]

    def at(self, epoch: int) -> Any:
        return self.function(self.schedule.at(epoch))

    def breakpoints(self) -> tuple[int, ...]:
        return self.schedule.breakpoints()

    def constant_from(self) -> int | None:
        return self.schedule.constant_from()

    def __str__(self) -> str:
        return str(self.schedule)


@dataclass(frozen=True, kw_only=True)
class ClassBalancedSamplerConfig(_BalancedSamplerConfig):
    """Classes, or attribute values, visited by shares between natural and balanced; each visit takes an image.

    Args:
        balance_by: Attribute whose values are balanced, or None for the class.
        exponent: 0 keeps the natural shares of the classes, 1 makes them equal. It may be a schedule of epochs, such as
            ``{"points": {0: 0.0, 10: 1.0}}``, which begins with the natural shares and ends with equal ones.
        num_samples: Images an epoch, or None for the number of images in the table, or of classes if that is larger.
        empty_share: Share of images without a labelled object, or None for their share of the table. It may be a
            schedule of epochs.
    """

    _scheduled = ("exponent", "empty_share")

    exponent: Scheduled = 1.0
    num_samples: int | None = None
    empty_share: Scheduled | None = None

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        return ClassBalancedSampler(
            self._labels(table), exponent=self.exponent, num_samples=self.num_samples, empty_share=self.empty_share
        )


@dataclass(frozen=True, kw_only=True)
class ClassAwareSamplerConfig(_BalancedSamplerConfig):
    """Classes, or attribute values, that take turns, so that every batch is balanced; so do the images of each class.

    Args:
        balance_by: Attribute whose values take turns, or None for the class.
        num_samples: Images an epoch, or None for the number of images in the table, or of classes if that is larger.
        empty_as_class: True to treat images without a labelled object as one more class; False never visits them.
    """

    num_samples: int | None = None
    empty_as_class: bool = False

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        labels = self._labels(table)
        return ClassAwareSampler(labels, num_samples=self.num_samples, empty_as_class=self.empty_as_class)


@dataclass(frozen=True, kw_only=True)
class RepeatFactorSamplerConfig(_BalancedSamplerConfig):
    """Every image once an epoch, and images of rare classes, or attribute values, several times.

    Args:
        balance_by: Attribute whose rare values are repeated, or None for the class.
        repeat_thresh: Share of the images, in (0, 1], below which a class is repeated. The paper's 0.001 is meant for a
            thousand classes; with few classes it repeats nothing.
    """

    repeat_thresh: float = 0.001

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        return RepeatFactorSampler(repeat_factors(self._labels(table), repeat_thresh=self.repeat_thresh))


@dataclass(frozen=True, kw_only=True)
class EffectiveNumberSamplerConfig(_BalancedSamplerConfig):
    """Images drawn with weights by the effective number of samples of their rarest class or attribute value.

    Args:
        balance_by: Attribute whose values are balanced, or None for the class.
        beta: In [0, 1). 0 gives all images the same weight; near 1 weights are inverse to the images of the class.
        num_samples: Images an epoch, or None for the number of images in the table.
        replacement: True if an image may be drawn more than once in an epoch.
    """

    beta: float = 0.999
    num_samples: int | None = None
    replacement: bool = True

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        weights = effective_number_image_weights(self._labels(table), beta=self.beta)
        return WeightedRandomSampler(weights, self.num_samples, self.replacement)


@dataclass(frozen=True, kw_only=True)
class BlockShuffleSamplerConfig(_BalancedSamplerConfig):
    """Every image once an epoch, in random blocks of the shards of a packed set, for stores that charge by request.

    Args:
        open_shards: Size of the mix, as a number of shards of mean size; see `BlockShuffleSampler`.
        block_size: Number of neighbours in a shard that are read together, or None for whole shards.
        balance_by: Attribute whose values are balanced, or None for the class; without a balance it has no effect.
        exponent: Above 0, images are repeated as often as `ClassBalancedSamplerConfig` would visit them on average: 1
            gives all classes the same share. 0 visits every image once.
        repeat_thresh: Repeat images of rare classes as `RepeatFactorSamplerConfig` does instead, or None.
    """

    open_shards: int = 4
    block_size: int | None = 256
    exponent: float = 0.0
    repeat_thresh: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exponent > 0 and self.repeat_thresh is not None:
            rule = f"repeats images for one balance, and repeat_thresh={self.repeat_thresh} for another one"
            settings = {"exponent": 0.0, "repeat_thresh": None}
            raise SettingError("exponent", self.exponent, rule, settings=settings)

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table.

        Raises:
            SettingError: If the images of the table are not in shards, or no object has a value of ``balance_by``.
        """
        if table.shards is None:
            raise SettingError(
                "open_shards",
                self.open_shards,
                f"mixes the shards of a packed set, and the images of {table!r} are single files",
                "use RandomSamplerConfig(), in Hydra sampler=random, or pack the set with lit-loader pack",
            )
        return BlockShuffleSampler(
            table.shards, open_shards=self.open_shards, block_size=self.block_size, repeats=self._repeats(table)
        )

    def _repeats(self, table: AnnotationTable) -> npt.NDArray[np.float64] | None:
        if self.repeat_thresh is not None:
            return repeat_factors(self._labels(table), repeat_thresh=self.repeat_thresh)
        if self.exponent > 0:
            return ClassBalancedSampler(self._labels(table), exponent=self.exponent).expected_visits()
        return None
