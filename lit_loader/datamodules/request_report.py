"""Report of the requests that training needs to read a packed set from a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.sampling import BlockShuffleSamplerConfig
from lit_loader.images import ImageReading
from lit_loader.samplers import OrderSampler
from lit_loader.storage.request_estimate import requests_per_image

__all__ = ["epoch_requests", "request_line"]

# Above it, block order is worth a hint if it halves the requests.
_MANY_REQUESTS: Final = 0.1


def epoch_requests(table: AnnotationTable, sampler: OrderSampler, reading: ImageReading) -> float | None:
    """Return about how many requests an image of a packed set needs in an epoch that begins with an empty cache.

    Args:
        table: The samples.
        sampler: Their sampler.
        reading: Reading of the images, with their stores.

    Returns:
        The mean over the table's stores; None if the images are single files or objects, or on this host.
    """
    if table.shards is None or not len(sampler):
        return None
    order = sampler.order(seed=0, epoch=0)
    # Images of one table are in several stores only after sets were merged; then their shares hardly matter.
    estimates = [requests_per_image(samples, order) for samples in reading.stored_samples(table)]
    numbers = [estimate for estimate in estimates if estimate is not None]
    return sum(numbers) / len(numbers) if numbers else None


def request_line(name: str, table: AnnotationTable, sampler: Any, reading: ImageReading) -> Iterator[str]:
    """Yield a line with the requests an image of a training set, and of block order if it needs many fewer.

    Args:
        name: Name of the set.
        table: The samples.
        sampler: Their sampler. Requests of a sampler that is not lit_loader's are unknown.
        reading: Reading of the images, with their stores.
    """
    requests = epoch_requests(table, sampler, reading) if isinstance(sampler, OrderSampler) else None
    if requests is None:
        return
    line = f"{name}: about {requests:.2g} requests an image with {type(sampler).__name__}"
    if requests > _MANY_REQUESTS:
        blocks = epoch_requests(table, BlockShuffleSamplerConfig().make_sampler(table), reading)
        if blocks is not None and blocks < requests / 2:
            line += f"; sampler=block_shuffle needs {blocks:.2g}"
    yield line
