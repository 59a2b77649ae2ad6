"""Types that more than one layer uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = ["CollateFn", "IndexArray", "Order", "WorkerInitFn"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
CollateFn: TypeAlias = Callable[[Any], Any]
WorkerInitFn: TypeAlias = Callable[[int], None]


@runtime_checkable
class Order(Protocol):
    """The dataset indices of one epoch as a random-access sequence.

    ``order[a:b]`` gives positions a to b as an int64 array of shape ``(b - a,)`` and equals
    ``order[0:len(order)][a:b]``. No step other than 1 is used.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, positions: slice, /) -> IndexArray: ...
