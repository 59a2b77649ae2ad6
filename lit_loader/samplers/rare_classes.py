"""Oversampling of rare classes: repeat factors, and weights by the effective number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import Weights, checked_integers, checked_number, checked_weights, refuse_first
from lit_loader.samplers.class_balanced import Labels, class_members
from lit_loader.samplers.order import SizedSampler, array_order
from lit_loader.samplers.shuffle import permutation
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


def repeat_factors(labels: Labels, *, repeat_thresh: float) -> npt.NDArray[np.float64]:
    """Return how often each image should appear in an epoch.

    ``r(I)`` is the largest ``r_c`` among the image's classes, ``r_c = max(1, sqrt(t / f_c))``, where f_c is the share
    of the images that contain class c. An image without a class gets 1.

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
    thresh = checked_number("repeat_thresh", repeat_thresh)
    members = class_members(labels)
    # A class without images has no image to repeat, and must not divide by zero.
    frequencies = np.maximum(members.counts[:-1], 1) / members.num_images
    return members.largest(np.maximum(1.0, np.sqrt(thresh / frequencies)), empty=1.0)


class RepeatFactorSampler(SizedSampler):
    """Visits image i on average ``repeat_factors[i]`` times an epoch, in shuffled order.

    The integer part of a factor is the number of visits in every epoch, and the fractional part is the probability of
    one more visit. Systematic sampling draws the images with one more visit: the fractions are laid along a line, in a
    newly shuffled order, and an image is chosen if its interval contains a point of a grid with step 1 and a random
    offset. So the probabilities are exact and, unlike with independent draws, the number of visits is the same in every
    epoch: ``len`` is fixed and equal on all ranks.

    This requires fractions that sum to an integer. Otherwise the fractions, or their complements to 1, are scaled down
    to the nearest integer, which changes the expected visits of all images together by at most half a visit. Integer
    factors do not change. `expected_visits` returns the result.

    Making an order takes O(len(self) log len(self)) and 8 bytes a position.

    Args:
        repeat_factors: One number an image, from the function `repeat_factors` or your own, not negative; an image
            with a factor below 1 is left out of some epochs. They are copied.
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
        self._repeats = RepeatedVisits("repeat_factors", repeat_factors)
        self._length = self._repeats.length
        self._num_indices = self._repeats.num_indices

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits."""
        visits = self._repeats.draw(seed, epoch)
        indices = np.repeat(np.arange(len(visits)), visits)
        return array_order(indices[permutation(key64(seed, "repeat shuffle", epoch), len(self))])

    def _identity(self) -> tuple[Any, ...]:
        return self._repeats.identity()

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return the factors, with their fractions scaled to sum to an integer."""
        return self._repeats.expected()


class RepeatedVisits:
    """Number of visits of each index in an epoch, drawn from repeat factors; see `RepeatFactorSampler`.

    Args:
        name: Name of the argument with the factors, for messages.
        factors: One number an index, not negative. They are copied.

    Attributes:
        length: Sum of the visits, the same in every epoch.
        num_indices: Number of factors.

    Raises:
        TypeError, ValueError: As for `RepeatFactorSampler`.
    """

    def __init__(self, name: str, factors: Weights) -> None:
        checked = checked_weights(name, factors)
        # fsum() is exactly rounded; the error of numpy's sum differs between machines, and so might the length.
        total = math.fsum(checked)
        if not 0.5 < total < 2**31:
            raise ValueError(
                f"`{name}` must sum to more than 0.5 and less than 2**31 positions an epoch, got {total:g}, "
                f"with {name}[{checked.argmax()}]={checked.max():g} the largest; scale them all"
            )
        # The part of each factor that needs no draw.
        certain = np.floor(checked)
        self._drawn: IndexArray = np.flatnonzero(checked > certain)
        self._fractions, self._num_drawn = _with_integer_sum((checked - certain)[self._drawn])
        self._certain: IndexArray = certain.astype(np.int64)
        self.length = int(certain.sum()) + self._num_drawn
        self.num_indices = len(checked)

    def draw(self, seed: int, epoch: int) -> IndexArray:
        """Return the visits of an epoch, int64 ``(num_indices,)``, a function of the arguments."""
        visits = self._certain.copy()
        places = permutation(key64(seed, "repeat fractions", epoch), len(self._drawn))
        # A uniform number in [0, 1) with 53 bits.
        offset = (key64(seed, "repeat offset", epoch) >> 11) * 2.0**-53
        grid_points = np.floor(np.cumsum(self._fractions[places]) + offset)
        # The fractions sum to an integer only up to rounding errors, and the number of visits must be exact.
        grid_points = np.minimum(grid_points, self._num_drawn)
        grid_points[-1:] = self._num_drawn
        visits[self._drawn[places]] += np.diff(grid_points, prepend=0).astype(np.int64)
        return visits

    def expected(self) -> npt.NDArray[np.float64]:
        """Return the mean of the visits over seeds, float64 ``(num_indices,)``."""
        visits = self._certain.astype(np.float64)
        visits[self._drawn] += self._fractions
        return visits

    def identity(self) -> tuple[Any, ...]:
        """Return the settings that the visits depend on, without seed and epoch."""
        return self._certain, self._drawn, self._fractions


def _with_integer_sum(fractions: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Return fractions in (0, 1), scaled to sum to the nearest integer, and that integer.

    If the sum is too large, all fractions are scaled by one factor; if it is too small, their complements to 1 are
    scaled. So every fraction stays in [0, 1].
    """
    total = math.fsum(fractions)
    length = len(fractions)
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

    It is the inverse of the effective number of n_c samples. With beta 0 all weights are 1; for beta near 1 they
    approach ``1 / n_c``. A class without samples gets 0. The weights are not normalised. They are computed with 50
    decimal digits, so that they, and the draws from them, are the same bits on every machine.

    Args:
        counts: n_c, the number of samples of class c; shape ``(num_classes,)``.
        beta: In [0, 1). The paper tries 0.9, 0.99, 0.999 and 0.9999.

    Returns:
        float64 ``(num_classes,)``, in [0, 1].

    Raises:
        TypeError: If the counts are not integers or ``beta`` is not a number.
        ValueError: If a count is negative (the first is named) or ``beta`` is outside of [0, 1).

    Source:
        Cui et al. 2019, "Class-balanced loss based on effective number of samples".
    """
    sample_counts = checked_integers("counts", counts)
    base = Decimal(checked_number("beta", beta))
    refuse_first("counts", sample_counts, sample_counts < 0, rule="be numbers of samples, not negative")
    # Decimal arithmetic is slow, so each distinct count is computed once.
    distinct, places = np.unique(sample_counts, return_inverse=True)
    with localcontext(prec=50):
        weights = [float((1 - base) / (1 - base**n)) if n else 0.0 for n in distinct.tolist()]
    return np.array(weights, dtype=np.float64)[places]


def effective_number_image_weights(
    labels: Labels, *, beta: float, empty_weight: float | None = None
) -> npt.NDArray[np.float64]:
    """Return the weight of each image's rarest class, for `WeightedRandomSampler`.

    The weight of a class is `effective_number_weights` of the number of images that contain it. An image with several
    classes gets the largest weight, as in LVIS's repeat factors: with the mean, a common class next to a rare one would
    make the image less frequent.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. A repeated class of an image counts once.
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
    class_weights = effective_number_weights(members.counts[:-1], beta=beta)
    if empty_weight is None:
        empty_weight = float(members.largest(class_weights, empty=1.0).min())
    return members.largest(class_weights, empty=checked_number("empty_weight", empty_weight))
