"""Class weights from a confusion matrix: what is recognised worse is drawn more often."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["recall_weights"]


def recall_weights(confusion: npt.ArrayLike | torch.Tensor, *, floor: float = 0.1) -> npt.NDArray[np.float64]:
    """Return a weight for each class that rises as its recall falls.

    ``w_c = (1 - r_c + floor) / mean``, with ``r_c = confusion[c, c] / confusion[c].sum()`` and the mean over the
    classes that were seen; a class that was not, an empty row, gets 1. So weights are 1 in the mean, and those of two
    classes differ by at most the factor ``(1 + floor) / floor``: 11 by default.

    Args:
        confusion: ``(num_classes, num_classes)`` counts or shares, finite and not negative, rows the true class, as
            scikit-learn and torchmetrics have it.
        floor: Above 0, so that a class with a recall of 1 is still drawn; the lower, the stronger the weights.

    Returns:
        float64 ``(num_classes,)``, each above 0.

    Raises:
        ValueError: If the matrix is not square, an entry is negative or not finite, or the floor is not above 0.
    """
    values = confusion.detach().cpu().numpy() if isinstance(confusion, torch.Tensor) else confusion
    counts = np.asarray(values, dtype=np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise ValueError(
            f"`confusion` must have shape (num_classes, num_classes), got {counts.shape}; leave a background class out"
        )
    wrong = ~(np.isfinite(counts) & (counts >= 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"`confusion` must be finite and not negative, got confusion[{row}, {column}]={counts[row, column]}; "
            "give counts, or shares of all rows together (a matrix normalised by row has NaN for a class not seen)"
        )
    if not 0 < floor < np.inf:
        raise ValueError(
            f"floor={floor} must be above 0 and finite; at 0 a class with a recall of 1 is never drawn"
        )
    totals = counts.sum(axis=1)
    seen = totals > 0
    result = np.ones(len(counts))
    lacking = 1.0 - np.diagonal(counts)[seen] / totals[seen] + floor
    result[seen] = lacking / lacking.mean() if seen.any() else lacking
    return result
