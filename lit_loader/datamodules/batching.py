"""Batching choices: which samples of a table go together in a batch, with plain settings that configs can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.datasets import Stage
from lit_loader.samplers import (
    GroupedSampler,
    OrderSampler,
    aspect_ratio_buckets,
    size_buckets,
)

__all__ = ["AspectRatioBatching", "Batching", "PlainBatching", "SizeBatching", "checked_batching"]


class Batching(ABC):
    """Which samples go together in a batch; what is drawn, and how often, is the sampler's.

    Sizes are those of the table's images, as the annotations say them: where samples are objects cut out of images,
    those of the images, and before any transform. Where all samples are brought to one size, as the landmark and
    classification presets do with crops and whole images, no batch has another shape for it.
    """

    @abstractmethod
    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return a sampler that draws as another one does and puts batches together."""


@dataclass(frozen=True, kw_only=True)
class PlainBatching(Batching):
    """Samples as they come: consecutive ones are a batch."""

    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return the sampler itself."""
        return sampler


@dataclass(frozen=True, kw_only=True)
class AspectRatioBatching(Batching):
    """Images of like width over height, for images that are resized to one shorter or longer side.

    Args:
        num_buckets: Groups at most, at least 2; see `aspect_ratio_buckets`.

    Raises:
        ValueError: If ``num_buckets`` is below 2.
    """

    num_buckets: int = 8

    def __post_init__(self) -> None:
        if self.num_buckets < 2:
            raise ValueError(
                f"num_buckets={self.num_buckets} must be at least 2; for batches without groups use PlainBatching"
            )

    def _buckets(self, table: AnnotationTable) -> npt.NDArray[np.int64]:
        return aspect_ratio_buckets(table.widths, table.heights, self.num_buckets)

    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return the sampler in groups; ValueError if the table does not know the size of an image."""
        unknown = np.flatnonzero((table.widths == 0) | (table.heights == 0))
        if len(unknown):
            raise ValueError(
                f"{self} needs the size of every image, and {table!r} does not know that of {len(unknown)} of its "
                f"{table.num_images} images, {table.image_path(int(unknown[0]))} the first; write their sizes into the "
                "annotations (in VOC XML <size>), leave these images out, or use PlainBatching"
            )
        return GroupedSampler(sampler, self._buckets(table))


@dataclass(frozen=True, kw_only=True)
class SizeBatching(AspectRatioBatching):
    """Images of like width and height, for images that keep their own size.

    Args:
        num_buckets: Groups at most, at least 2; see `size_buckets`.

    Raises:
        ValueError: If ``num_buckets`` is below 2.
    """

    num_buckets: int = 16

    def _buckets(self, table: AnnotationTable) -> npt.NDArray[np.int64]:
        return size_buckets(table.widths, table.heights, self.num_buckets)


def checked_batching(stage: Stage, batching: Batching | None, sampler: Any) -> Batching | None:
    """Return a stage's batching, which may be None.

    Args:
        stage: Whose it is.
        batching: What the user gave.
        sampler: What draws the stage's samples: a sampler, a `SamplerConfig`, or None.

    Raises:
        ValueError: It stands beside a sampler that is not lit_loader's.
    """
    name = "train_batching" if stage == "train" else "eval_batching"
    regroups = batching is not None and not isinstance(batching, PlainBatching)
    if regroups and isinstance(sampler, Sampler) and not isinstance(sampler, OrderSampler):
        raise ValueError(
            f"{name}={batching} puts batches together from a whole epoch's order, which {stage}_sampler="
            f"{type(sampler).__name__} does not tell before it is iterated; give a sampler of "
            f"lit_loader.samplers or a lit_loader.datamodules.SamplerConfig, or leave {name} out"
        )
    return batching
