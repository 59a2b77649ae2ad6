"""Sampler configs: from an annotation table to a sampler, with plain settings that configs can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lit_loader.annotations import AnnotationTable, class_weights, image_labels, image_weights, label_counts
from lit_loader.loader.arguments import check_choice
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
from lit_loader.samplers.checks import checked_num_samples, checked_number

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

Reduce: TypeAlias = Literal["mean", "max", "sum"]
"""How the weights of an image's objects become the image's."""

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "exponent": (lambda value: 0 <= value <= 1, "lie in [0, 1]"),
    "empty_share": (lambda value: 0 <= value <= 1, "lie in [0, 1]"),
    "repeat_thresh": (lambda value: 0 < value <= 1, "lie in (0, 1]"),
    "beta": (lambda value: 0 <= value < 1, "lie in [0, 1)"),
}


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
        # the samplers check too, but only when there is a table
        checked_num_samples(getattr(self, "num_samples", None), 1)
        for name, (valid, rule) in _RANGES.items():
            if getattr(self, name, None) is not None:
                checked_number(name, getattr(self, name), valid, rule=rule)

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
    reduce: Reduce = "mean"
    num_samples: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reduce", self.reduce, Reduce)

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
        labels = self._labels(table)
        return ClassAwareSampler(labels, num_samples=self.num_samples, empty_as_class=self.empty_as_class)


@dataclass(frozen=True, kw_only=True)
class RepeatFactorSamplerConfig(_BalancedSamplerConfig):
    """Every image once, and those of rare classes, or attribute values, several times an epoch.

    Args:
        balance_by: The attribute whose rare values are repeated, or None for the class.
        repeat_thresh: The share of the images, in (0, 1], below which a class is repeated. The paper's 0.001 is
            for a thousand classes; with few it repeats nothing.
    """

    repeat_thresh: float = 0.001

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

    def make_sampler(self, table: AnnotationTable) -> OrderSampler:
        """Return the sampler for a table; ValueError if no object has a value of ``balance_by``."""
        weights = effective_number_image_weights(self._labels(table), beta=self.beta)
        return WeightedRandomSampler(weights, self.num_samples, self.replacement)
