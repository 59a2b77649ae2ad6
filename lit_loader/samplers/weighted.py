"""`WeightedRandomSampler`: draws in proportion to weights, with or without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from lit_loader.samplers.alias import AliasTable
from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import Weights, checked_flag, checked_int, checked_weights
from lit_loader.samplers.orders import ArrayOrder, SliceableOrder
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

__all__ = ["WeightedRandomSampler", "exponential_order"]

_MAX_WEIGHTS = 2**31 - 1  # the alias table keeps indices as int32
_CHUNK = 1 << 16  # keys at a time: what the arrays of one chunk need stays in cache
_SQRT_HALF = 0.5**0.5


class WeightedRandomSampler(  # type: ignore[override] # num_samples: see OrderSampler
    OrderSampler, torch.utils.data.WeightedRandomSampler
):
    """Draws index i with probability ``weights[i] / sum(weights)``.

    With replacement the draws are independent and draw number k is computed alone, from an alias table
    that is built once in linear time (8 bytes a weight). Without replacement the indices are ordered by
    exponential keys, which is what drawing one after the other among those left gives; this costs
    O(n log n) whenever an order is made.

    Torch's signature but for ``generator``, which is left out: an order is a function of (seed, epoch).

    Args:
        weights: One number an index, shape ``(n,)``: a list, array, memory map, tensor or Arrow column; they
            need not sum to one. They are copied once, to float64 (8 bytes a weight), so that later changes
            of the caller's do not reach the sampler; nothing is read from a file or a column after that.
        num_samples: Positions in an epoch; None: ``len(weights)``.
        replacement: Whether an index may come more than once in an epoch.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a weight is negative, infinite or NaN (the first is named), all are zero, the shape
            is wrong, or ``num_samples`` is not positive or, without replacement, above the number of
            positive weights.

    Source:
        With replacement: see `AliasTable`. Without: Efraimidis and Spirakis 2006, "Weighted random
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
        if len(checked) > _MAX_WEIGHTS:
            raise ValueError(f"`weights` may have {_MAX_WEIGHTS} entries, got {len(checked)}")
        self._num_samples = (
            len(checked) if num_samples is None else checked_int("num_samples", num_samples, minimum=1)
        )
        self.replacement = checked_flag("replacement", replacement)
        self.generator = None
        self._revision = 0
        self._take(checked)

    def _take(self, weights: npt.NDArray[np.float64]) -> None:
        """Draw by these weights, if there are enough positive ones."""
        num_positive = int(np.count_nonzero(weights))
        if not self.replacement and self._num_samples > num_positive:
            raise ValueError(
                f"num_samples={self._num_samples} exceeds the {num_positive} positive weights, and "
                "without replacement each index comes at most once; lower num_samples or set replacement=True"
            )
        self._weights, self._num_positive = weights, num_positive
        self._table: AliasTable | None = None

    def set_weights(self, weights: Weights) -> None:
        """Draw by other weights from now on: every order made after this call uses them, those made before do not.

        A `lit_loader.DataLoader` drops the batches of the next epoch that it has made ahead, so that between two
        epochs this is all there is to do; call it on all ranks, with the same weights.

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

    def __len__(self) -> int:
        return self._num_samples

    @property
    def num_indices(self) -> int:
        """The number of weights."""
        return len(self._weights)

    @property
    def weights(self) -> torch.Tensor:  # type: ignore[override] # a writeable attribute in torch
        """A copy of the weights, float64 ``(n,)``."""
        return torch.tensor(self._weights)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's draws."""
        if not self.replacement:
            key = key64(seed, "weighted without replacement", epoch)
            return ArrayOrder(exponential_order(self._weights, self._num_samples, key=key))
        if self._table is None:
            self._table = AliasTable(self._weights)
        return _AliasOrder(self._table, key64(seed, "weighted", epoch), self._num_samples)

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ``num_samples * weights / sum(weights)``; without replacement, ones where all must come.

        Raises:
            ValueError: Without replacement, if fewer are drawn than have a positive weight: the expectation
                then has no closed form.
        """
        if self.replacement:
            scaled = self._weights / self._weights.max()
            result: npt.NDArray[np.float64] = scaled * (self._num_samples / scaled.sum())
            return result
        if self._num_samples < self._num_positive:
            raise ValueError(
                f"the expected visits of {self._num_samples} draws without replacement among "
                f"{self._num_positive} positive weights have no closed form; "
                "count them over orders of several seeds instead"
            )
        return (self._weights > 0).astype(np.float64)

    def _identity(self) -> tuple[Any, ...]:
        return self._num_samples, self.replacement, self._weights

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # rebuilt when asked for: cheaper than sending it


class _AliasOrder(SliceableOrder):
    """Draws with replacement; nothing is stored but the table."""

    def __init__(self, table: AliasTable, key: int, length: int) -> None:
        super().__init__(length)
        self._table, self._key = table, key

    def positions(self, start: int, stop: int) -> IndexArray:
        return self._table.draw(self._key, start, stop)


def exponential_order(weights: npt.NDArray[np.float64], num_samples: int, *, key: int) -> IndexArray:
    """Return ``num_samples`` indices drawn one after the other without replacement.

    Index i gets the key ``-log(u_i) / w_i``, u_i uniform in (0, 1); the smallest keys win, in their order.
    (Efraimidis and Spirakis take the largest ``u ** (1 / w)``, whose logarithm this is, negated.)

    Args:
        weights: float64, shape ``(n,)``, finite, not negative.
        num_samples: At most the number of positive weights.
        key: A 64-bit key.
    """
    largest = weights.max()
    keys = np.empty(len(weights))
    for start in range(0, len(weights), _CHUNK):
        part = weights[start : start + _CHUNK]
        bits = hash_u64(key, np.arange(start, start + len(part), dtype=np.int64)) >> np.uint64(12)
        numbers = _minus_log((bits.astype(np.float64) + 0.5) * 2.0**-52)  # exact, and neither 0 nor 1
        with np.errstate(divide="ignore", over="ignore"):  # inf for 0 and for 1e-308 of the largest
            keys[start : start + len(part)] = numbers / (part / largest)
    keys[weights == 0] = np.nan  # sorts last, behind inf
    last = np.partition(keys, num_samples - 1)[num_samples - 1]
    winners = np.flatnonzero(keys <= last)  # more than asked for only where keys are equal
    return winners[np.argsort(keys[winners], kind="stable")[:num_samples]].astype(np.int64, copy=False)


def _minus_log(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return -log(x), x > 0, from exactly rounded operations alone.

    numpy's log differs in the last bit between processors, and an order must not. log(m * 2**e) is
    e * log(2) + 2 * atanh((m - 1) / (m + 1)), whose series is cut where it falls below 2**-53.
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
