"""Select a model's parameters by patterns of their names, to freeze them or to scale their learning rate."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> None:
    """Disable the gradients of parameters whose name matches a pattern, such as ``backbone.body.layer1.*``.

    Raises:
        ValueError: If a pattern matches no parameter, or no trainable parameter remains.
        TypeError: If ``patterns`` is a single string, whose letters would be read as patterns.
    """
    if isinstance(patterns, str):
        raise TypeError(f"freeze={patterns!r} is one text; give a list of patterns")
    names = dict(model.named_parameters())
    _check(patterns, names, "freeze")
    # Gradients are only ever disabled, so parameters that the model has frozen stay frozen.
    for name, parameter in names.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in names.values()):
        raise ValueError(f"freeze={list(patterns)} leaves no parameter to train; freeze fewer")


def parameter_groups(model: nn.Module, lr_scales: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the trained parameters in groups for an optimizer.

    Args:
        model: The model.
        lr_scales: Factors of the learning rate by patterns of names; the first match applies.

    Returns:
        One group for each factor and kind: ``params``; ``lr_scale``, which the caller removes; and ``weight_decay`` 0
        for biases and normalisation, whose tensors have one dimension.

    Raises:
        ValueError: If a pattern matches no parameter, or a factor is not positive.
    """
    _check(lr_scales, [name for name, _ in model.named_parameters()], "lr_scales")
    for pattern, scale in lr_scales.items():
        if not scale > 0:
            raise ValueError(f"lr_scales={{{pattern!r}: {scale}}} must be above 0; use freeze for constant parameters")
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = next((scale for pattern, scale in lr_scales.items() if fnmatchcase(name, pattern)), 1.0)
        # Biases, and weights of normalisation, are vectors; all other weights have more dimensions.
        decays = parameter.ndim > 1
        no_decay = {} if decays else {"weight_decay": 0.0}
        group = groups.setdefault((scale, decays), {"params": [], "lr_scale": scale, **no_decay})
        group["params"].append(parameter)
    return list(groups.values())


def _check(patterns: Iterable[str], parameter_names: Iterable[str], argument: str) -> None:
    names = list(parameter_names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            # Also patterns of whole modules, since those are what people write: `backbone.body.*`.
            paths = [name.split(".") for name in names]
            modules = {".".join(path[:depth]) + ".*" for path in paths for depth in range(1, len(path))}
            matches = difflib.get_close_matches(pattern, sorted({*names, *modules}), n=1)
            suggestion = f"did you mean {matches[0]}? " if matches else ""
            tops = ", ".join(dict.fromkeys(path[0] for path in paths))
            raise ValueError(f"{argument}: no parameter is called {pattern!r}; {suggestion}names begin with {tops}")
