"""Resuming a loader: its epochs, how far the consumer is, and its state.

A loader has one `EpochState`. The other modules resume an epoch: `custom_samplers` with a seed, `replay` without one,
`streams` for iterable datasets. `state` makes and loads a state, and `state_format` checks its format.
"""

from __future__ import annotations

from lit_loader.loader.resume.custom_samplers import custom_tasks
from lit_loader.loader.resume.epochs import EpochState
from lit_loader.loader.resume.progress import MAX_HELD, Progress, ResumePoint
from lit_loader.loader.resume.replay import ReplayedSampler, StateRefusedError
from lit_loader.loader.resume.state_format import check_state
from lit_loader.loader.resume.streams import StreamBatches, StreamPosition, next_epoch_state

__all__ = [
    "EpochState",
    "MAX_HELD",
    "Progress",
    "ReplayedSampler",
    "ResumePoint",
    "StateRefusedError",
    "StreamBatches",
    "StreamPosition",
    "check_state",
    "custom_tasks",
    "next_epoch_state",
]
