"""Several data sets as one."""

from __future__ import annotations

import operator
from bisect import bisect_right
from pathlib import Path
from typing import Any, SupportsIndex

from torch.utils.data import ConcatDataset

from lit_loader.storage.images import StoredSamples

__all__ = ["JoinedDataset"]


class JoinedDataset(ConcatDataset[Any]):
    """torch's ``ConcatDataset`` of data sets over tables, which also knows the path of each sample.

    Attributes:
        datasets: The data sets, in the order of their indices.
    """

    def locate(self, index: SupportsIndex) -> tuple[Any, int]:
        """Return the data set of a sample, and the index of the sample in it.

        Raises:
            IndexError: ``index`` is out of range.
        """
        position = range(len(self))[operator.index(index)]
        number = bisect_right(self.cumulative_sizes, position)
        dataset: Any = self.datasets[number]
        return dataset, position - self.cumulative_sizes[number] + len(dataset)

    def sample_path(self, index: SupportsIndex) -> Path | str:
        """Return the path of a sample's image file, or the URL of a stored image, without opening it.

        Raises:
            IndexError: ``index`` is out of range.
        """
        dataset, position = self.locate(index)
        path: Path | str = dataset.sample_path(position)
        return path

    def stored_samples(self) -> list[StoredSamples]:
        """Return the stores of the data sets' images, with the first index of each data set in this one."""
        samples: list[StoredSamples] = []
        first = 0
        for dataset, end in zip(self.datasets, self.cumulative_sizes, strict=True):
            parts: list[StoredSamples] = getattr(dataset, "stored_samples", list)()
            samples += [StoredSamples(first + part.first, part.slots, part.store) for part in parts]
            first = end
        return samples
