"""Times of the stages in which samples and batches are made, per thread.

A thread that makes measured batches has a `StageClock`, which is in one stage at a time, so that times never overlap:
reading inside of decoding counts as reading alone. Code that belongs to a stage runs in ``with READING:`` and the like,
which does nothing in a thread without a clock.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Literal, NamedTuple, TypeAlias

Stage: TypeAlias = Literal["read", "decode", "transform", "sample", "collate", "send"]
STAGES: Final[tuple[Stage, ...]] = ("read", "decode", "transform", "sample", "collate", "send")
"""Stages of making a batch. ``read``: bytes of files. ``decode``: pixels from bytes, or from the cache of decoded
images. ``transform``: transforms without the decoding that they cause. ``sample``: all other time in the dataset, which
is all of it for a dataset of your own. ``collate``: the collate function. ``send``: handing the batch over."""

_IDLE: Final = len(STAGES)
_SAMPLE: Final = STAGES.index("sample")
_COLLATE: Final = STAGES.index("collate")
_SEND: Final = STAGES.index("send")


class WorkTimes(NamedTuple):
    """Times since the answer before, up to the answer to a task.

    Attributes:
        number: Number of the batch in its epoch on this rank.
        num_samples: Number of samples that were collated.
        end_s: Time at which the batch was ready to be sent, by ``time.perf_counter()``.
        cpu_s: CPU seconds of the thread.
        read_bytes: Bytes of files.
        sent_bytes: Bytes that are handed over.
        read_s: Seconds in the first of `STAGES`.
        decode_s: Seconds in the next one, and so on.
        transform_s: Seconds.
        sample_s: Seconds.
        collate_s: Seconds.
        send_s: Seconds.
        idle_s: Seconds for which the thread waited for a task.
    """

    number: int = 0
    num_samples: int = 0
    end_s: float = 0.0
    cpu_s: float = 0.0
    read_bytes: int = 0
    sent_bytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    sample_s: float = 0.0
    collate_s: float = 0.0
    send_s: float = 0.0
    idle_s: float = 0.0

    @property
    def stage_s(self) -> tuple[float, ...]:
        """Seconds in each of `STAGES`, in that order."""
        return self[-1 - len(STAGES) : -1]


class StageClock:
    """Measure the stages of one thread while it is entered as a context.

    The clocks of nested loaders are independent: to the outer one, the batch of an inner loader that is measured itself
    is time in its dataset.

    Attributes:
        read_bytes: Bytes of files since the last `take`.
        sent_bytes: Bytes to be handed over since then.
    """

    def __init__(self) -> None:
        self.read_bytes = 0
        self.sent_bytes = 0
        self._number = 0
        self._num_samples = 0
        self._seconds = [0.0] * (_IDLE + 1)
        self._stage = _IDLE
        # The stages around the present one.
        self._outer_stages: list[int] = []
        self._outer_clock: StageClock | None = None
        self._last_s = 0.0
        self._cpu_s = 0.0

    def __enter__(self) -> StageClock:
        self._outer_clock = _current.clock
        _current.clock = self
        self._cpu_s = time.thread_time()
        self._last_s = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.clock = self._outer_clock

    def start_task(self) -> None:
        """Begin a task: until a stage is entered, time counts as ``sample``."""
        # An error may have left stages open.
        self._outer_stages.clear()
        self.switch(_SAMPLE)

    def start_collating(self, number: int, num_samples: int) -> None:
        """Begin the stage ``collate`` of a batch, by its number, with this many samples."""
        self._number = number
        self._num_samples = num_samples
        self.switch(_COLLATE)

    def start_sending(self) -> None:
        """Begin the stage ``send``."""
        self.switch(_SEND)

    def rest(self) -> None:
        """End a task: time counts as idle."""
        self.switch(_IDLE)

    def switch(self, stage: int) -> None:
        """Add the time since the last switch to the present stage, and begin another one."""
        now = time.perf_counter()
        self._seconds[self._stage] += now - self._last_s
        self._last_s = now
        self._stage = stage

    def enter_stage(self, stage: int) -> None:
        """Begin a stage inside of the present one."""
        self._outer_stages.append(self._stage)
        self.switch(stage)

    def leave_stage(self) -> None:
        """Return to the stage around the present one."""
        if self._outer_stages:
            self.switch(self._outer_stages.pop())

    def take(self) -> WorkTimes:
        """Return the times since the last call, and begin at zero again: with the stage ``send``."""
        cpu_before_s = self._cpu_s
        self._cpu_s = time.thread_time()
        self.switch(_SEND)
        times = WorkTimes(
            self._number,
            self._num_samples,
            self._last_s,
            self._cpu_s - cpu_before_s,
            self.read_bytes,
            self.sent_bytes,
            *self._seconds,
        )
        self._seconds = [0.0] * (_IDLE + 1)
        self._num_samples = 0
        self.read_bytes = 0
        self.sent_bytes = 0
        return times


class _Current(threading.local):
    clock: StageClock | None = None


_current = _Current()


def note_read(num_bytes: int) -> None:
    """Count bytes of files."""
    clock = _current.clock
    if clock is not None:
        clock.read_bytes += num_bytes


class _StageContext:
    """Context of a stage; one object serves all threads."""

    def __init__(self, stage: Stage) -> None:
        self._number = STAGES.index(stage)

    def __enter__(self) -> None:
        clock = _current.clock
        if clock is not None:
            clock.enter_stage(self._number)

    def __exit__(self, *exc_info: object) -> None:
        clock = _current.clock
        if clock is not None:
            clock.leave_stage()


READING: Final = _StageContext("read")
DECODING: Final = _StageContext("decode")
TRANSFORMING: Final = _StageContext("transform")
SAMPLING: Final = _StageContext("sample")
