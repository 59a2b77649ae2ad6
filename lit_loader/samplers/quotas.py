"""Class shares and quotas: how many positions of an epoch each class gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from lit_loader.types import IndexArray

__all__ = ["class_quotas", "class_shares"]


def class_shares(counts: Sequence[int], *, temperature: float) -> list[Fraction]:
    """Return each class's share of the positions, in proportion to ``n_c ** (1 - temperature)``.

    Temperature 0 keeps the natural shares, 1 makes them equal. A class without images gets nothing. The
    powers are rounded to 12 digits, beyond which machines differ, and exact from there on.

    Args:
        counts: n_c, the number of images that contain class c.
        temperature: In [0, 1].

    Returns:
        Fractions that sum to 1, or all 0 if every count is.

    Source:
        Conneau and Lample 2019, "Cross-lingual language model pretraining" (alpha is 1 - temperature);
        equal shares: Shen et al. 2016, "Relay backpropagation for effective learning of deep CNNs",
        class-aware sampling.
    """
    powers = [
        Fraction(f"{float(count) ** (1.0 - temperature):.12g}") if count else Fraction(0) for count in counts
    ]
    total = sum(powers, Fraction(0))
    return [power / total for power in powers] if total else powers


def class_quotas(shares: Sequence[Fraction], num_samples: int) -> IndexArray:
    """Return whole numbers of positions near the shares, exact in sum, at least 1 for a share above 0.

    Largest remainder: every class gets its share rounded down, the positions left go to the largest
    remainders, the lower class id first where they are equal. A class that would get none is then given
    one of the largest quota's, because a class that is never visited is forgotten without a word.

    Args:
        shares: Fractions that sum to 1.
        num_samples: Positions to hand out.

    Returns:
        int64 array, shape ``(len(shares),)``, sum ``num_samples``.

    Raises:
        ValueError: If there are more classes with a share than positions.
    """
    wanted = [share > 0 for share in shares]
    if sum(wanted) > num_samples:
        raise ValueError(
            f"num_samples={num_samples} is less than the {sum(wanted)} classes that have a share, "
            f"and some would never be visited; give num_samples={sum(wanted)} or more (without it, num_samples is "
            "the number of images)"
        )
    exact = [share * num_samples for share in shares]
    quotas = np.array([int(value) for value in exact], dtype=np.int64)
    by_remainder = sorted(range(len(shares)), key=lambda c: int(exact[c]) - exact[c])
    quotas[by_remainder[: num_samples - int(quotas.sum())]] += 1
    for c in np.flatnonzero((quotas == 0) & np.array(wanted, dtype=np.bool_)):
        quotas[quotas.argmax()] -= 1
        quotas[c] = 1
    return quotas
