"""Types that several layers use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = ["CollateFn", "FIRST_LABEL", "IndexArray", "Order", "WorkerInitFn"]

FIRST_LABEL: Final = 1
"""Label of class 0 in targets of whole images (detection, multi-task, landmarks), because torchvision's detectors
reserve 0 for the background. Labels of crops and of classification are class ids from 0."""

IndexArray: TypeAlias = npt.NDArray[np.int64]
CollateFn: TypeAlias = Callable[[Any], Any]
WorkerInitFn: TypeAlias = Callable[[int], None]


@runtime_checkable
class Order(Protocol):
    """The dataset indices of one epoch as a random-access sequence.

    ``order[a:b]`` returns the indices at positions a to b as an int64 array of shape ``(b - a,)``. It equals
    ``order[0:len(order)][a:b]``. Slices with a step other than 1 are not used.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, positions: slice, /) -> IndexArray: ...
