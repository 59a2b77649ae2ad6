"""torch's functions that answer for the worker thread that calls them, while there are worker threads.

Problem: in a worker thread ``get_worker_info()`` must return that thread's info, and a sample that calls
``torch.manual_seed(index)`` or ``fork_rng`` must seed the thread's generator, not those of the process and its devices.
torch's functions know the process only, and users import them by name, so no attribute of a module can be replaced.

Mechanism: `functions_answer_for_threads`, which each worker thread enters, exchanges the code objects of the functions
when the first thread enters, and puts the original ones back when the last one leaves. Nothing else of torch's modules
is touched: the exchanged code imports what it needs. A user's thread that is inside of an exchanged function when the
original code comes back finishes it: this module and its `_original` functions stay.

Not covered: a torch whose functions are no plain Python functions of these parameters; they are left as they are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.random
from torch.utils.data._utils import worker as torch_worker

from lit_loader.seeding.current import current

__all__ = ["functions_answer_for_threads", "set_worker_info"]

# Copies of torch's functions with their original code: what a thread without a scope or an info gets.
_original: dict[str, Callable[..., Any]] = {}


# The replacements. Only their code is used: it runs with the globals of torch's module, so each imports what it needs.
def _manual_seed(seed: Any) -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    scope = current.scope
    return _original["manual_seed"](seed) if scope is None else scope.generator.manual_seed(int(seed))


def _seed() -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    scope = current.scope
    return _original["seed"]() if scope is None else scope.generator.seed()


def _initial_seed() -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    scope = current.scope
    return _original["initial_seed"]() if scope is None else scope.generator.initial_seed()


def _get_rng_state() -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    scope = current.scope
    return _original["get_rng_state"]() if scope is None else scope.generator.get_state()


def _set_rng_state(new_state: Any) -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    scope = current.scope
    if scope is None:
        _original["set_rng_state"](new_state)
    else:
        scope.generator.set_state(new_state)


def _get_worker_info() -> Any:
    from lit_loader.seeding.current import current
    from lit_loader.seeding.thread_functions import _original

    return current.worker_info or _original["get_worker_info"]()


_PAIRS: tuple[tuple[Any, Any], ...] = (  # functions of torch, and whose code each has meanwhile
    (torch.random.manual_seed, _manual_seed),
    (torch.random.seed, _seed),
    (torch.random.initial_seed, _initial_seed),
    (torch.random.get_rng_state, _get_rng_state),
    (torch.random.set_rng_state, _set_rng_state),
    (torch_worker.get_worker_info, _get_worker_info),
)

_lock = threading.Lock()
_inside: set[object] = set()  # one object for each thread that has entered
_exchanged: list[
    tuple[FunctionType, CodeType, CodeType]
] = []  # function, its original code, the replacement's


@contextmanager
def functions_answer_for_threads() -> Iterator[None]:
    """Let torch's functions answer for the calling thread, by `ThreadScope` and `set_worker_info`, while it is in here.

    Runs in: a worker thread, around all that it does.
    """
    _restore_in_forks()
    token = object()
    with _lock:
        _inside.add(token)
        if not _exchanged:
            _exchange()
    try:
        yield
    finally:
        with _lock:
            _inside.discard(token)  # not there in a fork of this thread
            if not _inside:
                _restore()


def set_worker_info(**fields: Any) -> None:
    """Let ``get_worker_info()`` answer with these fields in the calling thread; those that torch lacks are left out.

    Args:
        fields: ``id``, ``num_workers``, ``seed``, ``dataset``, ``rng``, ``worker_method``.
    """
    known = getattr(torch_worker.WorkerInfo, "__dataclass_fields__", None)
    if known is None:  # earlier versions take any keyword
        known = dict.fromkeys(("id", "num_workers", "seed", "dataset"))
    info: Any = torch_worker.WorkerInfo(**{name: value for name, value in fields.items() if name in known})
    current.worker_info = info


def _exchange() -> None:
    for function, replacement in _PAIRS:
        if not isinstance(function, FunctionType) or function.__closure__ is not None:
            continue
        code, new = function.__code__, replacement.__code__
        if code.co_varnames[: code.co_argcount] != new.co_varnames[: new.co_argcount]:
            continue
        copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        _original[function.__name__] = copy
        _exchanged.append((function, code, new))  # first: a fork between the two lines finds it
        function.__code__ = new


def _restore() -> None:
    while _exchanged:
        function, code, new = _exchanged[-1]
        if function.__code__ is new:  # else somebody else has exchanged it since
            function.__code__ = code
        _exchanged.pop()


@cache
def _restore_in_forks() -> None:
    """Have every fork of this process begin with torch's own functions: no worker thread comes along."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not here may have held it
    _inside.clear()
    _restore()
    current.scope = current.worker_info = None  # the forking thread may have been a worker
