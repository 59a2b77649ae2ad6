"""Epochs of a loader without a seed: every draw is torch's, and an epoch resumes as torchdata's loader does.

NOTE [Resuming torch's samplers]
    Without a seed a sampler draws from torch's default generator or from one of its own. One of torch's own samplers is
    resumed by the state of this generator before the epoch's first index: the state is set again, the sampler is
    iterated anew, and the indices up to the position are dropped. So the same indices follow. The default generator is
    restored afterwards; a sampler's own continues from there. A sampler with a ``state_dict`` is resumed by that. Any
    other sampler is iterated anew, and its first indices are dropped by count, on the assumption that it gives the same
    ones again. The dataset's draws are not repeated. On several ranks each rank draws for itself, and one state cannot
    hold the draws of all, so only a sampler that draws nothing or has a state of its own can be resumed there.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Generator
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lit_loader.engine import LoaderSpec, Task, plan_stream
from lit_loader.errors import ResumeWarning
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.epochs import EpochPlan, EpochState
from lit_loader.loader.resume.progress import Progress, ResumePoint
from lit_loader.loader.resume.state import find_stateful, length_of, saved_sampler_state, state_or_none
from lit_loader.samplers import OrderSampler
from lit_loader.seeding import call_uncollected, preserved_generators

_END = object()
# DistributedSampler seeds a generator of its own by its epoch.
_SAMPLERS_WITHOUT_DRAWS = (SequentialSampler, DistributedSampler)
_SAMPLERS_WITH_DRAWS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class TorchPosition(NamedTuple):
    """The detail of a `ResumePoint` of a loader without a seed.

    Attributes:
        sampler_state: The sampler's own state there, or None if it has none.
        generator: The state of the generator of a sampler of torch's before the epoch's first index, as text, or None.
        base_seed_drawn: False if that state is from before the workers' base seed was drawn, perhaps from the same
            generator.
    """

    sampler_state: Any = None
    generator: str | None = None
    base_seed_drawn: bool = True


class TorchEpochs(EpochState[LoaderSpec]):
    """The epochs of a loader without a seed.

    As in torch's loader, ``iter(loader)`` begins an epoch: it calls ``iter(sampler)`` and draws a base seed, from which
    worker w is seeded with base seed + w.
    """

    begins_at_iter: ClassVar[bool] = True

    # -- plans ----------------------------------------------------------------------------------------------

    def claim(self, spec: LoaderSpec) -> tuple[Progress, ResumePoint | None]:
        """Begin the next epoch, with the sampler's own state loaded; see `EpochState.claim`."""
        progress, point = super().claim(spec)
        stateful = find_stateful(spec)
        if spec.is_iterable or stateful is None or point is None or point.detail.sampler_state is None:
            return progress, point
        try:
            stateful.load_state_dict(copy.deepcopy(point.detail.sampler_state))
        except Exception as error:
            # A state never prevents an epoch here: torch's loader has none.
            name = type(stateful).__name__
            warnings.warn(
                f"the epoch starts over: {name}.load_state_dict() raised {type(error).__name__}: {error}",
                ResumeWarning,
                stacklevel=4,
            )
            self.unclaim(progress, None)
            return super().claim(spec)
        except BaseException:
            # After Ctrl-C the next iterator resumes from this point.
            self.unclaim(progress, point)
            raise
        return progress, point

    def plan(self, spec: LoaderSpec, progress: Progress, point: ResumePoint | None, *, new_iterator: bool) -> EpochPlan:
        """Return how an epoch that was claimed is started; see `EpochState.plan`."""
        if spec.is_iterable:
            position = None if point is None else point.detail
            tasks = plan_stream(spec.index_sampler, None, places=() if position is None else position.places)
            base_seed = _draw_base_seed(spec) if new_iterator else 0
            # Torch calls iter(dataset) at once. A state must be loaded before, and the first task carries it.
            return EpochPlan(
                tasks, spec.fetch, keyed=False, base_seed=base_seed, iterate=point is None, position=position
            )
        indices = TorchIndices(spec, progress, point)
        # Torch draws one for each iterator, or one for an iterator over persistent workers.
        base_seed = _draw_base_seed(spec) if new_iterator else 0
        # Unlike a generator, `map` continues after a sampler's error, as torch's loader does.
        first = 0 if point is None else point.position
        tasks = map(lambda index, number: Task(index, number=number), indices, count(first))
        return EpochPlan(
            tasks,
            spec.fetch,
            keyed=False,
            base_seed=base_seed,
            # Torch's iterator over workers calls iter(sampler) twice, the second time after it has started them.
            on_workers_started=indices.restart if new_iterator else None,
        )

    def _count_batches(self, spec: LoaderSpec) -> int | None:
        # Torch's loader does not call ``len``, so it is asked only where bad samples are counted.
        return None if spec.fetch.on_bad_sample == "raise" else length_of(spec.index_sampler)

    def _is_complete(self, spec: LoaderSpec, position: int) -> bool:
        # Only when a state is saved, because torch's loader does not call ``len`` while it is iterated.
        return position == length_of(spec.index_sampler)

    # -- state ----------------------------------------------------------------------------------------------

    def _may_ignore(self, spec: LoaderSpec, state: Any) -> bool:
        # Torch's loader begins the epoch anew, so a run that works with it must not fail here.
        return True

    def _why_not_resumable(self, spec: LoaderSpec) -> str | None:
        reason = super()._why_not_resumable(spec)
        if reason is not None or spec.world_size == 1 or spec.is_iterable or find_stateful(spec) is not None:
            return reason
        if type(_inner(spec.index_sampler)) in _SAMPLERS_WITHOUT_DRAWS:
            return None
        return "without seed= each rank draws for itself, and a state holds the draws of one; give a seed"

    def _kind_without_state(self, spec: LoaderSpec) -> str:
        # These draw at their first index alone, and from one generator of torch's that is known.
        sampler = _inner(spec.index_sampler)
        is_known = type(sampler) in (*_SAMPLERS_WITHOUT_DRAWS, *_SAMPLERS_WITH_DRAWS)
        return "generator" if is_known or isinstance(sampler, OrderSampler) else "count"

    def _sampler_fields(self, spec: LoaderSpec, point: ResumePoint, *, has_begun: bool) -> dict[str, Any]:
        detail = point.detail or TorchPosition()
        stateful = find_stateful(spec)
        if stateful is not None:
            sampler_state = saved_sampler_state(stateful, detail.sampler_state, point.position)
            return {"samples": 0, "sampler_state": sampler_state, "start": None}
        if self._kind_without_state(spec) == "count":
            return {}
        generator = _find_generator(spec)
        if detail.generator is not None or generator is None or generator is torch.default_generator:
            return {"generator": detail.generator, "base_seed_drawn": detail.base_seed_drawn}
        # The next epoch follows from the present state of the sampler's own generator. Torch draws one base seed for an
        # iterator over persistent workers, before its first epoch.
        is_drawn = has_begun or (self._progress is not None and spec.keeps_workers)
        return {"generator": _state_text(generator), "base_seed_drawn": is_drawn}

    def _sampler_detail(self, spec: LoaderSpec, state: dict[str, Any]) -> TorchPosition:
        text = state.get("generator")
        generator = _find_generator(spec)
        if text is not None:
            try:
                # Try it on another generator of the same kind: a state is from an untrusted source.
                _set_state(Generator("cpu" if generator is None else generator.device), text)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"generator of a loader's state does not fit the sampler's: {error!r}") from error
        return TorchPosition(state.get("sampler_state"), text, state.get("base_seed_drawn", True))

    def _sampler_notice(self, state: dict[str, Any]) -> str | None:
        text = f"without seed= this loader resumes after batch {state['position']} of epoch {state['epoch']} as "
        if state["kind"] == "count":
            return (
                f"{text}torchdata's does: {state['sampler']} has no state_dict, so it is iterated anew and its first "
                f"{state['position']} batches are dropped, on the assumption that it gives the same indices again"
            )
        return (
            f"{text}torchdata's does: the same indices follow, but the dataset draws anew; give seed= for the same bits"
        )


