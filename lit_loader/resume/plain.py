"""Plain values: what a state may hold, so that it is JSON and loads under ``weights_only=True``; and its check sum."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_sum", "is_plain"]

_DEEPEST, _MOST_VALUES = 32, 10**6


def is_plain(value: Any) -> bool:
    """Whether a value is made of None, bool, int, float, str, tensors, lists, tuples and dicts with str or int keys.

    At most 32 levels deep and a million values: lists that share their parts are as many values as they unfold to.
    """
    num_values, left = 0, [(value, 0)]
    while left:
        part, depth = left.pop()
        num_values += 1
        if part is None or type(part) in (bool, int, float, str):
            continue
        if type(part) is Tensor:
            if _is_dense(part):
                continue
            return False
        if depth == _DEEPEST or num_values + len(left) > _MOST_VALUES:
            return False
        if type(part) is dict and all(type(key) in (str, int) for key in part):
            left.extend((item, depth + 1) for item in part.values())
        elif type(part) in (list, tuple):
            left.extend((item, depth + 1) for item in part)
        else:
            return False
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has a value for each of its bytes, and does not unfold to more than it holds."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


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
    if type(value) is not Tensor or not _is_dense(value):
        raise TypeError(f"a state holds plain values, and a {type(value).__name__} of this kind is none")
    values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return [
        str(value.dtype),
        list(value.shape),
        blake2b(values.numpy().tobytes(), digest_size=16).hexdigest(),
    ]
