"""torch's ``manual_seed``, ``get_rng_state`` and their kin in worker threads: they speak of the thread's generator.

Problem: a sample that calls ``torch.manual_seed(index)``, or ``fork_rng``, would seed the generators of the whole
process, those of its devices with them, and change nothing for its own draws. Everybody imports these functions by
name, so they can be replaced nowhere. Mechanism: their code objects are exchanged, once, when the first worker
thread starts, for ones that look for a thread's scope first and otherwise do what they did. Never at import.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.random

from lit_loader.seeding.current import current

__all__ = ["speak_for_threads"]

_NAME = "_lit_loader_answer"  # a global of torch's module from then on
_original: dict[str, Callable[..., Any]] = {}


def _answer(name: str, *args: Any) -> Any:
    """Ask the thread's own generator, or torch as it was."""
    scope: Any = current.scope
    if scope is None:
        return _original[name](*args)
    generator: torch.Generator = scope.generator
    return _OWN[name](generator, *args)


_OWN: dict[str, Callable[..., Any]] = {
    "manual_seed": lambda generator, seed: generator.manual_seed(int(seed)),
    "seed": lambda generator: generator.seed(),
    "initial_seed": lambda generator: generator.initial_seed(),
    "get_rng_state": lambda generator: generator.get_state(),
    "set_rng_state": lambda generator, new_state: generator.set_state(new_state) and None,
}

# mypy: disable-error-code="name-defined"


class _Code:
    """Functions of torch's names and parameters, for their code; they run with the globals of torch's module."""

    @staticmethod
    def manual_seed(seed):  # type: ignore[no-untyped-def] # noqa: ANN205, ANN001
        return _lit_loader_answer("manual_seed", seed)  # noqa: F821

    @staticmethod
    def seed():  # type: ignore[no-untyped-def] # noqa: ANN205
        return _lit_loader_answer("seed")  # noqa: F821

    @staticmethod
    def initial_seed():  # type: ignore[no-untyped-def] # noqa: ANN205
        return _lit_loader_answer("initial_seed")  # noqa: F821

    @staticmethod
    def get_rng_state():  # type: ignore[no-untyped-def] # noqa: ANN205
        return _lit_loader_answer("get_rng_state")  # noqa: F821

    @staticmethod
    def set_rng_state(new_state):  # type: ignore[no-untyped-def] # noqa: ANN205, ANN001
        return _lit_loader_answer("set_rng_state", new_state)  # noqa: F821


@cache
def speak_for_threads() -> None:
    """Exchange the code objects; a function that is no plain one is left as it is."""
    setattr(torch.random, _NAME, _answer)
    for name in _OWN:
        function, code = getattr(torch.random, name), getattr(_Code, name).__code__
        if not isinstance(function, FunctionType) or function.__closure__ is not None:
            continue
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        if parameters != code.co_varnames[: code.co_argcount]:
            continue
        _original[name] = FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
        )
        function.__code__ = code