class TorchIndices(Iterator[Any]):
    """The indices or batches of an epoch, from a point on: see NOTE [Resuming torch's samplers].

    After an error of the sampler ``next()`` may be called again, as in torch's loader.

    Args:
        spec: The loader's settings.
        progress: Receives a `TorchPosition` for the first batch, and for each batch of a sampler with a state.
        point: Where to resume, with a `TorchPosition`, or None at the beginning. A sampler's own state is loaded.
    """

    def __init__(self, spec: LoaderSpec, progress: Progress, point: ResumePoint | None) -> None:
        self._sampler = spec.index_sampler
        self._name = type(spec.custom_sampler).__name__
        self._stateful = find_stateful(spec)
        self._generator = _find_generator(spec)
        self._progress = progress
        self._position = TorchPosition() if point is None else point.detail
        self._num_dropped = 0 if point is None or self._stateful is not None else point.position
        if self._position.generator is not None and not self._position.base_seed_drawn:
            # Saved between two epochs: the base seed, drawn next, may be taken from the same generator.
            if self._generator is not None:
                _set_state(self._generator, self._position.generator)
            self._position = TorchPosition()
        self._has_begun = False
        self.restart()

    def restart(self) -> None:
        """Call ``iter(sampler)`` again, as torch does for an iterator over workers."""
        self._items = iter(self._sampler)

    def __next__(self) -> Any:
        if self._has_begun:
            return self._take()
        self._has_begun = True
        if self._position.sampler_state is not None:
            # Many samplers apply a loaded state only at their first index, so their state is not asked for here.
            self._progress.first = self._position
            return self._take_first()
        generator = self._generator
        saved_text = self._position.generator
        if generator is None or saved_text is None:
            text = None if generator is None else _state_text(generator)
            self._progress.first = TorchPosition(state_or_none(self._stateful), text)
            return self._take_first()
        self._progress.first = self._position
        # The model's draws must not change because a sampler was resumed.
        is_default = generator is torch.default_generator
        with preserved_generators() if is_default else contextlib.nullcontext():
            _set_state(generator, saved_text)
            return self._take_first()

    def _take_first(self) -> Any:
        for number in range(self._num_dropped):
            if next(self._items, _END) is _END:
                warnings.warn(
                    f"{self._name} gave {number} batches, and the state was saved after {self._num_dropped}: the epoch "
                    "is over; resume with the sampler that it was saved with",
                    ResumeWarning,
                    stacklevel=2,
                )
                raise StopIteration
        return self._take()

    def _take(self) -> Any:
        item = next(self._items)
        if self._stateful is not None:
            self._progress.note(TorchPosition(state_or_none(self._stateful)))
        return item


def _inner(index_sampler: Any) -> Any:
    """Return the sampler that a plain batch sampler takes its indices from, or the argument."""
    batches = unwrapped(index_sampler)
    return batches.sampler if type(batches) is BatchSampler else batches


def _find_generator(spec: LoaderSpec) -> Generator | None:
    """Return the generator that a sampler of torch's draws from, or None if it draws nothing or is another one."""
    sampler = _inner(spec.index_sampler)
    if type(sampler) not in _SAMPLERS_WITH_DRAWS and not isinstance(sampler, OrderSampler):
        return None
    generator = getattr(sampler, "generator", None)
    return torch.default_generator if generator is None else generator


def _state_text(generator: Generator) -> str:
    # A garbage collection meanwhile may run a finalizer that draws.
    state = call_uncollected(generator.get_state)
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _set_state(generator: Generator, text: str) -> None:
    # An array over bytes is read-only, and torch warns of tensors that share such memory: `torch.tensor` copies it.
    state = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    generator.set_state(torch.tensor(state))


def _draw_base_seed(spec: LoaderSpec) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=spec.generator).item())
