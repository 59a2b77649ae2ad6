"""The large tensors of a sample, if all samples of a data set have the same: where each one's rows lie in a slot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

__all__ = ["ALIGNMENT", "Layout", "aligned"]

ALIGNMENT = 64

Leaf = tuple[torch.dtype, tuple[int, ...]]


def aligned(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to where the next thing may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows for the large tensors of a sample.

    Attributes:
        leaves: dtype and shape of each large tensor, in the order in which they stand in a sample.
        sizes: Bytes of each.
    """

    leaves: tuple[Leaf, ...]
    sizes: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        sizes = tuple(math.prod(shape) * dtype.itemsize for dtype, shape in self.leaves)
        object.__setattr__(self, "sizes", sizes)

    def starts(self, num_rows: int) -> list[int]:
        """Return where the rows of each leaf begin, and where those of the last one end."""
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + aligned(size * num_rows))
        return starts
