"""Batchings: plain settings that decide which samples of a table share a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.sampling import BlockShuffleSamplerConfig
from lit_loader.datasets import Stage
from lit_loader.errors import SettingError
from lit_loader.samplers import GroupedSampler, OrderSampler, aspect_ratio_buckets, size_buckets

__all__ = ["AspectRatioBatching", "Batching", "PlainBatching", "SizeBatching", "checked_batching"]


class Batching(ABC):
    """Decides which samples share a batch; the sampler decides which samples are drawn, and how often.

    Sizes are the image sizes in the annotations, before any transform, even where samples are objects cut out of
    images. Batching has no effect on shapes where all samples get one size, as with the landmark and classification
    presets.
    """

    @abstractmethod
    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return a sampler that draws the same samples and composes the batches."""


@dataclass(frozen=True, kw_only=True)
class PlainBatching(Batching):
    """Consecutive samples share a batch."""

    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return the sampler itself."""
        return sampler


@dataclass(frozen=True, kw_only=True)
class AspectRatioBatching(Batching):
    """Images of similar aspect ratio share a batch, for images that are resized to one shorter or longer side.

    Args:
        num_buckets: Maximum number of groups, at least 2; see `aspect_ratio_buckets`.

    Raises:
        ValueError: If ``num_buckets`` is below 2.
    """

    num_buckets: int = 8

    def __post_init__(self) -> None:
        if self.num_buckets < 2:
            raise ValueError(
                f"num_buckets={self.num_buckets} must be at least 2; use PlainBatching for batches without groups"
            )

    def _buckets(self, table: AnnotationTable) -> npt.NDArray[np.int64]:
        return aspect_ratio_buckets(table.widths, table.heights, self.num_buckets)

    def batched(self, sampler: OrderSampler, table: AnnotationTable) -> OrderSampler:
        """Return the sampler in groups; ValueError if the table does not know the size of an image."""
        # A size of 0 is unknown, and would put an image of any size into the first bucket.
        unknown = np.flatnonzero((table.widths == 0) | (table.heights == 0))
        if len(unknown):
            raise ValueError(
                f"{self} needs the size of every image, and {table!r} lacks the sizes of {len(unknown)} of its "
                f"{table.num_images} images, {table.image_path(int(unknown[0]))} first; write the sizes into the "
                "annotations (in VOC XML <size>), leave these images out, or use PlainBatching"
            )
        return GroupedSampler(sampler, self._buckets(table))


@dataclass(frozen=True, kw_only=True)
class SizeBatching(AspectRatioBatching):
    """Images of similar width and height share a batch, for images that keep their size.

    Args:
        num_buckets: Maximum number of groups, at least 2; see `size_buckets`.

    Raises:
        ValueError: If ``num_buckets`` is below 2.
    """

    num_buckets: int = 16

    def _buckets(self, table: AnnotationTable) -> npt.NDArray[np.int64]:
        return size_buckets(table.widths, table.heights, self.num_buckets)


def checked_batching(stage: Stage, batching: Batching | None, sampler: Any) -> Batching | None:
    """Return a stage's batching after a check that it fits the stage's sampler.

    Args:
        stage: The stage.
        batching: The user's batching, or None.
        sampler: The stage's sampler, a `SamplerConfig`, or None.

    Raises:
        ValueError: If the batching regroups samples and the sampler is not lit_loader's.
    """
    name = "train_batching" if stage == "train" else "eval_batching"
    # torch's own samplers decide their order while they are iterated. Configs make samplers of lit_loader.
    regroups = batching is not None and not isinstance(batching, PlainBatching)
    if regroups and isinstance(sampler, BlockShuffleSamplerConfig):
        rule = "would spread the blocks of sampler=block_shuffle over the epoch, with one request an image"
        remedy = f"give PlainBatching(), in Hydra batching=plain, or another {stage}_sampler"
        raise SettingError(name, batching, rule, remedy)
    if regroups and isinstance(sampler, Sampler) and not isinstance(sampler, OrderSampler):
        raise ValueError(
            f"{name}={batching} composes batches from the order of a whole epoch, and the order of {stage}_sampler="
            f"{type(sampler).__name__} is not known before it is iterated; give a sampler of "
            f"lit_loader.samplers or a lit_loader.datamodules.SamplerConfig, or leave {name} out"
        )
    return batching
