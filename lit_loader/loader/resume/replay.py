"""Samplers in a loader without a seed: they are resumed by giving them the generators' states of before.

NOTE [Replayed, not keyed]
    Without a seed a sampler draws from torch's default generator, from one of its own, or from those of numpy and
    random, as in torch's loader. To resume at a position, the generators are set to their states from before the
    epoch's first index, the sampler is iterated anew, and the indices up to the position are dropped; then the
    process-wide generators are restored. So the same indices follow, as with torchdata's ``StatefulDataLoader``. The
    dataset's draws are not repeated. Torch's own samplers draw at their first index, from torch's generators alone. A
    user's sampler may draw in ``iter(sampler)``, from any generator; if it does, the states before that call are saved
    and restored there instead. A digest of its indices shows whether they were the same again. On several ranks each
    rank draws for itself, and one state cannot hold the draws of all. So only a sampler that draws nothing or has a
    state of its own can be resumed there.

    As ``generators`` a state holds a dict of these states: "torch" and "own" (those of the sampler's own torch
    generators) as text, "numpy" and "python" as lists with the words as text; None if one was not saved. "before" is
    "iter" or "next": which call they are from before. Between two epochs only the sampler's own are saved.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

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

from lit_loader.engine import LoaderSpec
from lit_loader.errors import ResumeWarning
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.custom_samplers import SamplerPosition, find_stateful, state_or_none
from lit_loader.loader.resume.progress import Progress, ResumePoint
from lit_loader.samplers import OrderSampler
from lit_loader.samplers.custom_ranks import IndexDigest
from lit_loader.seeding import call_uncollected, preserved_generators

_NUM_WORDS = 624  # of a Mersenne twister
_END = object()
# the second seeds a generator of its own by its epoch
_WITHOUT_DRAWS = (SequentialSampler, DistributedSampler)
_OF_TORCH = (*_WITHOUT_DRAWS, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def _text(words: Any) -> str:
    return base64.b64encode(words.tobytes()).decode("ascii")


def _words(text: Any, dtype: str) -> Any:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


def _take_states(own: Sequence[Generator], *, torch_alone: bool) -> dict[str, Any]:
    """Return the present states of the generators that a sampler may draw from, as plain values.

    Args:
        own: The sampler's own torch generators, in the order of `sampler_generators`.
        torch_alone: Whether the states of ``numpy.random`` and ``random`` are left out. That of ``numpy.random`` is
            also left out if the user has set another kind of generator there than the default one.
    """
    numpy = python = None
    if not torch_alone:
        state: Any = np.random.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            text = _text(state["state"]["key"].astype("<u4"))
            numpy = [text, state["state"]["pos"], state["has_gauss"], state["gauss"]]
        _, numbers, gauss = random.getstate()
        python = [_text(np.array(numbers, "<u4")), gauss]
    default = _text(call_uncollected(torch.default_generator.get_state).numpy())
    shown = [_text(generator.get_state().numpy()) for generator in own]
    return {"torch": default, "own": shown, "numpy": numpy, "python": python}


_PROCESS_WIDE = torch.default_generator, np.random, random


def _set_states(states: Any, own: Sequence[Generator], process_wide: Any = _PROCESS_WIDE) -> None:
    """Set generators to states as `_take_states` returns them; other values raise many kinds of errors."""
    default, numpy, python = process_wide
    for generator, text in zip(own, states["own"], strict=True):
        generator.set_state(torch.tensor(_words(text, "u1")))
    if states["torch"] is not None:
        default.set_state(torch.tensor(_words(states["torch"], "u1")))
    if states["numpy"] is not None:
        text, position, has_gauss, gauss = states["numpy"]
        if type(position) is not int or not 0 <= position <= _NUM_WORDS or has_gauss not in (0, 1):
            raise ValueError(f"position={position!r}, has_gauss={has_gauss!r}")  # numpy checks neither
        # left as it is if the user has set another kind of generator there
        if numpy is not np.random or numpy.get_state(legacy=False)["bit_generator"] == "MT19937":
            numpy.set_state(("MT19937", _words(text, "<u4"), position, has_gauss, gauss))
    if states["python"] is not None:
        text, gauss = states["python"]
        words = tuple(_words(text, "<u4").tolist())
        python.setstate((random.getstate()[0], words, None if gauss is None else float(gauss)))


def check_states(states: Any, own: Sequence[Generator]) -> None:
    """Try the ``generators`` of a state on new generators of the same kinds.

    Args:
        states: What a state holds, from an untrusted source.
        own: The sampler's own torch generators.

    Raises:
        ValueError: If the states do not fit the generators.
    """
    if states is None:
        return
    try:
        for before in ("iter", "next"):
            if states[before] is not None:
                tried = [Generator(generator.device) for generator in own]
                others = Generator(), np.random.RandomState(), random.Random()
                _set_states(states[before], tried, others)
    except (LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"generators of a loader's state do not fit the sampler's: {error!r}") from error


def states_between_epochs(spec: LoaderSpec, *, base_seed_drawn: bool) -> dict[str, Any] | None:
    """Return the ``generators`` of an epoch that has not begun, or None if the sampler has no generators of its own.

    Args:
        spec: Of the loader.
        base_seed_drawn: Whether the workers' base seed, which comes from the loader's generator, was drawn already.
    """
    own = sampler_generators(spec)
    if not own:
        return None
    states = {**_take_states(own, torch_alone=True), "torch": None}
    return {"iter": None, "next": states} if base_seed_drawn else {"iter": states, "next": None}


def sampler_generators(spec: LoaderSpec) -> list[Generator]:
    """Return the torch generators in the attribute ``generator`` of a loader and its samplers, each once."""
    given = [unwrapped(spec.batch_sampler), spec.sampler]
    inner = [getattr(sampler, "sampler", None) for sampler in given]
    things = [*given, *inner, spec]
    shown = [getattr(thing, "generator", None) for thing in things]
    return list({id(given): given for given in shown if isinstance(given, Generator)}.values())


def _inner(index_sampler: Any) -> Any:
    given = unwrapped(index_sampler)
    return given.sampler if type(given) is BatchSampler else given


def draws(index_sampler: Any) -> bool:
    """Whether a sampler may draw; torch's ``SequentialSampler`` and ``DistributedSampler`` use no generator's state."""
    return type(_inner(index_sampler)) not in _WITHOUT_DRAWS


class StateRefusedError(ValueError):
    """A sampler's own ``load_state_dict`` raised."""


