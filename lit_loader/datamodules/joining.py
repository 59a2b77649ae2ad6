"""Checks of training on several tables that are joined."""

from __future__ import annotations

from collections.abc import Mapping

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.batching import Batching, PlainBatching
from lit_loader.errors import SettingError
from lit_loader.samplers import OrderSampler

__all__ = ["check_batch_size", "check_can_join"]


def check_can_join(tables: Mapping[str, AnnotationTable], batching: Batching | None) -> None:
    """Refuse training tables that cannot be joined.

    Args:
        tables: The tables by the names of their sets.
        batching: The batching of training, or None.

    Raises:
        ValueError: If the batching groups images, which would change the mix of the batches, or a table is empty.
    """
    if not isinstance(batching, PlainBatching | None):
        raise ValueError(
            f"train_batching={batching} groups the images of one table, and training joins {len(tables)} tables; give "
            "PlainBatching(), in Hydra batching=plain"
        )
    for name, table in tables.items():
        if table.num_images == 0:
            raise ValueError(f"{name} has no samples to mix; leave the source out of training")


def check_batch_size(sampler: OrderSampler, argument: str, batch_size: int) -> None:
    """Refuse a training batch size that is not a multiple of the pattern that a sampler repeats.

    Args:
        sampler: The training sampler.
        argument: Name of the argument that sets the batch size.
        batch_size: Samples a batch on each rank.

    Raises:
        SettingError: If it is not; the remedy is the next batch size that fits.
    """
    multiple = sampler.batch_multiple
    if batch_size % multiple:
        raise SettingError(
            argument,
            batch_size,
            f"is not a multiple of {multiple}, the samples of all sources in a batch, so batches would differ in their "
            "mix",
            settings={argument: -(-batch_size // multiple) * multiple},
        )
