"""Plain values: what a state may hold, so that it is JSON and loads under ``weights_only=True``; and its check sum."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_sum", "is_plain"]

_DEEPEST = 32


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is made of None, bool, int, float, str, tensors, lists, tuples and dicts with str or int keys."""
    if value is None or type(value) in (bool, int, float, str) or type(value) is Tensor:
        return True
    if depth == _DEEPEST:
        return False
    if type(value) in (list, tuple):
        return all(is_plain(item, depth + 1) for item in value)
    return type(value) is dict and all(
        type(key) in (str, int) and is_plain(item, depth + 1) for key, item in value.items()
    )


def check_sum(state: dict[str, Any]) -> str:
    """Return 16 hex digits of a dict of plain values; the same after a journey through JSON.

    Raises:
        TypeError: If a value is not plain.
        ValueError: If it is nested too deeply, or in itself.
    """
    try:
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), default=_tensor)
    except RecursionError:
        raise ValueError("the state is nested too deeply") from None
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _tensor(value: Any) -> Any:
    if type(value) is not Tensor:
        raise TypeError(f"a state holds plain values, and {type(value).__name__} is none")
    values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return [
        str(value.dtype),
        list(value.shape),
        blake2b(values.numpy().tobytes(), digest_size=16).hexdigest(),
    ]
