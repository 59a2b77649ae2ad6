"""A worker thread's own randomness: torch draws from a generator of the thread, and torch's functions answer for it.

NOTE [Draws]
    Problem: the generators of torch, numpy and random belong to the process, so the draws of threads that make samples
    at the same time would depend on timing. Mechanism: a ``TorchFunctionMode``, which torch keeps per thread, passes a
    ``generator=`` to every function that draws. It is seeded at the first draw of a sample, so that a sample without
    draws costs nothing. The bits are those of a default generator with that seed. Refused: functions that take no
    generator (dropout). A function compiled by ``torch.compile`` runs uncompiled; with ``fullgraph=True`` the compiler
    raises an error of its own.
    Not covered: the process-wide generators of numpy and random, and draws of torch outside of its Python functions
    (``torch.ops``, scripted code, with torch 2.11 code that is compiled by another backend than ``eager``, methods of
    ``torch.default_generator``), which `DrawCheck` looks for in the first samples; generators of devices other than the
    CPU, which have no keys.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode
from torch.utils.data._utils import worker as torch_worker

from lit_loader.errors import SharedGeneratorError
from lit_loader.seeding.generators import WorkerRng, context, worker_key
from lit_loader.seeding.keys import EpochKeys, RngPurpose


def _functions(names: str, *owners: Any) -> frozenset[Any]:
    """Return the functions of these names; a version of torch may lack some."""
    return frozenset(getattr(o, name) for o in owners for name in names.split() if hasattr(o, name))


# tests/seeding/test_draws.py holds both tables against every operator of the installed torch that draws.
TAKES_GENERATOR = _functions(
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ log_normal_ multinomial normal normal_ poisson "
    "rand rand_like randint randint_like randn randn_like random_ randperm uniform_ _sample_dirichlet _standard_gamma",
    torch,
    torch.Tensor,
) | _functions("kaiming_normal_ kaiming_uniform_ normal_ trunc_normal_ uniform_", init)

# Functions that draw and take no generator, each with the arguments that can switch its draws off: their names,
# positions and defaults. A call draws if all of them are true.
TAKES_NO_GENERATOR: dict[Any, tuple[tuple[str, int, Any], ...]] = {
    function: tuple(switches)
    for owner, names, *switches in (
        (functional, "dropout dropout1d dropout2d dropout3d", ("p", 1, 0.5), ("training", 2, True)),
        (functional, "alpha_dropout feature_alpha_dropout", ("p", 1, 0.5), ("training", 2, False)),
        (torch, "dropout dropout_ alpha_dropout alpha_dropout_", ("p", 1, 0.5), ("train", 2, True)),
        (torch, "native_dropout feature_dropout feature_dropout_", ("p", 1, 0.5), ("train", 2, True)),
        (torch, "feature_alpha_dropout feature_alpha_dropout_", ("p", 1, 0.5), ("train", 2, True)),
        (functional, "rrelu rrelu_", ("training", 3, False)),
        (torch, "rrelu rrelu_", ("training", 3, False)),
        (torch._C._nn, "rrelu_with_noise rrelu_with_noise_", ("training", 4, False)),
        (torch, "gru lstm rnn_relu rnn_tanh", ("dropout", 5, 0.0), ("train", 6, False)),
        (functional, "multi_head_attention_forward", ("dropout_p", 10, 0.0), ("training", 13, True)),
        (functional, "scaled_dot_product_attention", ("dropout_p", 4, 0.0)),
        (torch, "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu"),
        (torch, "lobpcg pca_lowrank svd_lowrank"),
        (functional, "gumbel_softmax fractional_max_pool2d fractional_max_pool2d_with_indices"),
        (functional, "fractional_max_pool3d fractional_max_pool3d_with_indices"),
    )
    for function in _functions(names, owner)
}


_LISTED = TAKES_GENERATOR.union(TAKES_NO_GENERATOR)


def _draws(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a function that takes no generator draws."""
    # The weights of an RNN, a list, are the third argument. Packed sequences have their batch sizes as the second one,
    # which shifts the weights and all later arguments by one.
    shift = len(args) > 3 and isinstance(args[3], (list, tuple))
    return all(
        kwargs.get(name, args[place + shift] if len(args) > place + shift else default)
        for name, place, default in TAKES_NO_GENERATOR[function]
    )


def _on_cpu(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws on the CPU: by its ``device=``, else by its first tensor.

    A default device is a setting of the thread that set it, so a worker thread has none.
    """
    device = kwargs.get("device")
    for value in (*args, *kwargs.values()):
        if device is None and isinstance(value, torch.Tensor):
            device = value.device
    return device is None or torch.device(device).type == "cpu"


class ThreadScope(TorchFunctionMode):
    """Gives one thread a torch generator of its own, on the CPU, while it is entered: see NOTE [Draws].

    Args:
        seed: Seeds the generator for draws without a key, as a worker process of that seed would draw.

    Runs in: the one thread that makes it; a process forked from there has torch's default generator again.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        context.seeded_for = None

    def __enter__(self) -> Self:
        context.generator = self._generator
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        context.generator = None

    @staticmethod
    def seed_for(keys: EpochKeys, purpose: RngPurpose, a: int, b: int = 0) -> None:
        """Let the thread's next draws come from the key for a purpose."""
        context.key_parts, context.rng = (keys, purpose, a, b), None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, with this thread's generator if it draws and was given none."""
        kwargs = kwargs or {}
        # Called for every function of torch: nearly all return here. In a fork of the thread there is no generator.
        if func not in _LISTED or context.generator is not self._generator:
            return func(*args, **kwargs)
        if func in TAKES_NO_GENERATOR:
            if _draws(func, args, kwargs):
                raise SharedGeneratorError(
                    f"torch's {getattr(func, '__name__', func)} draws from the process-wide generator that threads "
                    'share; use worker_method="multiprocessing", or draw the mask yourself with torch.rand'
                )
            return func(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            # An error while dynamo traces makes it run the function uncompiled. Compiled by aot_eager, it would not be
            # seeded.
            raise SharedGeneratorError("torch.compile cannot put a worker thread's generator into a graph")
        given = kwargs.get("generator")
        for value in args:
            if isinstance(value, torch.Generator):
                given = value
        if given is self._generator:
            # a dataset may have kept it from another sample: seed it for this one
            context.present_generator()
        elif given in (None, torch.default_generator) and _on_cpu(args, kwargs):
            if given is not None:
                args = tuple(value for value in args if value is not given)
            kwargs = {**kwargs, "generator": context.present_generator()}
        return func(*args, **kwargs)


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

_lock = threading.Lock()
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
