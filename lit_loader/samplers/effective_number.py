"""Weights by the effective number of samples: rare classes weigh more, yet less than inversely to their count."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import checked_integers, checked_number
from lit_loader.samplers.class_members import Labels, class_members

__all__ = ["effective_number_image_weights", "effective_number_weights"]

_PRECISE = Context(prec=50)


def effective_number_weights(
    counts: Sequence[int] | npt.NDArray[Any] | torch.Tensor, *, beta: float
) -> npt.NDArray[np.float64]:
    """Return a weight for each class, ``(1 - beta) / (1 - beta ** n_c)``.

    That is 1 over the effective number of n_c samples. With beta 0 all weights are 1; the nearer beta is to
    1, the nearer they are to ``1 / n_c``. A class without samples gets 0. The weights are as the formula
    gives them, not scaled to a sum. They are computed with 50 decimal digits, so they are the same bits on
    every machine, and so are the draws by them.

    Args:
        counts: n_c, the number of samples of class c; shape ``(num_classes,)``.
        beta: In [0, 1). The paper tries 0.9, 0.99, 0.999 and 0.9999.

    Returns:
        float64 ``(num_classes,)``, in [0, 1].

    Raises:
        TypeError: If the counts are not integers or ``beta`` is not a number.
        ValueError: If a count is negative (the first is named) or ``beta`` lies outside of [0, 1).

    Source:
        Cui et al. 2019, "Class-balanced loss based on effective number of samples".
    """
    numbers = checked_integers("counts", counts)
    base = checked_number("beta", beta, rule="in [0, 1)")
    if not 0 <= base < 1:
        raise ValueError(
            f"`beta` must lie in [0, 1), got beta={beta}; at 1 the formula has no value, and near it, at 0.9999 "
            "say, the weights are nearly 1 / counts"
        )
    wrong = numbers < 0
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"`counts` are numbers of samples, not negative, got counts[{first}]={numbers[first]}"
        )
    distinct, places = np.unique(numbers, return_inverse=True)
    return np.array([_weight(Decimal(base), n) for n in distinct.tolist()], dtype=np.float64)[places]


def effective_number_image_weights(
    labels: Labels, *, beta: float, empty_weight: float | None = None
) -> npt.NDArray[np.float64]:
    """Return a weight for each image, for `WeightedRandomSampler`: that of its rarest class.

    The weight of a class is `effective_number_weights` of the number of images that contain it. Of several
    classes the largest weight counts, as in LVIS's repeat factors: a common class beside a rare one must not
    make the image come less often, as the mean would.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. What an image names twice counts once.
        beta: In [0, 1); see `effective_number_weights`.
        empty_weight: Weight of an image without a class, not negative; None: the smallest of any other image
            (1 where there is none), so that it is not forgotten. At 0 it is never drawn.

    Returns:
        float64 ``(num_images,)``.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the labels are wrong (see `ClassBalancedSampler`) or another argument out of range.
    """
    members = class_members(labels)
    of_classes = effective_number_weights(members.counts[:-1], beta=beta)
    if empty_weight is None:
        empty = float(members.largest(of_classes, empty=1.0).min())
    else:
        empty = checked_number("empty_weight", empty_weight, rule="not negative")
        if empty < 0:
            raise ValueError(
                f"`empty_weight` must not be negative, got empty_weight={empty_weight}; 0 leaves images without "
                "a class out"
            )
    return members.largest(of_classes, empty=empty)


def _weight(beta: Decimal, count: int) -> float:
    if count == 0:
        return 0.0
    rest = _PRECISE.subtract(Decimal(1), _PRECISE.power(beta, count))
    return float(_PRECISE.divide(_PRECISE.subtract(Decimal(1), beta), rest))
