"""A check of a run's first samples: does a dataset make the same sample twice from the same key?

Problem: a transform with a generator of its own (all of albumentations' have one) silently makes different batches for
every number and kind of workers, in spite of a seed. Mechanism: after its batch, each of the first samples of a
dataset's first epoch is made once more, with the generators seeded for its position again, and compared bit by bit. The
batch holds the samples that were made first. The check raises nothing, and values that it cannot compare count as
equal. Not covered: a dataset that makes the same sample several times in a row and draws later.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

NUM_CHECKED: Final = 8
"""Number of samples that are made twice. A flip of half of the images goes unnoticed once in 256 runs."""

MAX_SAMPLE_S: Final = 0.25
"""If the samples of a batch take longer on average, they are not made twice."""


def find_difference(first: Any, second: Any, path: str = "") -> str | None:
    """Return the place where two samples differ, such as "['image']", or None if all their bits are equal.

    Values of unknown types count as equal.
    """
    if type(first) is not type(second):
        return path
    if isinstance(first, Mapping):
        if first.keys() != second.keys():
            return path
        pairs = [(f"{path}[{key!r}]", first[key], second[key]) for key in first]
    elif isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return path
        pairs = [(f"{path}[{row}]", *pair) for row, pair in enumerate(zip(first, second, strict=True))]
    elif is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        pairs = [(f"{path}.{name}", getattr(first, name), getattr(second, name)) for name in names]
    else:
        return None if _is_same_value(first, second) else path
    differences = (find_difference(left_value, right_value, place) for place, left_value, right_value in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _is_same_value(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return _tensor_bits(first) == _tensor_bits(second)
    if isinstance(first, (np.ndarray, np.generic)):
        return first.dtype.hasobject or _array_bits(first) == _array_bits(second)
    if isinstance(first, (float, complex)):
        # Unlike ``==``, this treats NaN as equal to NaN.
        return repr(first) == repr(second)
    if isinstance(first, (bool, int, str, bytes)):
        return bool(first == second)
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(first, pillow.Image):
        same_form = (first.mode, first.size) == (second.mode, second.size)
        return same_form and bool(first.tobytes() == second.tobytes())
    return True


def _tensor_bits(tensor: Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().as_subclass(Tensor)
    return plain.dtype, plain.shape, plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _array_bits(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def describe_difference(dataset: Any, index: Any, where: str) -> str:
    """Return the text of the warning about a sample that was different when it was made again."""
    return (
        f"dataset {type(dataset).__name__} made two different samples of index {index!r} from the same key"
        f"{where and f' (they differ at {where})'}: it, or one of its transforms (all of albumentations', for "
        "example), draws from a generator of its own or keeps a state, so seed= does not fix its batches, and they "
        "depend on the number and kind of workers; draw from the global generators of torch, NumPy or random, or "
        "from lit_loader.sample_rng(), or reseed the transform's generator from sample_rng() for each sample, as "
        "lit_loader.transforms.AlbumentationsTransform does; "
        "check_repeatability=False turns this check off"
    )
