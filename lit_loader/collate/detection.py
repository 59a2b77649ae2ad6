"""Collation of detection samples: images of equal or unequal sizes, any number of boxes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from lit_loader.collate.default import default_collate
from lit_loader.collate.images import pad_images, plain_images, stack_images
from lit_loader.collate.samples import transpose_samples
from lit_loader.collate.targets import convert_targets, pad_fields_of

__all__ = ["DetectionCollate", "PaddedBatch", "detection_collate"]


class PaddedBatch(NamedTuple):
    """A batch of images of different sizes in one tensor; starts with ``images, targets`` as every mode.

    Boxes need no change, since images stand at the top left; their ``canvas_size`` stays that of the image.

    Attributes:
        images: ``(B, C, H, W)``.
        targets: As in the other modes.
        mask: bool ``(B, H, W)``, True on real pixels. DETR's masks are the inverse, ``~mask``.
        sizes: int64 ``(B, 2)``, height and width of each image in pixels.
        extras: What the samples hold beyond image and target, one entry an element.
    """

    images: Tensor
    targets: list[Any] | dict[str, Any]
    mask: Tensor
    sizes: Tensor
    extras: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DetectionCollate:
    """A collate function for ``(image, target, ...)`` samples; picklable, so any worker start method serves.

    Images are ``(C, H, W)`` tensors and come out as plain tensors: ``torch.stack`` cannot keep the type
    ``tv_tensors.Image``. Targets are kept whole, one per sample: a dict stays the dict it is, with its
    ``tv_tensors.BoundingBoxes`` and every further field, per object or per image; rows of numbers (``N x 5``
    lists, arrays, tensors) become float32 ``(N, 5)`` tensors. N may be 0, an empty list included.

    - ``stack``: ``(images (B, C, H, W), targets, *extras)``, for equal sizes; the classic function.
    - ``list``: ``(list of (C, H, W), targets, *extras)``, for torchvision's detectors.
    - ``pad``: ``PaddedBatch(images, targets, mask, sizes, extras)``, for models that take one tensor.

    The shape of the result follows from the arguments and never from what a batch happens to hold.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        images: How images are put together: ``stack``, ``list`` or ``pad``.
        size_divisor: Round the batch's height and width up to a multiple (``pad`` only).
        pad_value: Value of padded pixels, in the images' own units (``pad`` only).
        pad_fields: Names of ragged tensor fields and the value to pad each with, for instance
            ``{"labels": -1, "boxes": 0}``. With it ``targets`` is one dict of columns: a padded field
            ``(B, max N, ...)`` with ``<field>_mask`` beside it, any other field a list of B values.
        extras: Elements beyond image and target: ``"collate"`` as ``default_collate`` does, ``"list"``
            keeps a list of B values, which ragged ones need.

    Raises:
        ValueError: An argument is outside its choices or has no effect with this ``images``.
    """

    images: Literal["stack", "list", "pad"] = "stack"
    size_divisor: int = 1
    pad_value: float = 0
    pad_fields: Mapping[str, float] = field(default_factory=dict)
    extras: Literal["collate", "list"] = "collate"

    def __post_init__(self) -> None:
        if self.images not in ("stack", "list", "pad"):
            raise ValueError(f'images={self.images!r} is not one of "stack", "list", "pad".')
        if self.extras not in ("collate", "list"):
            raise ValueError(f'extras={self.extras!r} is not one of "collate", "list".')
        if self.size_divisor < 1:
            raise ValueError(f"size_divisor={self.size_divisor} must be at least 1.")
        if self.images != "pad" and (self.size_divisor != 1 or self.pad_value != 0):
            raise ValueError(
                f"size_divisor={self.size_divisor} and pad_value={self.pad_value} have no effect with "
                f'images={self.images!r}; leave them out or give images="pad".'
            )
        # A plain dict: what a configuration library hands over may not pickle.
        object.__setattr__(self, "pad_fields", dict(self.pad_fields))

    def __call__(self, batch: Sequence[Any]) -> tuple[Any, ...]:
        """Collate one batch.

        Args:
            batch: Samples ``(image, target, ...)``, all of the same length.

        Returns:
            See the class.

        Raises:
            TypeError: A sample is no tuple or list, or holds something else than promised.
            ValueError: The batch is empty, or its samples do not go together; sizes are shown.
        """
        pixels, given, *further = transpose_samples(batch)
        rows = convert_targets(given)
        targets = pad_fields_of(rows, self.pad_fields) if self.pad_fields else rows
        extras = tuple(self._collate_extra(place, values) for place, values in enumerate(further, start=2))
        if self.images == "pad":
            padded, mask, sizes = pad_images(pixels, size_divisor=self.size_divisor, pad_value=self.pad_value)
            return PaddedBatch(padded, targets, mask, sizes, extras)
        images = stack_images(pixels) if self.images == "stack" else plain_images(pixels)
        return (images, targets, *extras)

    def _collate_extra(self, place: int, values: list[Any]) -> Any:
        if self.extras == "list":
            return values
        try:
            return default_collate(values)
        except (RuntimeError, TypeError) as error:
            error.add_note(
                f'element {place} of the samples cannot be collated; extras="list" keeps it as a list'
            )
            raise


def detection_collate(
    batch: Sequence[Any],
    *,
    images: Literal["stack", "list", "pad"] = "stack",
    size_divisor: int = 1,
    pad_value: float = 0,
    pad_fields: Mapping[str, float] | None = None,
    extras: Literal["collate", "list"] = "collate",
) -> tuple[Any, ...]:
    """Collate detection samples; as it is, the classic function: stacked images and a list of targets.

    For other modes as a ``collate_fn``, use ``DetectionCollate(images="list")`` and so on, which this calls.

    Args:
        batch: Samples ``(image, target, ...)``.
        images: See ``DetectionCollate``, as for all that follow.
        size_divisor: For ``images="pad"``.
        pad_value: For ``images="pad"``.
        pad_fields: Ragged target fields to pad.
        extras: What happens to further elements.

    Returns:
        See ``DetectionCollate``.

    Raises:
        TypeError, ValueError: As ``DetectionCollate``.
    """
    collate = DetectionCollate(
        images=images,
        size_divisor=size_divisor,
        pad_value=pad_value,
        pad_fields=pad_fields or {},
        extras=extras,
    )
    return collate(batch)
