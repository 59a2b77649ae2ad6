"""Requests an image of an order, before it is read: the rules of the fetch process without a store."""

from __future__ import annotations

from typing import Final

import numpy as np

from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.storage.fetching import Neighbours, request_distances
from lit_loader.storage.images import StoredSamples
from lit_loader.storage.protocol import data_offsets
from lit_loader.storage.schedule import FAR
from lit_loader.types import IndexArray, Order

__all__ = ["requests_per_image"]

# Largest number of requests that are counted, in less than a second.
_MAX_REQUESTS: Final = 16_384
_NUM_SAMPLES: Final = 8192
# Samples that are delivered together, after which more images come into reach.
_BATCH: Final = 64


def requests_per_image(samples: StoredSamples, order: Order) -> float | None:
    """Return how many requests the fetch process needs for an image of an order, beginning with an empty cache.

    The first samples of the order are followed one by one, with one rank. Images that are needed later may be in the
    cache already, so that a whole epoch, and the next one, may need fewer requests.

    Args:
        samples: The stored images of the samples that the order counts.
        order: The order of an epoch.

    Returns:
        Requests divided by images; None for images on this host, or without an image in the store.
    """
    settings = samples.store.settings
    if settings is None:
        return None
    catalog = samples.store.catalog
    neighbours = Neighbours(catalog)
    sizes: IndexArray = np.diff(data_offsets(catalog.lengths))
    budget = byte_count(settings.cache_budget)
    # Without a budget it is half of the free disk, which is taken to be enough for the set.
    budget = int(sizes.sum()) if budget is None else budget
    reach, horizon = request_distances(neighbours, sizes, budget, settings.window)
    # Most of them come into reach while others are delivered, as most of an epoch does.
    num_followed = 2 * reach + _NUM_SAMPLES
    slots = _slots_of(samples, order[0 : num_followed + horizon])
    if not neighbours.exist:
        return 1.0 if (slots >= 0).any() else None
    # Position at which each image is needed first; the last assignment counts, so from the end on.
    next_uses = np.full(len(catalog), FAR, dtype=np.int64)
    positions = np.flatnonzero(slots >= 0)[::-1]
    next_uses[slots[positions]] = positions
    is_absent = np.ones(len(catalog), dtype=np.bool_)
    num_requests = 0
    num_fetched = 0
    for position, slot in enumerate(slots[:num_followed].tolist()):
        if num_requests == _MAX_REQUESTS:
            break
        if slot < 0 or not is_absent[slot]:
            continue
        delivered = max(0, position - reach) // _BATCH * _BATCH
        near = neighbours.of(slot)
        is_due = (next_uses[near] - delivered <= horizon) & is_absent[near]
        is_due[near == slot] = True
        run = neighbours.around(slot, near, is_due)
        is_absent[run] = False
        num_requests += 1
        num_fetched += len(run)
    return num_requests / num_fetched if num_fetched else None


def _slots_of(samples: StoredSamples, indices: IndexArray) -> IndexArray:
    """Return the slot of each index of the data set, -1 for an image elsewhere."""
    places = indices - samples.first
    is_inside = (places >= 0) & (places < len(samples.slots))
    return np.where(is_inside, samples.slots[np.where(is_inside, places, 0)], -1)
