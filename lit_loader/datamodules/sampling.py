"""Sampler configs: from an annotation table to a sampler, with plain settings that configs can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from lit_loader.annotations import AnnotationTable, class_weights, image_labels, image_weights, label_counts
from lit_loader.samplers import (
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

__all__ = [
    "ClassAwareSamplerConfig",
    "ClassBalancedSamplerConfig",
    "EffectiveNumberSamplerConfig",
    "RandomSamplerConfig",
    "RepeatFactorSamplerConfig",
    "SamplerConfig",
    "SequentialSamplerConfig",
    "WeightedSamplerConfig",
]


class SamplerConfig(ABC):
    """How the images of a table are drawn; the weights come from the table, no image is opened.

    Where a sample is one object, the table has one image row for each, so the same choices serve.
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
    """Every image once an epoch, in a new order each time."""

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table."""
        return RandomSampler(table.num_images)


@dataclass(frozen=True, kw_only=True)
class _BalancedSamplerConfig(SamplerConfig):
    balance_by: str | None = None

    def __post_init__(self) -> None:
        num_samples = getattr(self, "num_samples", None)
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples={num_samples} must be at least 1, or None for the table's images")

    def _labels(self, table: AnnotationTable) -> Any:
        """Return the labels of each image; an attribute that no object has would give all images the same weight."""
        by = self.balance_by
        if by is not None and table.num_images and not label_counts(table, by=by).any():
            raise ValueError(
                f"balance_by={by!r}: none of the {table.num_objects} objects of {table!r} has a value of this "
                "attribute, so there is nothing to balance; give another attribute, or balance_by=None for the class"
            )
        return image_labels(table, by=by)


@dataclass(frozen=True, kw_only=True)
class WeightedSamplerConfig(_BalancedSamplerConfig):
    """Images drawn by weights that rise with the rarity of the classes, or attribute values, they hold.

    Args:
        balance_by: The attribute whose values are balanced, or None for the class.
        exponent: 0: all classes weigh the same; 1: inversely to their number of objects.
        reduce: How the weights of an image's objects become the image's.
        num_samples: Images an epoch, or None for as many as the table has.
        replacement: Whether an image may come twice in an epoch.
    """

    exponent: float = 1.0
    reduce: Literal["mean", "max", "sum"] = "mean"
    num_samples: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        _check_fraction("exponent", self.exponent)
        super().__post_init__()
        if self.reduce not in ("mean", "max", "sum"):
            raise ValueError(f"reduce={self.reduce!r} must be 'mean', 'max' or 'sum'")

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        self._labels(table)
        of_labels = class_weights(label_counts(table, by=self.balance_by), exponent=self.exponent)
        weights = image_weights(table, of_labels, by=self.balance_by, reduce=self.reduce)
        return WeightedRandomSampler(weights, self.num_samples, self.replacement)


@dataclass(frozen=True, kw_only=True)
class ClassBalancedSamplerConfig(_BalancedSamplerConfig):
    """A class, or attribute value, is chosen first, by shares between natural and balanced; then an image with it.

    Args:
        balance_by: The attribute whose values are balanced, or None for the class.
        exponent: 0: classes come as often as they are; 1: all classes come equally often.
        num_samples: Images an epoch, or None for as many as the table has, or classes if these are more.
        empty_share: Share of images without objects that count, or None for their share of the table.
    """

    exponent: float = 1.0
    num_samples: int | None = None
    empty_share: float | None = None

    def __post_init__(self) -> None:
        _check_fraction("exponent", self.exponent)
        super().__post_init__()
        if self.empty_share is not None:
            _check_fraction("empty_share", self.empty_share)

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        return ClassBalancedSampler(
            self._labels(table),
            exponent=self.exponent,
            num_samples=self.num_samples,
            empty_share=self.empty_share,
        )


@dataclass(frozen=True, kw_only=True)
class ClassAwareSamplerConfig(_BalancedSamplerConfig):
    """Classes, or attribute values, take turns, so that every batch is even in them; then the images of each do.

    Args:
        balance_by: The attribute whose values take turns, or None for the class.
        num_samples: Images an epoch, or None for as many as the table has, or classes if these are more.
        empty_as_class: Whether images without objects that count are one more class; if not, they never come.
    """

    num_samples: int | None = None
    empty_as_class: bool = False

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        return ClassAwareSampler(
            self._labels(table),
            num_samples=self.num_samples,
            empty_as_class=self.empty_as_class,
        )


@dataclass(frozen=True, kw_only=True)
class RepeatFactorSamplerConfig(_BalancedSamplerConfig):
    """Every image once, and those of rare classes, or attribute values, several times an epoch.

    Args:
        balance_by: The attribute whose rare values are repeated, or None for the class.
        repeat_thresh: The share of the images, in (0, 1], below which a class is repeated. The paper's 0.001 is
            for a thousand classes; with few it repeats nothing.
    """

    repeat_thresh: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.repeat_thresh <= 1:
            raise ValueError(f"repeat_thresh={self.repeat_thresh} must lie in (0, 1]")

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        return RepeatFactorSampler(repeat_factors(self._labels(table), repeat_thresh=self.repeat_thresh))


@dataclass(frozen=True, kw_only=True)
class EffectiveNumberSamplerConfig(_BalancedSamplerConfig):
    """Images drawn by the effective number of samples of their rarest class, or attribute value.

    Args:
        balance_by: The attribute whose values are balanced, or None for the class.
        beta: In [0, 1): 0: all images weigh the same; near 1: inversely to the images of the class.
        num_samples: Images an epoch, or None for as many as the table has.
        replacement: Whether an image may come twice in an epoch.
    """

    beta: float = 0.999
    num_samples: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta={self.beta} must lie in [0, 1)")
        super().__post_init__()

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        weights = effective_number_image_weights(self._labels(table), beta=self.beta)
        return WeightedRandomSampler(weights, self.num_samples, self.replacement)


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must lie in [0, 1]")
