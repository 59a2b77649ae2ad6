"""Samplers in a loader without a seed: they are resumed by giving them the generators' states of before.

NOTE [Replayed, not keyed]
    Without a seed a sampler draws from torch's default generator, from one of its own, or from those of numpy and
    random, as in torch's loader. To resume at a position, the generators are set to their states from before the
    epoch's first index, the sampler is iterated anew, and the indices up to the position are dropped; then the
    process-wide generators are restored. So the same indices follow, as with torchdata's ``StatefulDataLoader``. The
    dataset's draws are not repeated. Torch's own samplers draw at their first index, from torch's generators alone. A
    user's sampler may draw in ``iter(sampler)``, from any generator, so the states before that call are saved too. A
    digest of its indices shows whether they were the same again. On several ranks each rank draws for itself, and one
    state cannot hold the draws of all. So only a sampler that draws nothing or has a state of its own can be resumed
    there.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
from lit_loader.lightning_compat import unwrapped
from lit_loader.resume.custom_samplers import SamplerPosition, find_stateful, state_or_none
from lit_loader.resume.progress import Progress, ResumePoint
from lit_loader.samplers import OrderSampler
from lit_loader.samplers.custom_ranks import IndexDigest

_NUM_WORDS = 624  # of a Mersenne twister
_END = object()
# the second seeds a generator of its own by its epoch
_WITHOUT_DRAWS = (SequentialSampler, DistributedSampler)
_OF_TORCH = (*_WITHOUT_DRAWS, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class GeneratorStates(NamedTuple):
    """States of the generators that a sampler may draw from.

    Attributes:
        torch: Of torch's default generator, uint8, or None if it was not saved.
        own: Of the sampler's own torch generators, in the order of `sampler_generators`.
        numpy: Of ``numpy.random``, or None if it was not saved.
        python: Of ``random``, or None if it was not saved.
    """

    torch: torch.Tensor | None
    own: tuple[torch.Tensor, ...]
    numpy: Any = None
    python: Any = None

    @classmethod
    def now(cls, own: Sequence[Generator], *, torch_alone: bool) -> GeneratorStates:
        """Return the present states: with ``torch_alone`` only torch's, else numpy's if it has its default kind."""
        states = torch.default_generator.get_state(), tuple(generator.get_state() for generator in own)
        if torch_alone:
            return cls(*states)
        return cls(*states, np.random.get_state() if _has_twister() else None, random.getstate())

    def restore(self, own: Sequence[Generator]) -> None:
        """Set the generators to these states, which `check` has accepted."""
        for generator, state in zip(own, self.own, strict=False):
            generator.set_state(state)
        if self.torch is not None:
            torch.default_generator.set_state(self.torch)
        if self.numpy is not None and _has_twister():
            np.random.set_state(self.numpy)
        if self.python is not None:
            random.setstate(self.python)

    def check(self, own: Sequence[Generator]) -> None:
        """Try the states on new generators of the same kinds.

        Raises:
            ValueError: If there are fewer or more than generators, or one does not fit its generator.
        """
        try:
            for generator, state in zip(own, self.own, strict=True):
                Generator(generator.device).set_state(state)
            if self.torch is not None:
                Generator().set_state(self.torch)
            if self.numpy is not None:
                np.random.RandomState().set_state(self.numpy)
            if self.python is not None:
                random.Random().setstate(self.python)
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"the state of a generator does not fit: {error}") from error

    def fields(self) -> dict[str, Any]:
        """Return the states as plain values."""
        numpy = None
        if self.numpy is not None:
            _, keys, position, has_gauss, gauss = self.numpy
            numpy = [_text(np.asarray(keys, "<u4").tobytes()), int(position), int(has_gauss), float(gauss)]
        python = None
        if self.python is not None:
            _, words, gauss = self.python
            python = [_text(np.asarray(words, "<u4").tobytes()), gauss]
        return {
            "torch": None if self.torch is None else _text(self.torch.numpy().tobytes()),
            "own": [_text(state.numpy().tobytes()) for state in self.own],
            "numpy": numpy,
            "python": python,
        }

    @classmethod
    def of(cls, fields: Any) -> GeneratorStates:
        """Return the states in plain values as `fields` returns them.

        Raises:
            ValueError: If the values are not that.
        """
        try:
            numpy = python = None
            if fields["numpy"] is not None:
                keys, position, has_gauss, gauss = fields["numpy"]
                if type(position) is not int or not 0 <= position <= _NUM_WORDS or has_gauss not in (0, 1):
                    raise ValueError(
                        f"position={position!r}, has_gauss={has_gauss!r}"
                    )  # numpy checks neither
                numpy = ("MT19937", np.frombuffer(_bytes(keys), "<u4"), position, has_gauss, float(gauss))
            if fields["python"] is not None:
                words, gauss = fields["python"]
                gauss = None if gauss is None else float(gauss)
                python = (random.getstate()[0], tuple(np.frombuffer(_bytes(words), "<u4").tolist()), gauss)
            default = None if fields["torch"] is None else _tensor(fields["torch"])
            return cls(default, tuple(map(_tensor, fields["own"])), numpy, python)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{error!r} in the states of the generators") from error


def _has_twister() -> bool:
    """Whether ``numpy.random`` has its default kind of generator; a user may have set another one."""
    state: Any = np.random.get_state(legacy=False)
    return bool(state["bit_generator"] == "MT19937")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: Any) -> bytes:
    if type(text) is not str:
        raise TypeError(f"base64 text is a str, got {type(text).__name__}")
    return base64.b64decode(text, validate=True)


def _tensor(text: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8)


class SamplerStart(NamedTuple):
    """States of the generators when an epoch's sampler began.

    Attributes:
        iterated: Before ``iter(sampler)``, or None if that draws nothing. Between two epochs it holds the states of
            the sampler's own generators, without that of torch's default generator.
        asked: Before the first index, or None if there was none yet.
    """

    iterated: GeneratorStates | None = None
    asked: GeneratorStates | None = None


def start_fields(start: SamplerStart | None) -> dict[str, Any] | None:
    """Return a start as plain values."""
    if start is None:
        return None
    return {name: None if states is None else states.fields() for name, states in start._asdict().items()}


def check_start(fields: Any, own: Sequence[Generator]) -> SamplerStart | None:
    """Return the start in plain values as `start_fields` returns them.

    Args:
        fields: The values, from an untrusted source.
        own: The sampler's own torch generators.

    Raises:
        ValueError: If the values are not that, or do not fit the generators.
    """
    if fields is None:
        return None
    if type(fields) is not dict or set(fields) != set(SamplerStart._fields):
        raise ValueError(
            f"generators={str(fields)[:200]!r} of a loader's state should be states of generators"
        )
    start = SamplerStart(
        **{name: None if given is None else GeneratorStates.of(given) for name, given in fields.items()}
    )
    for states in start:
        if states is not None:
            states.check(own)
    return start


def own_start(own: Sequence[Generator], *, base_seed_drawn: bool) -> SamplerStart | None:
    """Return the start of an epoch that has not begun, or None if the sampler has no generators of its own.

    Args:
        own: The sampler's own torch generators.
        base_seed_drawn: Whether the workers' base seed, which comes from the loader's generator, was drawn already.
    """
    if not own:
        return None
    states = GeneratorStates(None, tuple(generator.get_state() for generator in own))
    return SamplerStart(asked=states) if base_seed_drawn else SamplerStart(iterated=states)


def sampler_generators(spec: LoaderSpec) -> list[Generator]:
    """Return the torch generators in the attribute ``generator`` of a loader and its samplers, each once."""
    given = [unwrapped(spec.batch_sampler), spec.sampler]
    inner = [getattr(sampler, "sampler", None) for sampler in given]
    things = [*given, *inner, spec]
    shown = [getattr(thing, "generator", None) for thing in things]
    found: list[Generator] = []
    for generator in shown:
        if isinstance(generator, Generator) and not any(generator is other for other in found):
            found.append(generator)
    return found


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
        self._digest = None if self._of_torch or stateful is not None else IndexDigest()
        detail = SamplerPosition() if point is None or point.detail is None else point.detail
        self._resumed: SamplerPosition | None = detail if point is not None else None
        self._start: SamplerStart = detail.generators or SamplerStart()
        self._num_before = 0 if point is None else point.position
        iterated, asked = self._start
        if iterated is not None and iterated.torch is None and asked is None:
            iterated.restore(self._own)  # the state was saved between two epochs, so a new one begins
            self._resumed, self._start = None, SamplerStart()
        if stateful is not None and detail.state is not None:
            try:
                stateful.load_state_dict(copy.deepcopy(detail.state))
            except Exception as error:
                raise StateRefusedError(
                    f"{type(stateful).__name__}.load_state_dict() raised {type(error).__name__}: {error}"
                ) from error
            self._num_before = 0
        self._asked = False
        self.restart()

    def restart(self) -> None:
        """Call ``iter(sampler)`` again, as torch does for an iterator over workers."""
        if self._of_torch:
            self._items = iter(self._sampler)
        elif self._resumed is not None:
            with _replaced(self._start.iterated, self._own):
                self._items = iter(self._sampler)
        else:
            before = GeneratorStates.now(self._own, torch_alone=False)
            self._items = iter(self._sampler)
            drew = before.fields() != GeneratorStates.now(self._own, torch_alone=False).fields()
            self._start = SamplerStart(iterated=before if drew else None)

    def __next__(self) -> Any:
        if self._asked:
            return self._take()
        self._asked = True
        if self._resumed is not None:
            return self._go_on(self._resumed)
        if self._draws:
            asked = GeneratorStates.now(self._own, torch_alone=self._of_torch)
            self._start = self._start._replace(asked=asked)
            beginning = SamplerPosition(state=state_or_none(self._stateful), generators=self._start)
            self._progress.begin(beginning)
        return self._take()

    def _go_on(self, resumed: SamplerPosition) -> Any:
        """Return the first index of a resumed epoch."""
        self._progress.begin(resumed)
        with _replaced(self._start.asked, self._own):
            for number in range(self._num_before):
                if (item := next(self._items, _END)) is _END:
                    self._warn(
                        f"gave {number} batches, and the state was saved after {self._num_before}: the epoch is over"
                    )
                    raise StopIteration
                self._add_to_digest(item)
            self._warn_of_others(resumed)
            return self._take()

    def _warn_of_others(self, resumed: SamplerPosition) -> None:
        expected = resumed.digest
        if expected is None or self._digest is None or self._digest.hex() in (None, expected):
            return
        self._warn(
            f"gave other indices in the first {self._num_before} batches than when the state was saved: some samples "
            "of this epoch come twice and others never"
        )

    def _warn(self, what: str) -> None:
        remedy = "give it a state_dict and a load_state_dict, or give seed= to the loader"
        warnings.warn(f"{self._name} {what}; {remedy}", ResumeWarning, stacklevel=2)

    def _take(self) -> Any:
        item = next(self._items)
        if not self._of_torch:
            self._add_to_digest(item)
            digest = None if self._digest is None else self._digest.hex()
            detail = SamplerPosition(
                state=state_or_none(self._stateful), digest=digest, generators=self._start
            )
            self._progress.note(detail)
        return item

    def _add_to_digest(self, item: Any) -> None:
        if self._digest is not None:
            self._digest.add(item)


@contextlib.contextmanager
def _replaced(states: GeneratorStates | None, own: Sequence[Generator]) -> Iterator[None]:
    """Set the generators to these states, and restore the process-wide ones afterwards.

    The sampler's own generators are not restored: they continue as in the run that was saved.
    """
    if states is None:
        yield
        return
    outer = GeneratorStates.now((), torch_alone=False)
    try:
        states.restore(own)
        yield
    finally:
        outer.restore(())
