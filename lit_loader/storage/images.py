"""Stores of images: return the bytes of an image, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.storage.catalog import Catalog

__all__ = ["ImageStore", "StoredSamples"]


class ImageStore(ABC):
    """Returns the bytes of stored images.

    Attributes:
        catalog: Where each image is.
    """

    catalog: Catalog

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return all bytes of an image.

        Args:
            path: Path of the image in the annotation table, relative to its root.

        Raises:
            ImageError: If the image cannot be read; the message names its object.
        """


class StoredSamples(NamedTuple):
    """Consecutive samples of a data set whose images are in one store.

    Attributes:
        first: Index of the first sample in the data set.
        slots: int32 ``(num_samples,)``, slot of each sample's image in the store's catalog, -1 for an image elsewhere.
        store: The store.
    """

    first: int
    slots: npt.NDArray[np.int32]
    store: ImageStore
