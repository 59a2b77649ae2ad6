"""`RepeatFactorSampler`: every image, and those of rare classes several times an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import Weights, checked_number, checked_weights
from lit_loader.samplers.class_members import Labels, class_members
from lit_loader.samplers.orders import ArrayOrder, permutation
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["RepeatFactorSampler", "repeat_factors"]

_BITS = 31  # of a factor's fraction, so that factors of 2**31 in sum fit into int64
_ONE = 1 << _BITS


def repeat_factors(labels: Labels, *, repeat_thresh: float) -> npt.NDArray[np.float64]:
    """Return how often each image should appear in an epoch.

    ``r(I)`` is the largest ``r_c`` of the image's classes, ``r_c = max(1, sqrt(t / f_c))``, f_c being the
    share of the images that contain class c. An image without a class gets 1.

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
    thresh = checked_number("repeat_thresh", repeat_thresh, rule="in (0, 1]")
    if not 0 < thresh <= 1:
        raise ValueError(
            f"`repeat_thresh` must lie in (0, 1], got repeat_thresh={repeat_thresh}; it is the share of the images "
            "below which a class is repeated, 0.001 in the paper"
        )
    members = class_members(labels)
    frequencies = np.maximum(members.counts[:-1], 1) / members.num_images
    return members.largest(np.maximum(1.0, np.sqrt(thresh / frequencies)), empty=1.0)


class RepeatFactorSampler(OrderSampler):
    """Visits image i ``repeat_factors[i]`` times an epoch in the mean, in an order shuffled as a whole.

    An image comes as often as the whole part of its factor says, in every epoch, and its fraction is the
    chance of once more. In which epochs it comes once more is drawn by systematic sampling: the fractions are
    laid along a line, in an order shuffled anew, and those are taken in which a point of a grid of step 1 falls
    that begins at random. So the chances are exact and the number taken is the same in every epoch, which
    independent draws would not give: ``len`` is known beforehand and equal on all ranks.

    For that the fractions must sum to a whole number, the nearest. Where they do not, they are scaled down
    (or what they lack to 1 is), which moves the expected visits, of all images together, by at most half a
    visit; whole factors are not touched. `expected_visits` says what was made of them.

    An order costs O(len(self) log len(self)) when it is made and 8 bytes a position.

    Args:
        repeat_factors: One number an image, from the function `repeat_factors` or of your own, not negative;
            below 1 an image is left out of some epochs. They are copied.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a factor is negative, infinite or NaN (the first is named), the shape is wrong, or the
            factors sum to less than half a position or to ``2**31`` or more.

    Source:
        Gupta et al. 2019, "LVIS: A dataset for large vocabulary instance segmentation"; systematic sampling
        with unequal chances: Madow 1949, "On the theory of systematic sampling, II".
    """

    def __init__(self, repeat_factors: Weights, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        factors = checked_weights("repeat_factors", repeat_factors)
        total = float(np.cumsum(factors)[-1])
        if total >= 2**31:
            raise ValueError(
                f"`repeat_factors` sum to {total:g}, and an epoch may have 2**31 - 1 positions; the largest is "
                f"repeat_factors[{factors.argmax()}]={factors.max():g}: lower the factors (by a lower repeat_thresh)"
            )
        units = np.rint(np.ldexp(factors, _BITS)).astype(np.int64)
        self._whole: IndexArray = units >> _BITS
        fractions = units & (_ONE - 1)
        self._drawn: IndexArray = np.flatnonzero(fractions)
        self._units, num_drawn = _whole_sum(fractions[self._drawn])
        self._num_samples = int(self._whole.sum()) + num_drawn
        if self._num_samples == 0:
            raise ValueError(
                f"`repeat_factors` sum to {total:g}, less than half a position an epoch; scale them so that the sum "
                "is the number of positions wanted"
            )

    def __len__(self) -> int:
        return self._num_samples

    @property
    def num_indices(self) -> int:
        """The number of images."""
        return len(self._whole)

    def order(self, *, seed: int, epoch: int) -> ArrayOrder:
        """Return the epoch's visits."""
        visits = self._whole.copy()
        places = permutation(key64(seed, "repeat fractions", epoch), len(self._drawn))
        ends = np.cumsum(self._units[places])
        ends += key64(seed, "repeat offset", epoch) & (_ONE - 1)
        visits[self._drawn[places]] += np.diff(ends >> _BITS, prepend=0)
        indices = np.repeat(np.arange(len(visits)), visits)
        return ArrayOrder(indices[permutation(key64(seed, "repeat shuffle", epoch), len(self))])

    def _identity(self) -> tuple[Any, ...]:
        return self._whole, self._drawn, self._units

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return the factors, their fractions as they were made to sum to a whole number."""
        visits = self._whole.astype(np.float64)
        visits[self._drawn] += self._units / _ONE
        return visits


def _whole_sum(units: IndexArray) -> tuple[IndexArray, int]:
    """Return fractions in units of ``1 / _ONE``, each in (0, 1), made to sum to the nearest whole number, and that.

    A sum above it is brought down by one factor; of a sum below it, what each lacks to 1 is. So every
    fraction stays in [0, 1].
    """
    total = int(units.sum())
    number = (total + _ONE // 2) // _ONE
    if number * _ONE <= total:
        return _scaled_down(units, number * _ONE), number
    return _ONE - _scaled_down(_ONE - units, (len(units) - number) * _ONE), number


def _scaled_down(units: IndexArray, total: int) -> IndexArray:
    """Return positive units in proportion, each at most what it was, with a sum of exactly ``total``."""
    before = int(units.sum())
    if total == before:
        return units
    scaled: IndexArray = np.floor(units * (total / before)).astype(np.int64)
    left = total - int(
        scaled.sum()
    )  # at most one for each; below 0 where a product was rounded up to a whole one
    takers = np.flatnonzero(scaled < units) if left > 0 else np.flatnonzero(scaled > 0)
    scaled[takers[: abs(left)]] += 1 if left > 0 else -1
    return scaled
