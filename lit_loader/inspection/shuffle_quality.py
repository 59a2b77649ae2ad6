"""Quality of a shuffle: the mix of shards and classes in batches, and the similarity of consecutive epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import LabelSets
from lit_loader.errors import SettingError
from lit_loader.samplers.checks import checked_int, checked_integers, refuse_first
from lit_loader.samplers.shuffle import permutation
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["ShuffleQuality", "shuffle_quality"]

# Batches whose classes are counted; each takes a row of counts of all classes.
_MAX_BATCHES: Final = 1024


@dataclass(frozen=True, kw_only=True)
class ShuffleQuality:
    """Measures of a shuffle, each with its expectation for a full shuffle of the same visits.

    Attributes:
        same_shard: Share of the pairs of visits in a batch that are from one shard, in the mean over batches.
        same_shard_shuffled: Share of all pairs of visits of the epoch that are from one shard, which is the
            expectation of ``same_shard`` for a full shuffle.
        class_deviation: Total variation distance between the shares of classes in a batch and in the epoch, in the mean
            over batches; 0 without labels.
        class_deviation_shuffled: The same for one full shuffle of the visits.
        epoch_correlation: Absolute value of Spearman's rank correlation between the mean places of the images in one
            epoch and the next, in the mean over pairs of epochs; 0 with one epoch.
        epoch_correlation_shuffled: Expectation for full shuffles, ``sqrt(2 / pi / (n - 1))`` for n images.
    """

    same_shard: float
    same_shard_shuffled: float
    class_deviation: float
    class_deviation_shuffled: float
    epoch_correlation: float
    epoch_correlation_shuffled: float

    @property
    def score(self) -> float:
        """``(1 - same_shard) / (1 - same_shard_shuffled)``: 1 as a full shuffle, 0 if each batch is from one shard."""
        return 1.0 if self.same_shard_shuffled == 1 else (1 - self.same_shard) / (1 - self.same_shard_shuffled)


def shuffle_quality(
    epochs: Sequence[npt.ArrayLike], shards: npt.ArrayLike, *, batch_size: int, labels: LabelSets | None = None
) -> ShuffleQuality:
    """Return the quality of a sampler's shuffle, from its orders.

    Args:
        epochs: The order of each of consecutive epochs, such as ``sampler.order(seed=0, epoch=0)[:]``; int64
            ``(num_visits,)`` each.
        shards: The shard of each image, or any other group of similar images, integers ``(num_images,)``.
        batch_size: Samples a batch. Full batches are measured; of a shorter epoch, the whole epoch.
        labels: The classes of each image, or None to leave them out.

    Raises:
        TypeError: If ``batch_size`` or a visit is not an integer.
        SettingError: If ``batch_size`` is below 2.
        ValueError: If ``epochs`` is empty, one of them has fewer than two visits, or a visit is not an index of
            ``shards``.

    Source:
        Spearman 1904, "The proof and measurement of association between two things". Under independence its correlation
        is nearly normal with variance ``1 / (n - 1)``.
    """
    batch_size = checked_int("batch_size", batch_size)
    if batch_size < 2:
        raise SettingError("batch_size", batch_size, "must be at least 2, because pairs of a batch are compared")
    orders = [checked_integers("epochs", epoch) for epoch in epochs]
    if not orders or min(map(len, orders)) < 2:
        raise ValueError("`epochs` must contain at least one epoch of at least two visits")
    # Any integers become numbers from 0.
    shard_numbers = np.unique(np.asarray(shards), return_inverse=True)[1]
    for order in orders:
        outside = (order < 0) | (order >= len(shard_numbers))
        refuse_first("epochs", order, outside, rule=f"be indices below {len(shard_numbers)}, the number of `shards`")
    same_shard = [_same_shard(shard_numbers[order], batch_size) for order in orders]
    same_shard_shuffled = [_same_shard(shard_numbers[order], len(order)) for order in orders]
    deviations = [(0.0, 0.0)]
    if labels is not None and len(labels.classes):
        deviations = [
            (
                _class_deviation(order, labels, batch_size),
                _class_deviation(order[permutation(key64("shuffle quality", epoch), len(order))], labels, batch_size),
            )
            for epoch, order in enumerate(orders)
        ]
    correlations = [_place_correlation(a, b) for a, b in pairwise(orders)]
    num_images = len(np.unique(orders[0]))
    return ShuffleQuality(
        same_shard=float(np.mean(same_shard)),
        same_shard_shuffled=float(np.mean(same_shard_shuffled)),
        class_deviation=float(np.mean([deviation for deviation, _ in deviations])),
        class_deviation_shuffled=float(np.mean([shuffled for _, shuffled in deviations])),
        epoch_correlation=float(np.mean(np.abs(correlations))) if correlations else 0.0,
        epoch_correlation_shuffled=float(np.sqrt(2 / np.pi / max(1, num_images - 1))),
    )


def _batches(indices: IndexArray, batch_size: int) -> IndexArray:
    """Return the full batches of an order as rows; of an order shorter than a batch, one row."""
    batch_size = min(batch_size, len(indices))
    num_batches = len(indices) // batch_size
    return indices[: num_batches * batch_size].reshape(num_batches, batch_size)


def _same_shard(shards: IndexArray, batch_size: int) -> float:
    """Return the share of pairs within batches that are from one shard, given the shard of each visit."""
    batches = _batches(shards, batch_size)
    num_batches, length = batches.shape
    cells = np.arange(num_batches)[:, None] * (int(batches.max()) + 1) + batches
    counts = np.unique(cells, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / (num_batches * length * (length - 1)))


def _class_deviation(order: IndexArray, labels: LabelSets, batch_size: int) -> float:
    """Return the mean total variation distance between the class shares of batches and of the epoch."""
    num_labels = np.diff(labels.offsets)
    num_classes = int(labels.classes.max()) + 1
    visits = np.bincount(order, minlength=len(num_labels))
    epoch_counts = np.bincount(labels.classes, weights=np.repeat(visits, num_labels), minlength=num_classes)
    batches = _batches(order, batch_size)
    # All over the epoch.
    rows = np.unique(np.linspace(0, len(batches) - 1, _MAX_BATCHES).astype(np.int64))
    distances = []
    for batch in batches[rows]:
        lengths = num_labels[batch]
        starts = np.repeat(labels.offsets[batch] - (np.cumsum(lengths) - lengths), lengths)
        counts = np.bincount(labels.classes[starts + np.arange(len(starts))], minlength=num_classes)
        # A batch without labels has no shares to compare.
        if len(starts):
            distances.append(np.abs(counts / len(starts) - epoch_counts / epoch_counts.sum()).sum() / 2)
    return float(np.mean(distances)) if distances else 0.0


def _place_correlation(first: IndexArray, second: IndexArray) -> float:
    """Return the rank correlation between the mean places in two orders of the images that are in both."""
    num_images = 1 + int(max(first.max(), second.max()))
    counts = [np.bincount(order, minlength=num_images) for order in (first, second)]
    images = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
    if len(images) < 2:
        return 0.0
    ranks = []
    for order, count in zip((first, second), counts, strict=True):
        # The first place would be earlier for images that come often, in both orders.
        places = np.bincount(order, weights=np.arange(len(order)), minlength=num_images)[images] / count[images]
        ranks.append(np.argsort(np.argsort(places)))
    return float(np.atleast_2d(np.corrcoef(np.stack(ranks)))[0, 1])
