"""Which of torch's functions draw random numbers, and how they are told which generator to draw from.

Problem: most take ``generator=``; some cannot (dropout), and older versions of torch lack it for ``rand_like``
and its kin. Mechanism: a table for each, by the function object that a ``TorchFunctionMode`` is handed. A test
holds the tables against every operator of the installed torch that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch.nn import functional, init

__all__ = ["DRAWS", "LIKE", "UNHEARD", "draws_unheard", "is_listed", "on_cpu"]

_Args: TypeAlias = tuple[Any, ...]
_Kwargs: TypeAlias = Mapping[str, Any]


def _found(owners: list[Any], names: str) -> frozenset[Any]:
    """Return the functions of these names; a version of torch may lack some."""
    return frozenset(
        function
        for owner in owners
        for name in names.split()
        if (function := getattr(owner, name, None)) is not None
    )


# Take ``generator=``.
DRAWS = _found(
    [torch, torch.Tensor],
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ log_normal_ multinomial normal normal_ poisson "
    "rand randint randn random_ randperm uniform_ _sample_dirichlet _standard_gamma",
) | _found([init], "kaiming_normal_ kaiming_uniform_ normal_ trunc_normal_ uniform_")


def _rand_like(like: torch.Tensor, *, generator: torch.Generator, **options: Any) -> torch.Tensor:
    return torch.empty_like(like, **options).uniform_(generator=generator)


def _randn_like(like: torch.Tensor, *, generator: torch.Generator, **options: Any) -> torch.Tensor:
    return torch.empty_like(like, **options).normal_(generator=generator)


def _randint_like(
    like: torch.Tensor, *bounds: Any, generator: torch.Generator, **options: Any
) -> torch.Tensor:
    low = options.pop("low", 0)
    high = options.pop("high", None)
    if len(bounds) == 2:
        low, high = bounds
    elif bounds and high is None:
        (high,) = bounds
    elif bounds:
        (low,) = bounds
    return torch.empty_like(like, **options).random_(int(low), int(high), generator=generator)


# Lacked ``generator=`` in earlier versions; made of what draws the same numbers.
LIKE: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.randint_like: _randint_like,
}


def _always(args: _Args, kwargs: _Kwargs) -> bool:
    return True


def _given(args: _Args, kwargs: _Kwargs, name: str, position: int, default: Any) -> Any:
    return kwargs.get(name, args[position] if len(args) > position else default)


def _dropout(args: _Args, kwargs: _Kwargs, *, training: bool = True) -> bool:
    """``(input, p, training)``, or ``train`` where torch says so; ``training`` is the default."""
    told = _given(args, kwargs, "training", 2, kwargs.get("train", training))
    return told is not False and _given(args, kwargs, "p", 1, 0.5) != 0


def _with_training(args: _Args, kwargs: _Kwargs, *, position: int) -> bool:
    """``training`` stands at a position, and is False by default."""
    return bool(_given(args, kwargs, "training", position, False))


def _recurrent(args: _Args, kwargs: _Kwargs) -> bool:
    """Two forms: ``(input, hidden, weights, bias, layers, p, train)``, or packed with one more in front."""
    packed = len(args) > 3 and not isinstance(args[3], bool)
    return bool(
        _given(args, kwargs, "dropout", 5 + packed, 0.0)
        and _given(args, kwargs, "train", 6 + packed, False)
        and _given(args, kwargs, "num_layers", 4 + packed, 2) > 1
    )


def _attention(args: _Args, kwargs: _Kwargs, *, position: int) -> bool:
    """``dropout_p`` stands at a position; ``training``, if there is one, says whether it counts."""
    return bool(_given(args, kwargs, "dropout_p", position, 0.0)) and kwargs.get("training") is not False


def _without(args: _Args, kwargs: _Kwargs, *, name: str, position: int) -> bool:
    """What it would draw may be given."""
    return _given(args, kwargs, name, position, None) is None


# Draw from the process-wide generator and cannot be told otherwise; whether a given call of them draws.
_UNHEARD: list[tuple[list[Any], str, Callable[[_Args, _Kwargs], bool]]] = [
    (
        [torch, functional],
        "dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_",
        _dropout,
    ),
    (
        [functional],
        "alpha_dropout feature_alpha_dropout",
        partial(_dropout, training=False),
    ),
    (
        [torch],
        "alpha_dropout alpha_dropout_ feature_alpha_dropout feature_alpha_dropout_",
        _dropout,
    ),
    ([torch, functional], "rrelu rrelu_", partial(_with_training, position=3)),
    ([torch._C._nn], "rrelu_with_noise rrelu_with_noise_", partial(_with_training, position=4)),
    ([torch], "gru lstm rnn_relu rnn_tanh", _recurrent),
    ([functional], "multi_head_attention_forward", partial(_attention, position=10)),
    ([functional], "scaled_dot_product_attention", partial(_attention, position=4)),
    (
        [functional],
        "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d "
        "fractional_max_pool3d_with_indices",
        partial(_without, name="_random_samples", position=5),
    ),
    ([torch], "lobpcg", partial(_without, name="X", position=3)),
    (
        [torch, functional],
        "gumbel_softmax native_dropout pca_lowrank svd_lowrank _fused_dropout _lstm_mps miopen_rnn "
        "_cudnn_init_dropout_state _cudnn_rnn _fill_mem_eff_dropout_mask_ "
        "_scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_triton_scaled_dot_attention",
        _always,
    ),
]
UNHEARD: Mapping[Any, Callable[[_Args, _Kwargs], bool]] = {
    function: draws for owners, names, draws in _UNHEARD for function in _found(owners, names)
}


_LISTED = DRAWS | LIKE.keys() | UNHEARD.keys()
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # of torch.ops


def is_listed(function: Any) -> bool:
    """Whether the other tables and functions of this module have anything to say about a function."""
    return function in _LISTED or type(function) in _OPERATORS


def draws_unheard(function: Any, args: _Args, kwargs: _Kwargs) -> bool:
    """Whether a call draws from the process-wide generator and cannot be told otherwise.

    Operators called by ``torch.ops`` are taken to draw if torch marks them so and they are given no generator.
    """
    rule = UNHEARD.get(function)
    if rule is not None:
        return rule(args, kwargs)
    if type(function) in _OPERATORS:
        return _operator_draws(function) and _generator_of(args, kwargs) in (None, torch.default_generator)
    return False


def _generator_of(args: _Args, kwargs: _Kwargs) -> torch.Generator | None:
    return next((value for value in (*kwargs.values(), *args) if isinstance(value, torch.Generator)), None)


@cache
def _operator_draws(function: Any) -> bool:
    overloads = (
        [function]
        if isinstance(function, torch._ops.OpOverload)
        else [getattr(function, name) for name in function.overloads()]
    )
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def on_cpu(args: _Args, kwargs: _Kwargs) -> bool:
    """Whether a call draws on the CPU: by its ``device=``, else by its first tensor.

    A default device is a setting of the thread that set it, so a worker thread has none.
    """
    if (device := kwargs.get("device")) is not None:
        return torch.device(device).type == "cpu"
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.device.type == "cpu"
    return True
