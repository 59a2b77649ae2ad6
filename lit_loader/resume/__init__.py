"""What it takes to go on where a pass was left: positions, a state's format, foreign samplers and streams.

It knows no loader; `lit_loader.states` brings a loader and its state together.
"""

from __future__ import annotations

from lit_loader.resume.foreign import (
    SamplerDetail,
    beginning,
    find_stateful,
    foreign_indices,
    index_digest,
    index_values,
    is_one_shot,
)
from lit_loader.resume.format import FIELDS, KINDS, VERSION, checked_state, sealed
from lit_loader.resume.own_state import NoStateError, own_state
from lit_loader.resume.plain import check_sum, is_plain
from lit_loader.resume.progress import MOST_HELD, Progress, ResumePoint
from lit_loader.resume.stream import StreamDetail, StreamRun, stream_detail, stream_fields
from lit_loader.resume.unseeded import (
    ReplayedSampler,
    SamplerStart,
    StateRefusedError,
    checked_start,
    draws,
    generators_of,
    own_start,
    start_fields,
)

__all__ = [
    "FIELDS",
    "KINDS",
    "MOST_HELD",
    "NoStateError",
    "Progress",
    "ReplayedSampler",
    "ResumePoint",
    "SamplerDetail",
    "SamplerStart",
    "StateRefusedError",
    "StreamDetail",
    "StreamRun",
    "VERSION",
    "beginning",
    "check_sum",
    "checked_start",
    "checked_state",
    "draws",
    "find_stateful",
    "foreign_indices",
    "generators_of",
    "index_digest",
    "index_values",
    "is_one_shot",
    "is_plain",
    "own_start",
    "own_state",
    "sealed",
    "start_fields",
    "stream_detail",
    "stream_fields",
]
