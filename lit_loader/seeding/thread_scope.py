"""A worker thread's own randomness: torch draws from a generator of the thread, and torch's functions answer for it.

NOTE [Draws]
    Problem: the generators of torch, numpy and random belong to the process, so the draws of threads that make samples
    at the same time would depend on timing. Mechanism: torch's dispatcher passes every draw, whether Python, C++,
    scripted or compiled code asks for it, to one of the operators that take a generator. Each of them gets a kernel for
    the dispatch key BackendSelect, which comes before those of the devices and which they leave free. In a worker
    thread it passes the thread's generator to the CPU's kernel; anywhere else it passes the call on as it is. So no
    other operator costs more: a ``TorchFunctionMode``, which sees every call of torch in the thread, took 0.3 ms of a
    sample of 0.6 ms. A draw costs 8 us more, in the whole process. The generator is seeded at the first draw of a
    sample, so that a sample without draws costs nothing. The bits are those of a default generator with that seed.
    The kernels stay as long as the process: to remove one that another thread is in would free its code.
    Not covered: the process-wide generators of numpy and random, and the methods of ``torch.default_generator``, which
    `DrawCheck` looks for in the first samples; generators of devices other than the CPU, which have no keys.

NOTE [Functions that answer for threads]
    Problem: in a worker thread ``get_worker_info()`` must return that thread's info, and a sample that calls
    ``torch.manual_seed(index)`` or ``fork_rng`` must seed the thread's generator, not those of the process and its
    devices. torch's functions serve the process alone, and users import them by name, so that it would not help to
    replace an attribute of a module. Mechanism: every worker thread enters `functions_answer_for_threads`. It replaces
    the functions' code objects when the first thread enters, and restores them when the last one leaves. Nothing else
    in torch's modules is changed: the new code imports what it needs. A thread that is running the new code when the
    original is restored can finish it, because this module and its `_original` functions still exist.
    Not covered: a torch whose functions are not plain Python functions; they are not replaced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from torch import Tensor
from torch.library import Library
from torch.utils.data._utils import worker as torch_worker

from lit_loader.seeding.generators import WorkerRng, context, worker_key
from lit_loader.seeding.keys import EpochKeys, RngPurpose

_CPU = torch._C.DispatchKey.CPU
_BEFORE_DEVICES = torch._C.DispatchKey.BackendSelect
_DRAWING_KERNELS = torch._C.DispatchKeySet(_BEFORE_DEVICES)

_lock = threading.Lock()
_library: Any = None


def let_threads_draw() -> None:
    """Let worker threads draw from their own generators, from now on: see NOTE [Draws]."""
    global _library
    with _lock:
        if _library is None:
            library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            for name in drawing_operators():
                packet, _, overload = name.partition(".")
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                kernel = _drawing_kernel(operator.redispatch)
                library.impl(name, kernel, _BEFORE_DEVICES.name, with_keyset=True)
            _library = library  # the kernels live as long as it


def drawing_operators() -> list[str]:
    """Return the names of torch's operators that draw on the CPU; all others that draw call these."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(_CPU.name)
    found = [name.removeprefix("aten::").partition(".") for name in names if name.startswith("aten::")]
    return [
        name + dot + overload
        for name, dot, overload in found
        if any("Generator" in str(a.type) for a in torch._C._get_schema(f"aten::{name}", overload).arguments)
    ]