class ReplayedSampler(Iterator[Any]):
    """The indices or batches of an epoch without a seed: see NOTE [Replayed, not keyed].

    After an error of the sampler ``next()`` may be called again, as in torch's loader.

    Args:
        spec: Of the loader.
        progress: Receives a `SamplerPosition` for each batch of a user's sampler.
        point: Where to resume, with a `SamplerPosition`, or None at the beginning.

    Raises:
        StateRefusedError: If the sampler's ``load_state_dict`` raises.
    """

    def __init__(self, spec: LoaderSpec, progress: Progress, point: ResumePoint | None) -> None:
        self._sampler, self._name = spec.index_sampler, type(spec.custom_sampler).__name__
        self._stateful = stateful = find_stateful(spec)
        self._own, self._progress = sampler_generators(spec), progress
        inner = _inner(self._sampler)
        self._of_torch = type(inner) in _OF_TORCH or isinstance(inner, OrderSampler)
        self._draws = draws(self._sampler)
        self._digest = IndexDigest(kept=not self._of_torch and stateful is None)
        resumed = SamplerPosition() if point is None or point.detail is None else point.detail
        self._resumed: SamplerPosition | None = resumed if point is not None else None
        # of the generators before ``iter(sampler)``, if it draws there, and before its first index
        self._states: dict[str, Any] = resumed.generators or {"iter": None, "next": None}
        self._num_before = 0 if point is None else point.position
        iterated = self._states["iter"]
        if iterated is not None and iterated["torch"] is None:
            _set_states(iterated, self._own)  # the state was saved between two epochs, so a new one begins
            self._resumed = None
        if stateful is not None and resumed.sampler_state is not None:
            try:
                stateful.load_state_dict(copy.deepcopy(resumed.sampler_state))
            except Exception as error:
                raise StateRefusedError(
                    f"{type(stateful).__name__}.load_state_dict() raised {type(error).__name__}: {error}"
                ) from error
            self._num_before = 0
        self._asked = False
        self.restart()

    def restart(self) -> None:
        """Call ``iter(sampler)`` again, as torch does for an iterator over workers."""
        if self._resumed is not None:
            with self._replaced("iter"):
                self._items = iter(self._sampler)
            return
        before = None if self._of_torch else _take_states(self._own, torch_alone=False)
        self._items = iter(self._sampler)
        drew = before is not None and before != _take_states(self._own, torch_alone=False)
        self._states = {"iter": before if drew else None, "next": None}

    def __next__(self) -> Any:
        if self._asked:
            return self._take()
        self._asked = True
        if self._resumed is not None:
            return self._go_on(self._resumed)
        if self._draws:
            self._states["next"] = _take_states(self._own, torch_alone=self._of_torch)
            state = state_or_none(self._stateful)
            self._progress.first = SamplerPosition(sampler_state=state, generators=self._states)
        return self._take()

    def _go_on(self, resumed: SamplerPosition) -> Any:
        """Return the first index of a resumed epoch."""
        self._progress.first = resumed
        with self._replaced("next"):
            for number in range(self._num_before):
                if (item := next(self._items, _END)) is _END:
                    self._warn(
                        f"gave {number} batches, and the state was saved after {self._num_before}: the epoch is over"
                    )
                    raise StopIteration
                self._digest.add(item)
            if self._digest.differs(resumed.digest):
                self._warn(
                    f"gave other indices in the first {self._num_before} batches than when the state was saved: some "
                    "samples of this epoch come twice and others never"
                )
            return self._take()

    def _warn(self, what: str) -> None:
        remedy = "give it a state_dict and a load_state_dict, or give seed= to the loader"
        warnings.warn(f"{self._name} {what}; {remedy}", ResumeWarning, stacklevel=2)

    def _take(self) -> Any:
        item = next(self._items)
        if not self._of_torch:
            self._digest.add(item)
            state, digest = state_or_none(self._stateful), self._digest.hex()
            self._progress.note(SamplerPosition(sampler_state=state, digest=digest, generators=self._states))
        return item

    @contextlib.contextmanager
    def _replaced(self, before: str) -> Iterator[None]:
        """Set the generators to the saved states if these are from before this call, and then restore them.

        The sampler's own generators are not restored: they continue as in the run that was saved.
        """
        states = self._states[before]
        if states is None:
            yield
            return
        with preserved_generators():
            _set_states(states, self._own)
            yield
