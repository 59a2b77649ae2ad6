"""Oversampling of rare classes: repeat factors, and weights by the effective number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import (
    Weights,
    checked_integers,
    checked_number,
    checked_weights,
    refuse_first,
)
from lit_loader.samplers.class_balanced import Labels, class_members
from lit_loader.samplers.order import SizedSampler, array_order
from lit_loader.samplers.shuffle import permutation
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


def repeat_factors(labels: Labels, *, repeat_thresh: float) -> npt.NDArray[np.float64]:
    """Return how often each image should appear in an epoch.

    ``r(I)`` is the largest ``r_c`` of the image's classes, ``r_c = max(1, sqrt(t / f_c))``, where f_c is the share of
    the images that contain class c. An image without a class gets 1.

    Args:
        labels: As `ClassBalancedSampler` takes them.
        repeat_thresh: t, in (0, 1]: the share of the images below which a class is repeated.

    Returns:
        float64 ``(num_images,)``, each at least 1.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the labels are wrong (see `ClassBalancedSampler`) or ``repeat_thresh`` is out of range.

    Source:
        Gupta et al. 2019, "LVIS: A dataset for large vocabulary instance segmentation".
    """
    thresh = checked_number("repeat_thresh", repeat_thresh, lambda x: 0 < x <= 1, rule="lie in (0, 1]")
    members = class_members(labels)
    frequencies = np.maximum(members.counts[:-1], 1) / members.num_images
    return members.largest(np.maximum(1.0, np.sqrt(thresh / frequencies)), empty=1.0)


class RepeatFactorSampler(SizedSampler):
    """Visits image i ``repeat_factors[i]`` times an epoch in the mean, in an order shuffled as a whole.

    An image is visited as often as the integer part of its factor in every epoch, and its fractional part is the
    probability of one more visit. The images with one more visit are drawn by systematic sampling: the fractions are
    laid along a line, in a newly shuffled order, and those are chosen that contain a point of a grid with step 1 and a
    random offset. So the probabilities are exact, and the number of visits is the same in every epoch, unlike with
    independent draws: ``len`` is fixed and equal on all ranks.

    For that the fractions must sum to an integer. If they do not, they are scaled down to the nearest one (or their
    complements to 1 are), which changes the expected visits of all images together by at most half a visit. Integer
    factors are not changed. `expected_visits` returns the result.

    An order costs O(len(self) log len(self)) when it is made and 8 bytes a position.

    Args:
        repeat_factors: One number an image, from the function `repeat_factors` or your own, not negative;
            below 1 an image is left out of some epochs. They are copied.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a factor is negative, infinite or NaN (the first is named), the shape is wrong, or the
            factors sum to half a position or less, or to ``2**31`` or more.

    Source:
        Gupta et al. 2019, "LVIS: A dataset for large vocabulary instance segmentation"; systematic sampling
        with unequal chances: Madow 1949, "On the theory of systematic sampling, II".
    """

    def __init__(self, repeat_factors: Weights, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        factors = checked_weights("repeat_factors", repeat_factors)
        total = math.fsum(factors)
        if not 0.5 < total < 2**31:
            raise ValueError(
                f"`repeat_factors` sum to {total:g} positions an epoch, which must be more than 0.5 and below 2**31; "
                f"the largest is repeat_factors[{factors.argmax()}]={factors.max():g}: scale them all"
            )
        whole = np.floor(factors)
        self._drawn: IndexArray = np.flatnonzero(factors > whole)
        self._fractions, self._num_drawn = _whole_sum((factors - whole)[self._drawn])
        self._whole: IndexArray = whole.astype(np.int64)
        self._length, self._num_indices = int(whole.sum()) + self._num_drawn, len(factors)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits."""
        visits = self._whole.copy()
        places = permutation(key64(seed, "repeat fractions", epoch), len(self._drawn))
        offset = (key64(seed, "repeat offset", epoch) >> 11) * 2.0**-53
        # The sum is a whole number but for what rounding adds, and the number of visits must be the same in any case.
        passed = np.minimum(np.floor(np.cumsum(self._fractions[places]) + offset), self._num_drawn)
        passed[-1:] = self._num_drawn
        visits[self._drawn[places]] += np.diff(passed, prepend=0).astype(np.int64)
        indices = np.repeat(np.arange(len(visits)), visits)
        return array_order(indices[permutation(key64(seed, "repeat shuffle", epoch), len(self))])

    def _identity(self) -> tuple[Any, ...]:
        return self._whole, self._drawn, self._fractions

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return the factors, with their fractions scaled to sum to an integer."""
        visits = self._whole.astype(np.float64)
        visits[self._drawn] += self._fractions
        return visits


def _whole_sum(fractions: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Return fractions in (0, 1), scaled to sum to the nearest integer, and that integer.

    If the sum is too large, all fractions are scaled by one factor; if it is too small, their complements to 1 are. So
    every fraction stays in [0, 1].
    """
    total, length = math.fsum(fractions), len(fractions)
    number = round(total)
    if number < total:
        fractions = fractions * (number / total)
    elif number > total:
        fractions = 1 - (1 - fractions) * ((length - number) / (length - total))
    return fractions, number


# -- weights by the effective number of samples ------------------------------------------------------------


def effective_number_weights(
    counts: Sequence[int] | npt.NDArray[Any] | torch.Tensor, *, beta: float
) -> npt.NDArray[np.float64]:
    """Return a weight for each class, ``(1 - beta) / (1 - beta ** n_c)``.

    That is 1 over the effective number of n_c samples. With beta 0 all weights are 1; for beta near 1 they approach
    ``1 / n_c``. A class without samples gets 0. The weights are not normalised. They are computed with 50 decimal
    digits, so that they, and the draws by them, are the same bits on every machine.

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
    base = Decimal(checked_number("beta", beta, lambda number: 0 <= number < 1, rule="lie in [0, 1)"))
    refuse_first("counts", numbers, numbers < 0, rule="be numbers of samples, not negative")
    distinct, places = np.unique(numbers, return_inverse=True)
    with localcontext(prec=50):
        weights = [float((1 - base) / (1 - base**n)) if n else 0.0 for n in distinct.tolist()]
    return np.array(weights, dtype=np.float64)[places]


def effective_number_image_weights(
    labels: Labels, *, beta: float, empty_weight: float | None = None
) -> npt.NDArray[np.float64]:
    """Return a weight for each image, for `WeightedRandomSampler`: that of its rarest class.

    The weight of a class is `effective_number_weights` of the number of images that contain it. An image with several
    classes gets the largest weight, as in LVIS's repeat factors: with the mean, a common class beside a rare one would
    make the image less frequent.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. A class that an image has twice counts once.
        beta: In [0, 1); see `effective_number_weights`.
        empty_weight: Weight of an image without a class, not negative, or None for the smallest weight of the other
            images (1 if there are none). With 0 it is never drawn.

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
        empty = checked_number("empty_weight", empty_weight, lambda x: x >= 0, rule="not be negative")
    return members.largest(of_classes, empty=empty)
