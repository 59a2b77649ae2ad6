"""The one place where a data set turns a file into pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from lit_loader.datasets.encoded_image import EncodedImage
from lit_loader.datasets.images import MAX_PIXELS, decode_image
from lit_loader.transforms.pending import UnreadImage

__all__ = ["Decode", "ImageReader", "check_decode"]

Decode: TypeAlias = Literal["exact", "fast"]
"""Whether every pixel of an image is decoded, or those that a transform shows."""


def check_decode(decode: str) -> None:
    """Raise ValueError unless ``decode`` is one of its choices."""
    if decode not in get_args(Decode):
        raise ValueError(f"decode={decode!r} is not one of {list(get_args(Decode))}.")


class ImageReader:
    """Reads the images of a data set.

    Runs in: the main process, workers and threads alike; it has no state that changes.

    Args:
        max_pixels: Largest image accepted, see ``decode_image``.
        exif_orientation: Turn images upright.
    """

    def __init__(self, *, max_pixels: int = MAX_PIXELS, exif_orientation: bool = True) -> None:
        self.max_pixels = max_pixels
        self.exif_orientation = exif_orientation

    def read(self, path: Path | str, position: int) -> Tensor:
        """Read one image.

        Args:
            path: The file.
            position: The sample's index in the data set's table, for readers that keep what they read.

        Returns:
            uint8 tensor, shape ``(3, H, W)``.

        Raises:
            ImageError: The image cannot be decoded, or its size is refused; the message names the file.
        """
        return decode_image(path, max_pixels=self.max_pixels, exif_orientation=self.exif_orientation)

    def open(self, path: Path | str, position: int) -> UnreadImage:
        """Read one image's file and header; its pixels are decoded when they are asked for, as far as they are.

        Args:
            path: The file.
            position: The sample's index in the data set's table, for readers that keep what they read.

        Raises:
            ImageError: The file cannot be read, or its size is refused; the message names the file.
        """
        return EncodedImage(path, max_pixels=self.max_pixels, exif_orientation=self.exif_orientation)
