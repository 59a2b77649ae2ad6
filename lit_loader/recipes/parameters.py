"""A model's parameters by patterns of their names: which are frozen, and which learn at another rate."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

__all__ = ["freeze_parameters", "parameter_groups"]


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> None:
    """Switch the gradients off of parameters whose name fits a pattern, such as ``backbone.body.layer1.*``.

    Raises:
        ValueError: If a pattern fits no parameter, or nothing is left to train.
        TypeError: If ``patterns`` is one text, whose letters would be taken for patterns.
    """
    if isinstance(patterns, str):
        raise TypeError(f"freeze={patterns!r} is one text; give a list of patterns")
    names = dict(model.named_parameters())
    _check(patterns, names, "freeze")
    for name, parameter in names.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in names.values()):
        raise ValueError(f"freeze={list(patterns)} leaves no parameter to train; freeze fewer")


def parameter_groups(model: nn.Module, lr_scales: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the trained parameters in groups for an optimizer.

    Args:
        model: The model.
        lr_scales: Factors of the learning rate by patterns of names; the first that fits counts.

    Returns:
        One group for each factor and kind: ``params``; ``lr_scale``, which the caller takes out; and ``weight_decay`` 0
        for biases and normalisation, whose tensors have one dimension.

    Raises:
        ValueError: If a pattern fits no parameter, or a factor is not positive.
    """
    names = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    _check(lr_scales, [name for name, _ in model.named_parameters()], "lr_scales")
    for pattern, scale in lr_scales.items():
        if not scale > 0:
            raise ValueError(
                f"lr_scales={{{pattern!r}: {scale}}} must be above 0; use freeze for what stays as it is"
            )
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, each in names:
        fitting = (scale for pattern, scale in lr_scales.items() if fnmatchcase(name, pattern))
        scale, decays = next(fitting, 1.0), each.ndim > 1
        no_decay = {} if decays else {"weight_decay": 0.0}
        group = groups.setdefault((scale, decays), {"params": [], "lr_scale": scale, **no_decay})
        group["params"].append(each)
    return list(groups.values())


def _check(patterns: Iterable[str], names: Iterable[str], argument: str) -> None:
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            parts = [name.split(".") for name in known]
            modules = {".".join(each[:depth]) + ".*" for each in parts for depth in range(1, len(each))}
            close = difflib.get_close_matches(pattern, sorted({*known, *modules}), n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            tops = ", ".join(dict.fromkeys(each[0] for each in parts))
            raise ValueError(
                f"{argument}: no parameter is called {pattern!r}; {meant}names begin with {tops}"
            )
