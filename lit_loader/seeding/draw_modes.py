"""Modes that let torch draw from a generator of the calling thread.

NOTE [Draws in worker threads]
    Problem: torch's default generator belongs to the process, so the draws of threads that make samples at the same
    time would depend on timing. Mechanism: a ``TorchFunctionMode`` sees every torch function that Python code of its
    thread calls, and nothing else in the process changes. To a function that takes ``generator=`` it passes the
    thread's generator. A function that draws inside (dropout, an LSTM) runs under a ``TorchDispatchMode``, which sees
    the operators that torch calls from C++ and passes the generator to those. The second mode alone would do, but it
    makes every operator 6 us slower; the first makes every torch call 1 us slower.
    Not covered: scripted functions, ``torch.ops``, kernels without a generator argument (``torch.native_dropout``),
    functions about the default generator such as ``torch.manual_seed``, and devices other than the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lit_loader.seeding.generators import context

# Functions of torch that take ``generator=``.
_FACTORIES: Final = ("rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like")
_DISTRIBUTIONS: Final = ("bernoulli", "binomial", "multinomial", "poisson", "_sample_dirichlet", "_standard_gamma")
_ACTIVATIONS: Final = ("rrelu", "rrelu_")
# Methods of tensors that take it.
_METHODS: Final = ("bernoulli", "multinomial", "bernoulli_", "normal_", "random_", "uniform_")
_RARE_METHODS: Final = ("cauchy_", "exponential_", "geometric_", "log_normal_")
# Functions of ``torch.nn.init`` that a mode sees as a whole; the others call methods of tensors.
_INITIALIZERS: Final = ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_")
# Functions without ``generator=``: their draws are operators that only a dispatch mode sees.
_TORCH_DROPOUTS: Final = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_DECOMPOSITIONS: Final = ("pca_lowrank", "svd_lowrank", "lobpcg")
_DROPOUTS: Final = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_NOISY_ACTIVATIONS: Final = ("rrelu_with_noise", "rrelu_with_noise_")
_POOLS: Final = ("fractional_max_pool2d", "fractional_max_pool3d")
_ATTENTIONS: Final = ("multi_head_attention_forward", "scaled_dot_product_attention")


class ThreadDraws(TorchFunctionMode):
    """Let torch functions draw from the thread's generator: see NOTE [Draws in worker threads]."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Every torch call of a sample comes here, so what does not draw must pass quickly.
        draw = _HANDLERS.get(func)
        # A process forked in a sample inherits the mode, but not the generator.
        if draw is not None and context.generator is not None:
            return draw(func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


class _OperatorDraws(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's modes are untyped
    """Let the operators that a torch function calls inside draw from the thread's generator."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operator = _drawing_overload(func)
        if operator is None:
            return func(*args, **(kwargs or {}))
        return _pass_generator(operator, args, kwargs or {})


# Functions that are called with the generator as their last positional argument, which may be None.
_LAST_IS_GENERATOR = frozenset({torch.poisson, torch.binomial})


def _pass_generator(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that takes a generator with the thread's, unless the caller gave another one."""
    if _draws_on_cpu(args, kwargs):
        position = next((n for n, value in enumerate(args) if isinstance(value, torch.Generator)), None)
        if position is None and func in _LAST_IS_GENERATOR and args[-1] is None:
            args = args[:-1]
        generator = kwargs.get("generator") if position is None else args[position]
        if _is_default(generator):
            # `present_generator` seeds the thread's generator, so it is only called for a draw.
            if position is None:
                kwargs = {**kwargs, "generator": context.present_generator()}
            else:
                args = (*args[:position], context.present_generator(), *args[position + 1 :])
    return func(*args, **kwargs)


def _watch_operators(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _OperatorDraws():  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _is_default(generator: Any) -> bool:
    """Return True if a draw belongs to the thread: no generator was given, or torch's default one, or the thread's.

    A dataset may keep the thread's generator from another sample, and it has to be seeded for this one.
    """
    if generator is None:
        return True
    thread_generator: Any = context.generator
    default_generator: Any = torch.default_generator
    # By address: torch's dispatcher wraps the default generator in a new Python object.
    return generator._cdata in (default_generator._cdata, thread_generator._cdata)


def _draws_on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a function draws on the CPU: its device argument decides, then its first tensor."""
    device = kwargs.get("device")
    if device is None:
        tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        # A device context that was entered in this thread before the mode has not set the argument yet.
        device = torch.get_default_device() if tensor is None else tensor.device
    return torch.device(device).type == "cpu"


@cache
def _drawing_overload(operator: OpOverload) -> OpOverload | None:
    """Return the overload of an operator that takes a generator (itself, perhaps), or None if there is none."""
    packet = operator.overloadpacket
    overloads = [operator, *(getattr(packet, name) for name in packet.overloads())]
    drawing = (overload for overload in overloads if _takes_generator(overload))
    # ``rand`` and ``rand.generator``, for example, have the same arguments but for the generator.
    names = _argument_names(operator)
    return next((overload for overload in drawing if _argument_names(overload) == names), None)


def _takes_generator(operator: OpOverload) -> bool:
    return any("Generator" in str(argument.type) for argument in operator._schema.arguments)


def _argument_names(operator: OpOverload) -> list[str]:
    return [argument.name for argument in operator._schema.arguments if argument.name != "generator"]


_HANDLERS: Final[dict[Any, Callable[..., Any]]] = {
    **{getattr(torch, name): _pass_generator for name in _FACTORIES + _DISTRIBUTIONS + _ACTIVATIONS},
    **{getattr(Tensor, name): _pass_generator for name in _METHODS + _RARE_METHODS},
    **{getattr(init, name): _pass_generator for name in _INITIALIZERS},
    **{getattr(torch, name): _watch_operators for name in _TORCH_DROPOUTS + _RECURRENT + _DECOMPOSITIONS},
    **{getattr(torch, f"{name}_"): _watch_operators for name in _TORCH_DROPOUTS},
    **{getattr(functional, name): _watch_operators for name in _DROPOUTS + _POOLS + _ATTENTIONS},
    **{getattr(functional, f"{name}_with_indices"): _watch_operators for name in _POOLS},
    functional.gumbel_softmax: _watch_operators,
    functional.rrelu: _watch_operators,
    **{getattr(torch._C._nn, name): _watch_operators for name in _NOISY_ACTIVATIONS},
}
