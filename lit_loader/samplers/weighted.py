"""`WeightedRandomSampler`: draws in proportion to weights, with or without replacement, from a table of their sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from lit_loader.samplers.checks import Weights, checked_flag, checked_num_samples, checked_weights
from lit_loader.samplers.order import OrderSampler, SizedSampler, SliceableOrder, array_order
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

_STEPS = 4  # from entry to entry, before the rest of the draws is found by bisection
_SQRT_HALF = 0.5**0.5


class WeightedRandomSampler(  # type: ignore[override] # num_samples: see OrderSampler
    SizedSampler, torch.utils.data.WeightedRandomSampler
):
    """Draws index i with probability ``weights[i] / sum(weights)``.

    With replacement the draws are independent, and each is computed by itself from a table that is built once in linear
    time (10 bytes a weight). Without replacement the indices are sorted by exponential keys, which gives the same
    distribution as drawing one after the other from those left; this costs O(n log n) whenever an order is made.

    The signature is torch's without ``generator``: an order is a function of (seed, epoch).

    Args:
        weights: One number an index, shape ``(n,)``: a list, array, memory map, tensor or Arrow column; they need not
            sum to one. They are copied once, to float64 (8 bytes a weight), so later changes by the caller have no
            effect on the sampler, and nothing is read from a file or a column after that.
        num_samples: Positions in an epoch, or None for ``len(weights)``.
        replacement: Whether an index may come more than once in an epoch.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a weight is negative, infinite or NaN (the first is named), all are zero, the shape
            is wrong, or ``num_samples`` is not positive or, without replacement, above the number of
            positive weights.

    Source:
        With replacement: see `WeightTable`. Without: Efraimidis and Spirakis 2006, "Weighted random
        sampling with a reservoir".
    """

    def __init__(
        self,
        weights: Weights,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        OrderSampler.__init__(self, seed=seed)
        checked = checked_weights("weights", weights)
        self._length, self._num_indices = checked_num_samples(num_samples, len(checked)), len(checked)
        self.replacement = checked_flag("replacement", replacement)
        self.generator = None
        self._revision = 0
        self._take(checked)

    def _take(self, weights: npt.NDArray[np.float64]) -> None:
        """Use these weights, if there are enough positive ones."""
        num_positive = int(np.count_nonzero(weights))
        if not self.replacement and self._length > num_positive:
            raise ValueError(
                f"num_samples={self._length} exceeds the {num_positive} positive weights, and "
                "without replacement each index comes at most once; lower num_samples or set replacement=True"
            )
        self._weights, self._num_positive = weights, num_positive
        self._table: WeightTable | None = None

    def set_weights(self, weights: Weights) -> None:
        """Set other weights: orders that are made after this call use them, those made before do not.

        Call it between two epochs, on all ranks, with the same weights. A `lit_loader.DataLoader` then drops batches of
        the next epoch that it has made ahead.

        Args:
            weights: As the constructor takes them, as many as there are; they are copied.

        Raises:
            TypeError: As the constructor does.
            ValueError: As the constructor does, or if there are more or fewer weights. The sampler is left as it was.
        """
        checked = checked_weights("weights", weights)
        if len(checked) != len(self._weights):
            raise ValueError(
                f"`weights` must stay {len(self._weights)}, one an index, got {len(checked)}; make a new sampler for "
                "a dataset of another length"
            )
        self._take(checked)
        self._revision += 1

    @property
    def revision(self) -> int:
        """How often `set_weights` was called."""
        return self._revision

    @property
    def weights(self) -> torch.Tensor:  # type: ignore[override] # a writeable attribute in torch
        """A copy of the weights, float64 ``(n,)``."""
        return torch.tensor(self._weights)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's draws."""
        if not self.replacement:
            key = key64(seed, "weighted without replacement", epoch)
            return array_order(exponential_order(self._weights, self._length, key=key))
        if self._table is None:
            self._table = WeightTable(self._weights)
        key = key64(seed, "weighted", epoch)
        return SliceableOrder(self._length, partial(self._table.draw, key))

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ``num_samples * weights / sum(weights)``; without replacement, 1 for every positive weight.

        Raises:
            ValueError: Without replacement, if fewer are drawn than have a positive weight: the expectation
                then has no closed form.
        """
        if self.replacement:
            scaled = self._weights / self._weights.max()
            result: npt.NDArray[np.float64] = scaled * (self._length / scaled.sum())
            return result
        if self._length < self._num_positive:
            raise ValueError(
                f"the expected visits of {self._length} draws without replacement among "
                f"{self._num_positive} positive weights have no closed form; "
                "count them over orders of several seeds instead"
            )
        return (self._weights > 0).astype(np.float64)

    def _identity(self) -> tuple[Any, ...]:
        return self._length, self.replacement, self._weights

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # built again when needed, which is cheaper than pickling it


def exponential_order(weights: npt.NDArray[np.float64], num_samples: int, *, key: int) -> IndexArray:
    """Return ``num_samples`` indices drawn one after the other without replacement.

    Index i gets the key ``-log(u_i) / w_i``, u_i uniform in (0, 1); the smallest keys are drawn, in their order.
    (Efraimidis and Spirakis take the largest ``u ** (1 / w)``, whose logarithm this is, negated.)

    Args:
        weights: float64, shape ``(n,)``, finite, not negative.
        num_samples: At most the number of positive weights.
        key: A 64-bit key.
    """
    bits = hash_u64(key, np.arange(len(weights), dtype=np.int64)) >> np.uint64(12)
    numbers = _minus_log((bits.astype(np.float64) + 0.5) * 2.0**-52)  # exact, and neither 0 nor 1
    with np.errstate(divide="ignore", over="ignore"):  # inf for weights of 0 or 1e-308 of the largest
        keys = numbers / (weights / weights.max())
    keys[weights == 0] = np.nan  # sorts last, after inf
    last = np.partition(keys, num_samples - 1)[num_samples - 1]
    drawn = np.flatnonzero(keys <= last)  # more than ``num_samples`` only if keys are equal
    return drawn[np.argsort(keys[drawn], kind="stable")[:num_samples]].astype(np.int64, copy=False)


def _minus_log(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return -log(x), x > 0, from exactly rounded operations alone.

    numpy's log differs in the last bit between processors, and an order must not. log(m * 2**e) is
    e * log(2) + 2 * atanh((m - 1) / (m + 1)); the series ends where its terms fall below 2**-53.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa[small] *= 2.0
    exponent[small] -= 1
    ratio = (mantissa - 1.0) / (mantissa + 1.0)  # |ratio| < 0.172
    square = ratio * ratio
    series = np.zeros_like(x)
    for term in range(21, 0, -2):
        series *= square
        series += 1.0 / term
    result: npt.NDArray[np.float64] = -2.0 * ratio * series - exponent * 0.6931471805599453
    return result


# -- the table of cumulative weights -----------------------------------------------------------------------


class WeightTable:
    """Draws by inversion: a draw is a number below the sum of the weights, and gives the index whose range holds it.

    The ranges are found in the cumulative weights, from where a coarser table (one entry for two to four weights) says
    to begin. The two take 10 bytes a weight at most, and 16 while they are made. Rounding changes a probability by at
    most 2**-52, and by a factor of at most ``1 + n * 2**-52``; a weight below 2**-53 of the sum may never be drawn.

    Args:
        weights: float64, shape ``(n,)``, finite, not negative, not all zero.

    Source:
        Chen and Asau 1974, "On generating random variates from an empirical distribution".
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        # Scaled first, so that the sum does not overflow. The order of np.cumsum's additions is defined, unlike that of
        # np.sum, so the result is the same on every machine.
        ends = weights / weights.max()
        self._ends = np.cumsum(ends, out=ends)
        self._unit = float(ends[-1]) * 2.0**-53
        num_bits = max(len(ends).bit_length() - 2, 0)
        self._shift = np.uint64(53 - num_bits)
        # Exact products but for the one rounding that `draw` makes too, so that no entry lies beyond its draws.
        step = self._unit * 2.0 ** (53 - num_bits)
        firsts = np.searchsorted(ends, np.arange(1 << num_bits) * step, side="right")
        self._firsts = firsts.astype(np.min_scalar_type(len(ends)))

    def draw(self, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1``, independent of each other, int64: a hash of each number."""
        numbers = hash_u64(key, np.arange(start, stop, dtype=np.int64)) >> np.uint64(11)
        values = numbers * self._unit
        found: IndexArray = self._firsts[numbers >> self._shift].astype(np.int64)
        low = np.flatnonzero(self._ends[found] <= values)
        for _ in range(_STEPS):
            found[low] += 1
            low = low[self._ends[found[low]] <= values[low]]
        found[low] = np.searchsorted(self._ends, values[low], side="right")
        return found
