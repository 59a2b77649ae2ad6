"""Settings that datasets read their images with."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, get_args

from PIL import Image
from torch import Tensor

from lit_loader.annotations.formats.image_sizes import read_image_sizes
from lit_loader.annotations.splitting import Traits
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import ImageError
from lit_loader.images.decoding import MAX_PIXELS, SIXTEEN_BIT_MAX, sixteen_bit_report
from lit_loader.images.encoded_image import open_image
from lit_loader.images.lazy_image import LazyImage
from lit_loader.storage.mirror import is_mirrored

if TYPE_CHECKING:
    from lit_loader.storage.images import StoredSamples

__all__ = ["Decode", "ImageReading", "SizeMismatch"]

Decode: TypeAlias = Literal["exact", "fast"]
"""Decode every pixel of an image, or only the pixels that a transform shows."""

SizeMismatch: TypeAlias = Literal["clip", "raise"]
"""Accept or refuse an image whose size differs from the size in its annotation."""


@dataclass(frozen=True, kw_only=True)
class ImageReading:
    """Settings of a dataset for reading its images.

    Args:
        size_mismatch: How to handle a decoded size that differs from the annotated one: ``"clip"`` trusts the image,
            ``"raise"`` refuses the sample. An annotated size of 0 means unknown.
        exif_orientation: Turn images upright according to EXIF; False if boxes were drawn on the pixels as stored.
            An image that EXIF turns onto its side is refused, whatever ``size_mismatch`` is, if its annotated size is
            the stored one, because its boxes would be misplaced.
        max_pixels: Largest width x height accepted, see `decode_image`.
        decode: ``"exact"`` decodes every pixel. ``"fast"`` decodes only the part of a JPEG that the transforms show,
            at a reduced size if that is enough, provided that the transforms are a preset or a
            ``lit_loader.transforms.DecodeAwareCompose``. Random draws and targets are the same, and pixels are within
            the bound of `EncodedImage`. Other transforms get every pixel either way, and so does a cache.
        sixteen_bit_max: The 16-bit grayscale value that maps to 255, such as 4095 for 12-bit data; higher values
            also become 255. None means 65535: a dataset then inspects up to 512 images, and warns with the number of
            16-bit ones and their largest value.

    Raises:
        ValueError: A setting is not one of its choices.
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
            raise ValueError(f"max_pixels={self.max_pixels!r} is not a positive int; give a number of pixels.")

        max_value = self.sixteen_bit_max
        # type(): True is an int, but no number of levels.
        if max_value is not None and (type(max_value) is not int or not 1 <= max_value <= SIXTEEN_BIT_MAX):
            rule = f"is not an int from 1 to {SIXTEEN_BIT_MAX}"
            raise ValueError(f"sixteen_bit_max={max_value!r} {rule}; give the value that should map to 255, or None.")

    def read(self, path: Path | str) -> Tensor:
        """Decode all pixels of an image file, uint8 ``(3, H, W)``.

        Raises:
            ImageError: The image cannot be decoded or is larger than ``max_pixels``; the message names the file.
        """
        return self.open(path).read()

    def open(self, path: Path | str) -> LazyImage:
        """Read an image file and its header; pixels are decoded on demand.

        Raises:
            ImageError: The file cannot be read, is larger than ``max_pixels``, or is only a placeholder of a stored
                image; the message names the file.
        """
        # With the header filled in, decoders return zeros for the rest.
        if is_mirrored(path):
            remedy = "give the data set reading=source.image_reading(ImageReading()) of the source of its table"
            raise ImageError(f"{path} is a placeholder of an image in a store; {remedy}.")
        return open_image(
            path,
            max_pixels=self.max_pixels,
            exif_orientation=self.exif_orientation,
            sixteen_bit_max=self.sixteen_bit_max or SIXTEEN_BIT_MAX,
        )

    def size(self, path: Path | str) -> tuple[int, int]:
        """Return height and width of an image as `open` returns it, from its header if possible.

        Raises:
            ImageError: The size cannot be read; the message names the file.
        """
        if not self.exif_orientation:
            return self.open(path).size
        path = Path(path)
        sizes, reasons = read_image_sizes(path.parent, [path.name], num_workers=0, progress=False)
        if reasons:
            raise ImageError(f"{path}: the size of the image cannot be read: {reasons[0]}.")
        width, height = sizes[0].tolist()
        return height, width

    def location(self, path: Path | str) -> Path | str:
        """Return the name of an image in messages: its path, or the URL of a stored image."""
        return path

    def for_table(self, table: AnnotationTable) -> ImageReading:
        """Return the reading of a data set of ``table``; by default this one."""
        return self

    def without_exif(self) -> ImageReading:
        """Return a reading of the pixels as stored, for an error about orientation."""
        # A subclass of the user's may not be copied with another setting.
        return ImageReading(exif_orientation=False, max_pixels=self.max_pixels)

    def stored_samples(self, table: AnnotationTable) -> list[StoredSamples]:
        """Return the stores that images of a table are read from, with the slot of each image; none by default."""
        return []

    def in_order(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield paths of images that are read in this order, so that stores can read ahead."""
        return iter(paths)

    @property
    def store_keys(self) -> tuple[str, ...]:
        """Keys that change with the stored images, for the key of a decoded cache; none for files."""
        return ()

    def warn_of_sixteen_bits(self, paths: Sequence[str]) -> None:
        """Warn if 16-bit images are reduced to 8 bits and ``sixteen_bit_max`` is None.

        Args:
            paths: Image files, sampled from the whole dataset.
        """
        self._warn_of_sixteen_bits(paths)

    @property
    def copy_traits(self) -> Traits | None:
        """Functions of a path that are equal for copies of an image, or None to compare files."""
        return None

    def _warn_of_sixteen_bits(self, files: Iterable[str | BinaryIO | Image.Image]) -> None:
        if self.sixteen_bit_max is None and (report := sixteen_bit_report(files, max_pixels=self.max_pixels)):
            # Three callers up: the code that creates the data set.
            warnings.warn(report, UserWarning, stacklevel=4)
