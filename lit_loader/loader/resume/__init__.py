"""Resuming a loader: its epochs, the progress of the consumer, and its state.

A loader has one `EpochState`: with a seed `KeyedEpochs` (`keyed`, `custom_samplers`), without one `TorchEpochs`
(`unseeded`). Both resume iterable datasets by `streams`. `state` saves and loads a state, and `state_format` checks its
format.
"""

from __future__ import annotations

from lit_loader.loader.resume.epochs import EpochPlan, EpochState
from lit_loader.loader.resume.keyed import KeyedEpochs
from lit_loader.loader.resume.progress import MAX_HELD, Progress, ResumePoint
from lit_loader.loader.resume.state_format import check_state
from lit_loader.loader.resume.streams import StreamBatches, StreamPosition, next_epoch_state
from lit_loader.loader.resume.unseeded import TorchEpochs

__all__ = [
    "EpochPlan",
    "EpochState",
    "KeyedEpochs",
    "MAX_HELD",
    "Progress",
    "ResumePoint",
    "StreamBatches",
    "StreamPosition",
    "TorchEpochs",
    "check_state",
    "next_epoch_state",
]
