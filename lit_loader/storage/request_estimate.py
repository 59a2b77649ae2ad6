"""Requests an image of an order, before it is read: the rules of the fetch process without a store."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetching import Neighbours, neighbour_reach
from lit_loader.storage.protocol import data_offsets
from lit_loader.types import IndexArray

__all__ = ["num_needed_samples", "requests_per_image"]

# Samples whose requests are counted, and samples of one batch, whose delivery moves the window on.
_NUM_SAMPLES: Final = 8192
_BATCH: Final = 64
_FAR: Final = 1 << 60


def num_needed_samples(catalog: Catalog, *, window: int, cache_budget: int | None) -> int:
    """Return how many samples from the start of an order `requests_per_image` reads.

    Args:
        catalog: Where each image is.
        window: Number of samples that are kept ahead.
        cache_budget: Largest number of bytes of the cache, or None for one that all images fit.
    """
    return _NUM_SAMPLES + window + _reach(catalog, window, cache_budget)


def requests_per_image(
    catalog: Catalog, slots: npt.NDArray[np.int32], *, window: int, cache_budget: int | None
) -> float | None:
    """Return how many requests the fetch process needs for an image, beginning with an empty cache.

    The first 8,192 samples of the order are followed one by one, with one rank. Images that are fetched later may be
    in the cache already, so that a whole epoch, and the next one, may need fewer requests.

    Args:
        catalog: Where each image is.
        slots: int32 ``(num_samples,)``, slot of each sample in the order of an epoch, -1 for an image elsewhere; at
            least the first `num_needed_samples`.
        window: Number of samples that are kept ahead.
        cache_budget: Largest number of bytes of the cache, or None for one that all images fit.

    Returns:
        Requests divided by images; None without a stored image.
    """
    neighbours = Neighbours(catalog)
    stored = slots[slots >= 0]
    if not len(stored):
        return None
    if not neighbours.exist:
        return 1.0
    reach = _reach(catalog, window, cache_budget)
    # Position at which each image is needed first; the last assignment counts, so from the end on.
    next_uses = np.full(len(catalog), _FAR, dtype=np.int64)
    positions = np.flatnonzero(slots >= 0)[::-1]
    next_uses[slots[positions]] = positions
    is_absent = np.ones(len(catalog), dtype=np.bool_)
    num_requests = 0
    num_fetched = 0
    for position, slot in enumerate(slots[: _NUM_SAMPLES + window].tolist()):
        if slot < 0 or not is_absent[slot]:
            continue
        delivered = max(0, position - window) // _BATCH * _BATCH
        near = neighbours.of(slot)
        is_due = (next_uses[near] - delivered <= reach) & is_absent[near]
        is_due[near == slot] = True
        run = neighbours.around(slot, near, is_due)
        is_absent[run] = False
        num_requests += 1
        num_fetched += len(run)
    return num_requests / num_fetched if num_fetched else None


def _reach(catalog: Catalog, window: int, cache_budget: int | None) -> int:
    sizes: IndexArray = np.diff(data_offsets(catalog.lengths))
    budget = int(sizes.sum()) if cache_budget is None else cache_budget
    return neighbour_reach(sizes, budget, window)
