"""How a data set turns an image file into pixels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from lit_loader.images.decoding import MAX_PIXELS, SIXTEEN_BIT_MAX, sixteen_bit_report
from lit_loader.images.encoded_image import open_image
from lit_loader.images.lazy_image import LazyImage

__all__ = ["Decode", "ImageReading", "SizeMismatch"]

Decode: TypeAlias = Literal["exact", "fast"]
"""Whether every pixel of an image is decoded, or those that a transform shows."""

SizeMismatch: TypeAlias = Literal["clip", "raise"]
"""What is done about an image whose size is not the one in its annotation."""


@dataclass(frozen=True, kw_only=True)
class ImageReading:
    """How a data set reads its images.

    Args:
        size_mismatch: For a decoded size that differs from the size in the annotation: ``"clip"`` trusts
            the image, ``"raise"`` refuses the sample. A size of 0 in the annotation means unknown.
        exif_orientation: Turn images upright by their EXIF. ``False`` where boxes were drawn on the pixels
            as stored. An image that EXIF turns onto its side while the annotation gives the stored size is
            refused, whatever ``size_mismatch`` is: its boxes would lie elsewhere.
        max_pixels: Largest width x height accepted, see `decode_image`.
        decode: ``"exact"`` decodes every pixel; ``"fast"`` decodes of a JPEG what the transforms show, no larger than
            they show it, where they are one of the presets or a ``lit_loader.transforms.DecodeAwareCompose``. Random
            draws and targets are the same, pixels within the bound of `EncodedImage`. Other transforms get every
            pixel either way, and a cache keeps every pixel.
        sixteen_bit_max: Value of 16-bit grayscale that becomes 255, such as 4095 for data of 12 bits; higher ones
            become 255 too. None is 65535, and a data set with such images warns when it is made: how many of up to
            512 that are looked at, and their largest value.

    Raises:
        ValueError: A setting is outside its choices.
        TypeError: ``exif_orientation`` is not a bool.
    """

    size_mismatch: SizeMismatch = "clip"
    exif_orientation: bool = True
    max_pixels: int = MAX_PIXELS
    decode: Decode = "exact"
    sixteen_bit_max: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("size_mismatch", get_args(SizeMismatch)), ("decode", get_args(Decode))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {list(choices)}.")
        if not isinstance(self.exif_orientation, bool):
            raise TypeError(f"exif_orientation={self.exif_orientation!r} is not a bool; give True or False.")
        if type(self.max_pixels) is not int or self.max_pixels < 1:
            raise ValueError(f"max_pixels={self.max_pixels!r} is not a whole number of pixels, at least 1.")

        largest = self.sixteen_bit_max
        if largest is not None and (type(largest) is not int or not 1 <= largest <= SIXTEEN_BIT_MAX):
            raise ValueError(
                f"sixteen_bit_max={largest!r} is not a value from 1 to {SIXTEEN_BIT_MAX}; give the one that becomes "
                "255, such as 4095 for data of 12 bits, or None."
            )

    def read(self, path: Path | str) -> Tensor:
        """Return all pixels of an image file, uint8 ``(3, H, W)``.

        Raises:
            ImageError: The image cannot be decoded, or is larger than ``max_pixels``; the message names the file.
        """
        return self.open(path).read()

    def open(self, path: Path | str) -> LazyImage:
        """Read an image's file and header; its pixels are decoded when they are asked for, as far as they are.

        Raises:
            ImageError: The file cannot be read, or is larger than ``max_pixels``; the message names the file.
        """
        return open_image(
            path,
            max_pixels=self.max_pixels,
            exif_orientation=self.exif_orientation,
            sixteen_bit_max=SIXTEEN_BIT_MAX if self.sixteen_bit_max is None else self.sixteen_bit_max,
        )

    def warn_of_sixteen_bits(self, paths: Sequence[str]) -> None:
        """Warn of images whose 16 bits become 8, unless ``sixteen_bit_max`` says how.

        Args:
            paths: Image files, spread over a data set.
        """
        if self.sixteen_bit_max is not None:
            return
        report = sixteen_bit_report(paths, max_pixels=self.max_pixels)
        if report is not None:
            warnings.warn(report, UserWarning, stacklevel=3)