def _drawing_kernel(redispatch: Callable[..., Any]) -> Callable[..., Any]:
    def draw(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        keys = keys.remove(_BEFORE_DEVICES)
        # Not `has`: a tensor of another device may be drawn into by chances that are on the CPU.
        if context.generator is not None and keys.highestPriorityTypeId() == _CPU:
            # A few operators take it by position.
            by_position = [value for value in args if isinstance(value, torch.Generator)]
            given: Any = by_position[0] if by_position else kwargs.get("generator")
            # The thread's own one, which a dataset may have kept from another sample, is seeded for this one.
            # By address: torch's dispatcher wraps the default generator in an object of another identity.
            own: Any = (torch.default_generator, context.generator)
            if given is None or given._cdata in [generator._cdata for generator in own]:
                if by_position:
                    args = tuple(value for value in args if value is not given)
                kwargs["generator"] = context.present_generator()
        return redispatch(keys, *args, **kwargs)

    return draw


def rand(*size: int) -> Tensor:
    """Return what ``torch.rand`` draws, on the CPU.

    Without the kernel of NOTE [Draws], which takes the interpreter lock two times more: threads that draw twice a
    sample made 1,530 samples a second with it, and 1,660 without.
    """
    if _library is None:
        return torch.rand(size, device="cpu")
    drawn = torch.empty(size, device="cpu")
    with torch._C._ExcludeDispatchKeyGuard(_DRAWING_KERNELS):
        return drawn.uniform_(generator=context.present_generator())


class ThreadScope:
    """Gives one thread a torch generator of its own, on the CPU, while it is entered: see NOTE [Draws].

    Args:
        seed: Seeds the generator for draws without a key, as a worker process of that seed would draw.

    Runs in: the one thread that makes it; a process forked from there has torch's default generator again.
    """

    def __init__(self, seed: int) -> None:
        let_threads_draw()
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        context.seeded_for = None

    def __enter__(self) -> Self:
        context.generator = self._generator
        return self

    def __exit__(self, *exc_info: object) -> None:
        context.generator = None

    @staticmethod
    def seed_for(keys: EpochKeys, purpose: RngPurpose, a: int, b: int = 0) -> None:
        """Let the thread's next draws come from the key for a purpose."""
        context.key_parts, context.rng = (keys, purpose, a, b), None


# Copies of torch's functions with their original code, by name, for threads that are not workers.
_original: dict[str, FunctionType] = {}


# The new code of all of torch's functions. It runs with the globals of torch's module, so it imports what it needs, and
# the name of the code tells which function is called.
def _new_function(*args: Any, **kwargs: Any) -> Any:
    import sys

    from lit_loader.seeding.thread_scope import _answer

    return _answer(sys._getframe().f_code.co_name, *args, **kwargs)


def _answer(name: str, *args: Any, **kwargs: Any) -> Any:
    """Do for the calling thread what a function of torch does, or call it if the thread has nothing of its own."""
    if name == "get_worker_info":
        return context.worker_info or _original[name]()
    generator = context.present_generator()
    if generator is None:
        return _original[name](*args, **kwargs)
    given = (*args, *kwargs.values())
    if name == "manual_seed":
        given = tuple(map(int, given))  # torch's function takes numpy's numbers too
    return getattr(generator, _METHODS.get(name, name))(*given)


_METHODS = {"get_rng_state": "get_state", "set_rng_state": "set_state"}
_FUNCTIONS: tuple[Any, ...] = (
    *(torch.random.manual_seed, torch.random.seed, torch.random.initial_seed),
    *(torch.random.get_rng_state, torch.random.set_rng_state, torch_worker.get_worker_info),
)

_inside: set[object] = set()  # one object for each thread that has entered
_replaced: list[tuple[FunctionType, CodeType, CodeType]] = []  # function, its original code, its new code


@contextmanager
def functions_answer_for_threads() -> Iterator[None]:
    """Let torch's functions return and seed what belongs to the calling thread, within the context.

    That is the generator of its `ThreadScope` and its `set_worker_info`: see NOTE [Functions that answer for threads].

    Runs in: a worker thread, from its beginning to its end.
    """
    token = object()
    with _lock:
        _inside.add(token)
        if not _replaced:
            _replace()
    try:
        yield
    finally:
        with _lock:
            _inside.discard(token)  # in a fork of this thread the set was cleared
            if not _inside:
                _restore()


def set_worker_info(worker_id: int, num_workers: int, *, base_seed: int, dataset: Any) -> None:
    """Let ``get_worker_info()`` return this worker's info in the calling thread."""
    key = worker_key(base_seed, worker_id)
    fields = {"id": worker_id, "num_workers": num_workers, "seed": key.torch, "dataset": dataset}
    if "rng" in getattr(torch_worker.WorkerInfo, "__dataclass_fields__", ()):  # not before torch 2.15
        fields |= {"rng": WorkerRng(key), "worker_method": "thread"}
    context.worker_info = torch_worker.WorkerInfo(**fields)


def _replace() -> None:
    for function in _FUNCTIONS:
        if isinstance(function, FunctionType) and function.__closure__ is None:
            code, name = function.__code__, function.__name__
            new = _new_function.__code__.replace(co_name=name)
            _original[name] = FunctionType(code, function.__globals__, name, function.__defaults__)
            # before the next line, so that a fork in between restores it
            _replaced.append((function, code, new))
            function.__code__ = new


def _restore() -> None:
    while _replaced:
        function, code, new = _replaced[-1]
        if function.__code__ is new:  # other code may have replaced it since
            function.__code__ = code
        _replaced.pop()


def _after_fork() -> None:
    """Restore torch's own functions in a fork, which has no worker threads."""
    global _lock
    _lock = threading.Lock()  # a thread that does not exist here may have held it
    _inside.clear()
    _restore()
    context.generator = context.worker_info = None  # the forking thread may have been a worker


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
