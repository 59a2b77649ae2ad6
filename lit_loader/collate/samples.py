"""A list of samples to a list of each of their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["transpose_samples"]


def transpose_samples(batch: Sequence[Any], *, num_elements: int | None = None) -> list[list[Any]]:
    """Return the first elements of all samples, the second ones, and so on.

    Args:
        batch: Samples, tuples or lists.
        num_elements: How many elements a sample must have; None: two or more, the same number in each.

    Raises:
        TypeError: A sample is no tuple or list, or has too few elements.
        ValueError: The batch is empty, or the samples differ in length or from ``num_elements``.
    """
    if not batch:
        raise ValueError("an empty batch cannot be collated; the batch sampler gave no indices.")
    for sample in batch:
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise TypeError(
                f"a sample is a {type(sample).__name__}; the rule is (image, target, ...). "
                "For other samples use torch's default_collate."
            )
    lengths = sorted({len(sample) for sample in batch})
    if len(lengths) > 1:
        raise ValueError(f"samples of a batch have {lengths} elements; the rule is the same number in each.")
    if num_elements is not None and lengths != [num_elements]:
        raise ValueError(
            f"samples have {lengths[0]} elements and this batch takes {num_elements}; leave the others out, or "
            "collate with DetectionCollate, which keeps them."
        )
    return [list(values) for values in zip(*batch, strict=True)]
