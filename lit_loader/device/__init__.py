"""Everything that touches an accelerator: page-locked memory, copies on a side stream, a batch's draws on a device.

Problem: a step that waits for its batch to be copied wastes the device. Mechanism: worker processes' slots are
page-locked once (`CudaPageLock`), the next batch is copied on a side stream while this one is used, and events say
when a slot may be written and a batch read (`AheadRun`).

One process drives one device, as Lightning's strategies have it. Nothing here runs in a worker.
"""

from __future__ import annotations

from lit_loader.device.ahead import MAX_QUEUED, AheadRun
from lit_loader.device.choice import checked_device
from lit_loader.device.delivery import PlainRun, delivery
from lit_loader.device.moving import Moving, moved
from lit_loader.device.page_lock import CudaPageLock, find_page_lock
from lit_loader.device.pinning import PinnedRun, Pinner
from lit_loader.device.seeded import seeded_batch
from lit_loader.device.streams import Backend, Event, StreamBackend, find_backend

__all__ = [
    "AheadRun",
    "Backend",
    "CudaPageLock",
    "Event",
    "MAX_QUEUED",
    "Moving",
    "PinnedRun",
    "Pinner",
    "PlainRun",
    "StreamBackend",
    "checked_device",
    "delivery",
    "find_backend",
    "find_page_lock",
    "moved",
    "seeded_batch",
]
