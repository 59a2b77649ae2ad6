"""The accelerator: page-locked memory, copies on a side stream, and seeded generators for transforms of batches.

Problem: a step that waits for the copy of its batch leaves the device idle. Mechanism: worker processes' slots are
page-locked once (`CudaPageLock`), the next batch is copied on a side stream while this one is used, and events order
the copies, the consumer's work and the reuse of slots (`DevicePrefetcher`).

One process uses one device, as in Lightning's strategies. No module of this package runs in a worker.
"""

from __future__ import annotations

from lit_loader.loader.device.nested import find_pin, moved
from lit_loader.loader.device.page_lock import CudaPageLock, find_page_lock
from lit_loader.loader.device.seeded import seeded_batch
from lit_loader.loader.device.transfer import (
    MAX_QUEUED,
    DevicePrefetcher,
    DeviceStreams,
    MappedBatches,
    PendingTransfer,
    checked_device,
    find_streams,
    make_transfer,
)

__all__ = [
    "CudaPageLock",
    "DevicePrefetcher",
    "DeviceStreams",
    "MAX_QUEUED",
    "MappedBatches",
    "PendingTransfer",
    "checked_device",
    "find_page_lock",
    "find_pin",
    "find_streams",
    "make_transfer",
    "moved",
    "seeded_batch",
]
