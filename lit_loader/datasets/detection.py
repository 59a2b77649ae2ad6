"""The detection data set: a view of an annotation table that gives images with boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias

from torch.utils.data import Dataset

from lit_loader.datasets.targets import (
    OBJECT_FIELDS,
    attribute_names,
    check_keypoints,
    check_masks,
    check_rows,
    object_target,
)
from lit_loader.errors import ImageError
from lit_loader.images import DecodedImage, LazyImage
from lit_loader.images.decoded_cache import CachedReader, CacheSettings, shrink_target
from lit_loader.images.encoded_image import decode_image
from lit_loader.images.reading import ImageReading
from lit_loader.transforms import DecodeAwareCompose
from lit_loader.transforms.compose import needs_target
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["DetectionDataset", "DetectionSample", "check_dataset_settings"]

DetectionSample: TypeAlias = tuple[Any, dict[str, Any]]
"""``(image, target)``; what a transform gives may be of any type."""


# Of a data set of 16-bit images all are such, as a rule, and a header takes up to 0.1 ms, or more on a network.
_NUM_LOOKED_AT: Final = 256


class DetectionDataset(Dataset[DetectionSample]):
    """Images with boxes, as torchvision's detection references give them.

    ``dataset[i]`` is ``(image, target)``: the image a ``tv_tensors.Image``, uint8, ``(3, H, W)``; the target
    a dict of, for N objects in the order of the table (N may be 0):

    - ``boxes``: ``tv_tensors.BoundingBoxes``, float32, ``(N, 4)``, XYXY pixels, clipped to the image;
    - ``labels``: int64 ``(N,)``, class id + ``first_label``;
    - ``image_id``: int, the number that the annotations give the image (COCO), else the index in the table: see
      `AnnotationTable.image_numbers`;
    - ``is_duplicate``: bool, what `lit_loader.is_duplicate` says of the sample;
    - ``area``: float32 ``(N,)``, of the boxes; ``iscrowd``: int64 ``(N,)``;
    - every name in ``extra_fields``: bool ``(N,)``;
    - with ``keypoints``: ``keypoints``, a ``tv_tensors.KeyPoints``, float32 ``(N, K, 2)``, and ``visibility``,
      uint8 ``(N, K)``: 0 absent, 1 hidden, 2 visible. A point outside the image keeps its coordinates and
      counts as absent;
    - with ``masks``: ``masks``, a ``tv_tensors.Mask``, uint8 ``(N, H, W)``, 1 on the pixels whose centre lies inside of
      the object; one without a mask has an empty one, and `SanitizeObjects` drops it. They take N bytes a pixel;
    - every name in ``attributes``: int64 ``(N,)``, ids from 0, -1 where the object has none.

    The decoded, upright image decides the canvas. Rows are never dropped here: an object that clipping
    leaves without area keeps its row until ``SanitizeObjects`` drops it from every field at once.

    Runs in: the main process, workers and threads alike; it has no state that changes.
    Owns: nothing but its part of a ``cache``. It holds the table's arrays and no Python object per image, so
        forked workers do not copy it bit by bit, and it pickles as small as its table does.
    Determinism: no randomness of its own; that of ``transforms`` is theirs.

    Args:
        table: The annotations.
        transforms: Called as ``transforms(image, target)``, gives what the data set gives.
        first_label: Label of class id 0; 0 for models without a background class, such as DETR.
        extra_fields: Columns of the table to add: ``"difficult"``, ``"occluded"``, ``"truncated"``.
        keypoints: Add the points; the table must have some.
        masks: Add the masks, drawn from polygons or run lengths for each sample; the table must have some.
        attributes: Names of the table's attributes to add, or ``"all"``.
        reading: How image files are read.
        cache: Keep the images decoded in a file that processes and runs share: True, or `CacheSettings` with a folder,
            a size and a budget. With a size, larger images are samples of that size, and their targets with them.

    Raises:
        ValueError: An argument is outside its choices, or the table lacks what is asked for.
        CacheError: The cache does not fit, or cannot be written.
    """

    def __init__(
        self,
        table: AnnotationTable,
        *,
        transforms: Callable[[Any, dict[str, Any]], DetectionSample] | None = None,
        first_label: int = FIRST_LABEL,
        extra_fields: Sequence[str] = (),
        keypoints: bool = False,
        masks: bool = False,
        attributes: Sequence[str] | Literal["all"] = (),
        reading: ImageReading = ImageReading(),
        cache: CacheSettings | bool = False,
    ) -> None:
        check_dataset_settings(first_label=first_label, extra_fields=extra_fields)
        if not isinstance(reading, ImageReading):
            raise TypeError(
                f"reading={reading!r} is not an ImageReading, such as ImageReading(decode='fast')."
            )
        self.reading = reading
        self.table = table
        self.transforms = transforms
        self.first_label = first_label
        self.extra_fields = tuple(extra_fields)
        if keypoints:
            check_keypoints(table)
        self.keypoints = keypoints
        if masks:
            check_masks(table)
        self.masks = masks
        self.attributes = attribute_names(table, attributes)
        self._image_alone = False
        self._num_images = table.num_images  # the table counts anew each time
        spread = range(0, self._num_images, max(1, self._num_images // _NUM_LOOKED_AT))
        reading.warn_of_sixteen_bits(list(dict.fromkeys(map(self._path, spread))))
        kept = CacheSettings.of(cache)
        self.cache = None if kept is None else CachedReader(table, reading, kept)

    def skip_targets(self) -> None:
        """Leave the targets empty from now on, where the transforms make the same image without them.

        For a data set that uses the image alone: making a target and moving it takes as long as a small crop.
        """
        plain = self.transforms is None or isinstance(self.transforms, DecodeAwareCompose)
        self._image_alone = plain and not (self.transforms is not None and needs_target(self.transforms))

    def __len__(self) -> int:
        return self._num_images

    def sample_path(self, index: SupportsIndex) -> Path:
        """Return the image file of a sample, with nothing opened.

        Raises:
            IndexError: ``index`` is out of range.
        """
        return self.table.image_path(range(len(self))[index])

    def __getitem__(self, index: SupportsIndex) -> DetectionSample:
        """Read one sample.

        Args:
            index: From ``-len(self)`` to ``len(self) - 1``.

        Returns:
            ``(image, target)``, see the class.

        Raises:
            IndexError: ``index`` is out of range.
            ImageError: The image cannot be decoded, or its size is refused; the message names the file.
            ValueError: ``transforms`` gave a target whose per-object fields are not one row a box.
        """
        try:
            position = range(self._num_images)[index]
        except IndexError:
            raise IndexError(
                f"index {index} is out of range for a data set of {self._num_images} images."
            ) from None
        image, (width, height) = self._open(position)
        annotated = int(self.table.widths[position]), int(self.table.heights[position])
        if annotated != (width, height):
            self._check_size(self._path(position), annotated=annotated, found=(width, height))
        target: dict[str, Any] = {}
        if not self._image_alone:
            target = object_target(
                self.table,
                position,
                canvas_size=(height, width),
                first_label=self.first_label,
                extra_fields=self.extra_fields,
                keypoints=self.keypoints,
                attributes=self.attributes,
                mask_size=image.size if self.masks else None,
            )
            if image.size != (height, width):
                target = shrink_target(target, true_size=(width, height), image=image)
        if self.transforms is None:
            return image.image(), target
        try:
            if isinstance(self.transforms, DecodeAwareCompose):
                sample: DetectionSample = self.transforms.read(image, target)
            else:
                sample = self.transforms(image.image(), target)
            if not self._image_alone:
                check_rows(sample, fields=(*self.extra_fields, *self.attributes))
        except Exception as error:
            error.add_note(f"while transforming sample {position}, image {self._path(position)}")
            raise
        return sample

    def _path(self, position: int) -> str:
        return f"{self.table.root}/{self.table.image_paths[position]}"  # a third of a Path's time

    def _open(self, position: int) -> tuple[LazyImage, tuple[int, int]]:
        """Return the image, and its (width, height) in the file.

        It is decoded, unless it is cached or ``transforms`` and ``decode`` say to decode what is shown.
        """
        if self.cache is not None:
            return self.cache.open(position)
        path = self._path(position)
        if self.reading.decode == "fast" and isinstance(self.transforms, DecodeAwareCompose):
            image: LazyImage = self.reading.open(path)
        else:
            image = DecodedImage(self.reading.read(path))
        height, width = image.size
        return image, (width, height)

    def _check_size(self, path: str, *, annotated: tuple[int, int], found: tuple[int, int]) -> None:
        """Refuse an image of another (width, height) than annotated, if the settings or its boxes ask for that."""
        if self.reading.exif_orientation and annotated == found[::-1]:
            self._check_not_turned(path, annotated=annotated)
        if self.reading.size_mismatch == "raise" and all(annotated):
            raise ImageError(
                f"{path}: the image is {found[0]}x{found[1]}, its annotation says {annotated[0]}x{annotated[1]}; "
                "correct the annotation, set exif_orientation if the sides are exchanged, "
                "or set size_mismatch to 'clip' to trust the image"
            )

    def _check_not_turned(self, path: str, *, annotated: tuple[int, int]) -> None:
        """Refuse an image whose sides EXIF exchanged; ``annotated`` is the upright size exchanged."""
        stored = decode_image(path, max_pixels=self.reading.max_pixels, exif_orientation=False)
        height, width = stored.shape[-2:]
        if annotated == (width, height):
            raise ImageError(
                f"{path}: EXIF turns the image from {width}x{height} to {height}x{width}, and its annotation "
                f"says {annotated[0]}x{annotated[1]}: the boxes were drawn on the pixels as stored. Give "
                "exif_orientation=False, or correct <size> if the boxes refer to the upright image."
            )


def check_dataset_settings(*, first_label: int, extra_fields: Sequence[str]) -> None:
    """Check the settings of a `DetectionDataset` before there is a table.

    Raises:
        ValueError: One is outside its choices.
    """
    unknown = [name for name in extra_fields if name not in OBJECT_FIELDS]
    if unknown:
        raise ValueError(f"extra_fields holds {unknown}; the choices are {list(OBJECT_FIELDS)}.")
    if first_label < 0:
        raise ValueError(f"first_label={first_label} makes negative labels; give 0 or more.")
