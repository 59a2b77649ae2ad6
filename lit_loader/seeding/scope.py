"""A thread's own randomness: torch's draws in this thread come from a generator of its own.

Problem: the generators of torch, numpy and random belong to the process, and threads that make samples at the
same time would take each other's numbers. Mechanism: a ``TorchFunctionMode``, which torch keeps per thread,
passes a ``generator=`` to every function that draws; it is seeded when the first draw of a sample asks for it,
so that a sample that draws nothing costs nothing. The bits are those of seeding the default generator. Torch's
``manual_seed``, ``fork_rng`` and their kin reach the same generator (`lit_loader.seeding.thread_functions`).
Refused: what cannot be told which generator to draw from (dropout, ``torch.ops``). A function compiled by
``torch.compile`` runs as it was written; with ``fullgraph=True`` the compiler raises an error of its own.
Not covered: the process-wide generators of numpy and random, and draws of torch that are made without its Python
functions (scripted code, methods of ``torch.default_generator``), which are looked for in a pool's
first samples (`SharedDraws`); generators of devices other than the CPU, which nothing here keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch.overrides import TorchFunctionMode

from lit_loader.errors import SharedGeneratorError
from lit_loader.seeding.current import current
from lit_loader.seeding.draws import DRAWS, LIKE, draws_unheard, is_listed, on_cpu
from lit_loader.seeding.keys import EpochKeys, Moment

__all__ = ["ThreadScope"]


class _Stream(NamedTuple):
    """Where a scope is: the state of its generator, and the moment that it was seeded for."""

    state: torch.Tensor
    seeded_for: Any


class ThreadScope(TorchFunctionMode):
    """Gives one thread a torch generator of its own, on the CPU, while it is entered.

    Args:
        seed: Seeds the generator for draws at no moment, as a worker process of that seed would draw.

    Runs in: the one thread that makes it; a process forked from there has torch's default generator again.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._seeded_for: Any = None  # the moment that the generator was seeded for

    def __enter__(self) -> Self:
        current.scope = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        current.scope = None

    @staticmethod
    def aim(keys: EpochKeys, moment: Moment, a: int, b: int = 0) -> None:
        """Come to a moment; its draws begin anew."""
        current.moment = (keys, moment, a, b)

    @property
    def generator(self) -> torch.Generator:
        """The thread's generator, seeded if this is the moment's first draw."""
        moment = current.moment
        if moment is not self._seeded_for:
            key = current.key()
            if key is not None:
                self._generator.manual_seed(key.torch)
            self._seeded_for = moment
        return self._generator

    def save(self) -> _Stream:
        """Return where the thread is in its stream."""
        return _Stream(self._generator.get_state(), self._seeded_for)

    def restore(self, saved: _Stream) -> None:
        """Go back there."""
        self._generator.set_state(saved.state)
        self._seeded_for = saved.seeded_for

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, with this thread's generator if it draws and was given none."""
        kwargs = {} if kwargs is None else kwargs
        if not is_listed(func) or current.scope is not self:  # not so in a fork of the thread
            return func(*args, **kwargs)
        if func in DRAWS or func in LIKE:
            return self._draw(func, args, kwargs)
        if draws_unheard(func, args, kwargs):
            raise SharedGeneratorError(
                f"torch's {getattr(func, '__name__', func)} draws from the process-wide generator and cannot be told "
                'otherwise, so worker threads would take each other\'s numbers; use worker_method="multiprocessing", '
                "or draw the mask yourself with torch.rand"
            )
        return func(*args, **kwargs)

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (
            torch.compiler.is_dynamo_compiling()
        ):  # to raise while it traces makes it run the function as it is
            raise SharedGeneratorError(
                "a graph of torch.compile has no place for a worker thread's generator"
            )
        place = next((n for n, value in enumerate(args) if isinstance(value, torch.Generator)), None)
        given = kwargs.get("generator") if place is None else args[place]
        if given is None or given is torch.default_generator:
            if not on_cpu(args, kwargs):
                return func(*args, **kwargs)
            if place is None:
                kwargs = {**kwargs, "generator": self.generator}
            else:
                args = (*args[:place], self.generator, *args[place + 1 :])
        elif given is self._generator:
            self.generator  # noqa: B018  # seeded by being asked for
        return LIKE.get(func, func)(*args, **kwargs)
