"""The detection dataset: images with boxes, read from an annotation table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lit_loader.annotations.tiling import file_sizes
from lit_loader.datasets.targets import (
    OBJECT_FIELDS,
    ORIENTED_FORMATS,
    Oriented,
    attribute_names,
    check_keypoints,
    check_masks,
    check_oriented,
    check_rows,
    object_target,
    unlabelled_labels,
)
from lit_loader.errors import ImageError, SettingError
from lit_loader.foundation.stage_times import TRANSFORMING
from lit_loader.images import DecodedImage, LazyImage
from lit_loader.images.decoded_cache import CachedReader, CacheSettings, shrink_target
from lit_loader.images.lazy_image import ExactImage
from lit_loader.images.reading import ImageReading
from lit_loader.mixing import MixSample
from lit_loader.transforms import DecodeAwareCompose
from lit_loader.transforms.compose import needs_target
from lit_loader.transforms.oriented import apply_transform
from lit_loader.transforms.preset_extras import check_holds_oriented
from lit_loader.transforms.sanitize import DeclaredFields, SanitizeObjects
from lit_loader.transforms.scheduled import current_transform
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable
    from lit_loader.storage.images import StoredSamples

__all__ = ["DetectionDataset", "DetectionSample", "check_dataset_settings"]

DetectionSample: TypeAlias = tuple[Any, dict[str, Any]]
"""``(image, target)``; a transform may return any type."""

# Usually all images of a dataset are 16-bit or none is. A header takes up to 0.1 ms to read, more on a network.
_NUM_INSPECTED: Final = 256


class DetectionDataset(Dataset[DetectionSample]):
    """Images with boxes, in the format of torchvision's detection references.

    ``dataset[i]`` is ``(image, target)``. The image is a ``tv_tensors.Image``, uint8, ``(3, H, W)``. The target is a
    dict with one row for each of N objects in the order of the table (N may be 0):

    - ``boxes``: ``tv_tensors.BoundingBoxes``, float32, ``(N, 4)``, XYXY pixels, clipped to the image.
      With ``oriented="corners"`` float32 ``(N, 8)``, XYXYXYXY, the corners as annotated, clockwise on the screen; with
      ``"rotated"`` float32 ``(N, 5)``, CXCYWHR, as annotated, or the smallest rectangle around the corners. An
      object without an annotated orientation has the corners of its box, or the angle 0. Oriented boxes are not clipped
      and have ``clamping_mode=None``: a box that the image shows in part keeps its shape;
    - ``labels``: int64 ``(N,)``, class id + ``first_label``;
    - ``image_id``: int, the image's number in the annotations (COCO), otherwise its index in the table; see
      `AnnotationTable.image_numbers`;
    - ``is_duplicate``: bool, see `lit_loader.is_duplicate`;
    - ``area``: float32 ``(N,)``, of the boxes inside the image; ``iscrowd``: int64 ``(N,)``;
    - each name in ``extra_fields``: bool ``(N,)``;
    - with ``keypoints``: ``keypoints``, a ``tv_tensors.KeyPoints``, float32 ``(N, K, 2)``, and ``visibility``,
      uint8 ``(N, K)``: 0 absent, 1 hidden, 2 visible. A point outside the image keeps its coordinates and counts as
      absent;
    - with ``masks``: ``masks``, a ``tv_tensors.Mask``, uint8 ``(N, H, W)``, 1 for pixels whose centre is inside the
      object. Masks take N bytes a pixel. An object without a mask gets an empty one, and `SanitizeObjects` removes it;
    - each name in ``attributes``: int64 ``(N,)``, ids from 0, -1 for an object without the attribute;
    - ``unlabelled``, only if the table has ``unlabelled_classes``: int64 ``(U,)``, their labels, whatever N is.

    The decoded, upright image is the canvas. No row is removed here: an object without area after clipping keeps its
    row until ``SanitizeObjects`` removes it from every field at once.

    If the table has ``regions``, such as the tiles of `tile_table`, the image of a sample is the region, with the bits
    that it has in the whole image. Of a JPEG only the region is decoded, so damage elsewhere in the file may remain
    undetected; a cache holds whole images. ``reading.size_mismatch`` applies to the size of the file: with ``"clip"``,
    a `UserWarning` names the first file with another size than its annotation, because pixels beyond the annotated
    size are in no tile. A region that is not inside its file is an error.

    Runs in: the main process, workers and threads; its only mutable state is that it warns once.
    Owns: its mapping of the ``cache``, if any. It references the table's arrays and creates no Python object per image,
        so forked workers do not copy it page by page, and its pickle is as small as the table's.
    Determinism: only ``transforms`` may be random.

    Args:
        table: The annotations.
        transforms: Called as ``transforms(image, target)``; the dataset returns the result. A `ScheduledTransform` is
            replaced by its transform of the sample's epoch.
        first_label: Label of class id 0; 0 for models without a background class, such as DETR.
        extra_fields: Columns of the table to add: ``"difficult"``, ``"occluded"``, ``"truncated"``.
        keypoints: Add the points; the table must have points.
        masks: Add the masks, drawn from polygons or run lengths for each sample; the table must have masks.
        attributes: Names of the table's attributes to add, or ``"all"``.
        oriented: ``"corners"`` or ``"rotated"`` for oriented ``boxes``, None for boxes along the axes. torchvision's
            transforms then move corners as points; your own function gets boxes. The table must have oriented boxes.
        reading: Settings for reading image files.
        cache: Cache decoded images in a file that processes and runs share: True, or `CacheSettings` with a folder, a
            size and a budget. With a size, larger images and their targets are shrunk to it.

    Raises:
        ValueError: An argument is not one of its choices, the table lacks a requested column, or a table with regions
            meets a cache of shrunk images.
        CacheError: The cache exceeds its budget, or cannot be written.
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
        oriented: Oriented | None = None,
        reading: ImageReading = ImageReading(),
        cache: CacheSettings | bool = False,
    ) -> None:
        check_dataset_settings(first_label=first_label, extra_fields=extra_fields, oriented=oriented)
        if oriented is not None:
            check_oriented(table, form=oriented)
            check_holds_oriented(transforms)
        if not isinstance(reading, ImageReading):
            raise TypeError(f"reading={reading!r} is not an ImageReading; give one, e.g. ImageReading(decode='fast').")
        if keypoints:
            check_keypoints(table)
        if masks:
            check_masks(table)
        self.reading = reading.for_table(table)
        self.table = table
        self.transforms = transforms
        self.first_label = first_label
        self.extra_fields = tuple(extra_fields)
        self.keypoints = keypoints
        self.masks = masks
        self.attributes = attribute_names(table, attributes)
        self.oriented = oriented
        # Of a table without such classes, targets have no such field.
        self._unlabelled = unlabelled_labels(table, first_label)
        # See `skip_targets`.
        self._image_only = False
        # The table recomputes its number of images at each access.
        self._num_images = table.num_images
        inspected = range(0, self._num_images, max(1, self._num_images // _NUM_INSPECTED))
        reading.warn_of_sixteen_bits(list(dict.fromkeys(map(self._path, inspected))))
        cache_settings = CacheSettings.of(cache)
        self._file_sizes = None if table.regions is None else file_sizes(table)
        self._warns_of_sizes = True
        if self._file_sizes is not None and cache_settings is not None and cache_settings.cache_size is not None:
            rule = "shrinks whole images, so their regions would lose the detail that they are cut out for"
            raise SettingError("cache_size", cache_settings.cache_size, rule, settings={"cache_size": None})
        self.cache = None if cache_settings is None else CachedReader(table, self.reading, cache_settings)

    def skip_targets(self) -> None:
        """Use empty targets from now on, if the transforms return the same image without a target.

        For a dataset that uses only the image: creating and transforming a target takes as long as a small crop.
        """
        # Of other transforms, nothing is known: `needs_target` is True for them.
        self._image_only = self.transforms is None or not needs_target(self.transforms)

    def __len__(self) -> int:
        return self._num_images

    def sample_path(self, index: SupportsIndex) -> Path | str:
        """Return the path of a sample's image file, or the URL of a stored image, without opening it.

        Raises:
            IndexError: ``index`` is out of range.
        """
        return self.reading.location(self.table.image_path(range(len(self))[index]))

    def stored_samples(self) -> list[StoredSamples]:
        """Return the stores that images are read from, with the slot of each sample's image; empty for files."""
        # With a cache, only images that could not be decoded are read again.
        return [] if self.cache is not None else self.reading.stored_samples(self.table)

    def __getitem__(self, index: SupportsIndex) -> DetectionSample:
        """Read one sample.

        Args:
            index: From ``-len(self)`` to ``len(self) - 1``.

        Returns:
            ``(image, target)``, see the class.

        Raises:
            IndexError: ``index`` is out of range.
            ImageError: The image cannot be decoded, or its size is refused; the message names the file.
            ValueError: ``transforms`` returned a target whose per-object fields do not have one row per box.
        """
        position = self._position(index)
        transforms = current_transform(self.transforms)
        # Only these transforms decode no more than they show.
        image, target = self._read(position, lazy=isinstance(transforms, DecodeAwareCompose))
        return self._transformed(position, image, target, transforms)

    def open_sample(self, index: SupportsIndex) -> MixSample:
        """Read one sample to be mixed: its target, and its image, whose pixels are read on demand.

        A mix that shows a region decodes only the region of a JPEG, so damage elsewhere in the file may remain
        undetected. With ``decode="exact"`` the region has the bits of the decoded image.

        Of a `DecodeAwareCompose`, such as a preset returns, the first ``before_mixing`` transforms are applied, of
        others none. `finish_sample` applies the rest to the mixed sample.

        Args:
            index: From ``-len(self)`` to ``len(self) - 1``.

        Raises:
            IndexError: ``index`` is out of range.
            ImageError: The image cannot be decoded, or its size is refused; the message names the file.
            TypeError: The first transforms do not return a uint8 image ``(3, H, W)``.
        """
        position = self._position(index)
        image, target = self._read(position, lazy=True, by_region=True)
        transforms = current_transform(self.transforms)
        fields = self._declared_fields(transforms)
        if not isinstance(transforms, DecodeAwareCompose):
            return MixSample(image, target, fields=fields)
        try:
            with TRANSFORMING:
                image, target = transforms.read_first(image, target)
            return MixSample(_mix_image(image), target, fields=fields)
        except Exception as error:
            self._add_note(error, position)
            raise

    def finish_sample(self, index: SupportsIndex, image: LazyImage, target: dict[str, Any]) -> DetectionSample:
        """Apply the transforms that `open_sample` did not apply.

        Args:
            index: Index of the sample, for messages.
            image: The image, mixed or as `open_sample` returned it.
            target: Its target.

        Returns:
            ``(image, target)``, see the class. If nothing was mixed, it is ``self[index]``.

        Raises:
            ValueError: ``transforms`` returned a target whose per-object fields do not have one row per box.
        """
        transforms = current_transform(self.transforms)
        return self._transformed(self._position(index), image, target, transforms, after_mixing=True)

    def _declared_fields(self, transforms: Any) -> DeclaredFields:
        """Return the names of the fields of targets, with those that a `SanitizeObjects` of the transforms declares."""
        steps = transforms.transforms if isinstance(transforms, DecodeAwareCompose) else ()
        per_object = {*self.extra_fields, *self.attributes}
        per_image: set[str] = set()
        for step in steps:
            if isinstance(step, SanitizeObjects):
                per_object |= step.fields.per_object
                per_image |= step.fields.per_image
        return DeclaredFields(sorted(per_object - per_image), sorted(per_image))

    def _position(self, index: SupportsIndex) -> int:
        # A range handles negative indices and everything with __index__.
        try:
            return range(self._num_images)[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range for a dataset of {self._num_images} images.") from None

    def _read(self, position: int, *, lazy: bool, by_region: bool = False) -> tuple[LazyImage, dict[str, Any]]:
        """Return the image of a sample and its target, before transforms.

        Args:
            position: Row of the table.
            lazy: Decode the image later, if the settings for reading allow to decode only the part that is shown.
            by_region: Decode any image later, with the bits of the decoded image if the settings require them.
        """
        image, (width, height) = self._open(position, lazy=lazy, by_region=by_region)
        annotated_size = int(self.table.widths[position]), int(self.table.heights[position])
        if annotated_size != (width, height):
            self._check_size(self._path(position), annotated_size, (width, height))
        target: dict[str, Any] = {}
        if not self._image_only:
            target = object_target(
                self.table,
                position,
                canvas_size=(height, width),
                first_label=self.first_label,
                extra_fields=self.extra_fields,
                keypoints=self.keypoints,
                attributes=self.attributes,
                mask_size=image.size if self.masks else None,
                unlabelled=self._unlabelled,
                oriented=self.oriented,
            )
            # The cache may have shrunk the image.
            if image.size != (height, width):
                target = shrink_target(target, true_size=(width, height), image=image)
        return image, target

    def _transformed(
        self, position: int, image: LazyImage, target: dict[str, Any], transforms: Any, *, after_mixing: bool = False
    ) -> DetectionSample:
        """Apply all transforms to a sample, or those that `open_sample` has not applied."""
        if transforms is None:
            return image.image(), target
        # An error in a transform is hard to reproduce without the sample that caused it.
        try:
            with TRANSFORMING:
                if isinstance(transforms, DecodeAwareCompose):
                    read = transforms.read_rest if after_mixing else transforms.read
                    sample: DetectionSample = read(image, target)
                elif self.oriented is None:
                    sample = transforms(image.image(), target)
                else:
                    sample = apply_transform(transforms, (image.image(), target))
            # A transform that filters only the boxes would pair them with the wrong labels from here on.
            if not self._image_only:
                check_rows(sample, fields=(*self.extra_fields, *self.attributes))
        except Exception as error:
            self._add_note(error, position)
            raise
        return sample

    def _add_note(self, error: Exception, position: int) -> None:
        error.add_note(f"while transforming sample {position}, image {self.reading.location(self._path(position))}")

    def _path(self, position: int) -> str:
        # Formatting takes a third of the time of joining a Path.
        return f"{self.table.root}/{self.table.image_paths[position]}"

    def _open(self, position: int, *, lazy: bool, by_region: bool) -> tuple[LazyImage, tuple[int, int]]:
        """Return the image, and its (width, height) in the file; see `_read`."""
        if self.cache is not None:
            cached_image, size = self.cache.open(position)
            cropped_image = self._cropped(cached_image, position)
            return cropped_image, (size if cropped_image is cached_image else cropped_image.size[::-1])
        image = self._cropped(self.reading.open(self._path(position)), position)
        if self.reading.decode != "fast" or not lazy:
            image = ExactImage(image) if by_region else DecodedImage(image.read())
        height, width = image.size
        return image, (width, height)

    def _cropped(self, image: LazyImage, position: int) -> LazyImage:
        """Return the region of an image that a row of the table describes; the image itself without a region.

        Raises:
            ImageError: The region is not inside the image, or the size of the image is refused.
        """
        # A region of zeros is the whole file.
        if self.table.regions is None or self._file_sizes is None or not self.table.regions[position].any():
            return image
        x0, y0, x1, y1 = self.table.regions[position].tolist()
        height, width = image.size
        file_width, file_height = self._file_sizes[position].tolist()
        if not (x0 < x1 <= width and y0 < y1 <= height) or (file_width, file_height) not in ((width, height), (0, 0)):
            self._check_region(self._path(position), (x0, y0, x1, y1), (file_width, file_height), (width, height))
        return image.cropped((x0, y0, x1, y1))

    def _check_region(
        self, path: str, region: tuple[int, int, int, int], annotated: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Refuse or report an image whose regions were cut for another size; see `_cropped` and `_check_size`."""
        width, height = size
        place = self.reading.location(path)
        self._check_size(path, annotated, size)
        if not self.reading.exif_orientation and annotated == (height, width):
            problem = f"{place}: its tiles are for the upright image, but exif_orientation=False reads stored pixels"
            raise ImageError(problem, remedy="leave out tiling", settings={"exif_orientation": True})
        if region[2] > width or region[3] > height or region[0] >= region[2] or region[1] >= region[3]:
            corners = f"{', '.join(map(str, region))} (left, top, right, bottom)"
            problem = f"{place}: the region {corners} is not inside the image, which is {width}x{height}"
            raise ImageError(problem, remedy="correct the image's size in its annotation, and make the tiles again")
        if self._warns_of_sizes:
            self._warns_of_sizes = False
            warnings.warn(
                f"{place}: the image is {width}x{height}, its annotation and its tiles are for "
                f"{annotated[0]}x{annotated[1]}, so they do not cover the image or lead out of it; correct the "
                "annotation, or pass size_mismatch='raise' to refuse such images",
                stacklevel=2,
            )

    def _check_size(self, path: str, annotated: tuple[int, int], size: tuple[int, int]) -> None:
        """Refuse an image whose (width, height) differs from the annotation, if the settings or its boxes require it.

        Args:
            path: The image file.
            annotated: Size in the annotation.
            size: Size of the decoded, upright image.
        """
        self._check_orientation(path, annotated, size)
        # A size of 0 is unknown, and any image matches it.
        if self.reading.size_mismatch == "raise" and all(annotated):
            place = self.reading.location(path)
            raise ImageError(
                f"{place}: the image is {size[0]}x{size[1]}, its annotation says {annotated[0]}x{annotated[1]}",
                remedy="correct the annotation, set exif_orientation if width and height are exchanged",
                settings={"size_mismatch": "clip"},
            )

    def _check_orientation(self, path: str, annotated: tuple[int, int], size: tuple[int, int]) -> None:
        """Refuse an image that EXIF turns onto its side if its annotation has the stored size; see `_check_size`."""
        # Its boxes were then drawn on the stored pixels.
        if self.reading.exif_orientation and annotated == size[::-1]:
            stored_size = self.reading.without_exif().open(path).size
            if annotated == stored_size[::-1]:
                place = self.reading.location(path)
                raise ImageError(
                    f"{place}: EXIF turns the image from {annotated[0]}x{annotated[1]} to {size[0]}x{size[1]}, but its "
                    "annotation has the size as stored, so its boxes were drawn on the pixels as stored",
                    remedy="correct <size> if the boxes refer to the upright image",
                    settings={"exif_orientation": False},
                )


def check_dataset_settings(*, first_label: int, extra_fields: Sequence[str], oriented: Oriented | None = None) -> None:
    """Check settings of a `DetectionDataset` before there is a table.

    Raises:
        ValueError: A setting is not one of its choices.
    """
    unknown_names = [name for name in extra_fields if name not in OBJECT_FIELDS]
    if unknown_names:
        raise ValueError(f"extra_fields contains {unknown_names}; the choices are {list(OBJECT_FIELDS)}.")
    if oriented not in (None, *ORIENTED_FORMATS):
        raise SettingError("oriented", oriented, f"is not one of {[None, *ORIENTED_FORMATS]}")
    if first_label < 0:
        raise ValueError(f"first_label={first_label} would make labels negative; give 0 or more.")


def _mix_image(image: Any) -> LazyImage:
    """Return an image after the transforms before mixing, which may have decoded it."""
    if isinstance(image, LazyImage):
        return image
    is_tensor = isinstance(image, Tensor)
    if not is_tensor or image.dtype is not torch.uint8 or image.ndim != 3 or len(image) != 3 or not image.is_cpu:
        kind = f"{image.dtype} {tuple(image.shape)}" if is_tensor else type(image).__name__
        raise TypeError(
            f"expected a uint8 image (3, H, W) before mixing, got {kind}; move the transform that changes it behind "
            "mixing, from extra_before to extra_after"
        )
    return DecodedImage(image.as_subclass(Tensor))
