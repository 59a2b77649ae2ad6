"""Images to one batch tensor: stacked where sizes are equal, padded where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.collate.memory import new_batch, stacked_already

__all__ = ["pad_images", "plain_images", "stack_images"]


def plain_images(images: Sequence[Any]) -> list[Tensor]:
    """Return the images as plain tensors, without the ``tv_tensors.Image`` type; no pixel is copied.

    Args:
        images: Tensors of shape ``(C, H, W)``, of one dtype and number of channels.

    Raises:
        TypeError: An image is no tensor.
        ValueError: An image does not have three dimensions, or dtypes or channels differ.
    """
    for image in images:
        if not isinstance(image, Tensor):
            raise TypeError(
                f"an image is a {type(image).__name__}, not a tensor; convert it in the dataset's "
                "transforms, for instance with torchvision.transforms.v2.ToImage()."
            )
        if image.ndim != 3:
            raise ValueError(f"an image has shape {tuple(image.shape)}; the rule is (C, H, W).")
    kinds = {(str(image.dtype), image.shape[0]) for image in images}
    if len(kinds) > 1:
        raise ValueError(
            f"the images of a batch differ in (dtype, channels): {sorted(kinds)}; convert them alike in the "
            "dataset's transforms."
        )
    return [image.as_subclass(Tensor) for image in images]


def stack_images(images: Sequence[Any]) -> Tensor:
    """Write images of equal size into one tensor, each once.

    Args:
        images: Tensors of shape ``(C, H, W)``.

    Returns:
        Tensor of shape ``(B, C, H, W)``.

    Raises:
        TypeError, ValueError: As ``plain_images``, or the sizes differ.
    """
    plain = plain_images(images)
    sizes = [tuple(image.shape[1:]) for image in plain]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"images of different sizes (H, W) cannot be stacked: {sizes}; resize them in the dataset's "
            'transforms, or collate with images="list" or images="pad".'
        )
    if all(image.is_contiguous() and image.is_cpu for image in plain):
        addresses = [image.data_ptr() for image in plain]
        batch = stacked_already(addresses, plain[0].shape, plain[0].dtype)
        if batch is not None:
            return batch
    batch = _new_like(plain[0], (len(plain), *plain[0].shape))
    for row, image in zip(batch, plain, strict=True):
        row.copy_(image)
    return batch


def pad_images(
    images: Sequence[Any], *, size_divisor: int = 1, pad_value: float = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Write images of any sizes into one tensor, each at the top left, padded right and below.

    Every element of the batch is written once.

    Args:
        images: Tensors of shape ``(C, H, W)``.
        size_divisor: Height and width of the batch are rounded up to a multiple of it.
        pad_value: Value of padded pixels, in the images' own units.

    Returns:
        The batch ``(B, C, H, W)``; the mask, bool ``(B, H, W)``, True on real pixels; the sizes, int64
        ``(B, 2)``, height and width of each image.

    Raises:
        TypeError, ValueError: As ``plain_images``, or ``pad_value`` does not fit the images' dtype.
    """
    plain = plain_images(images)
    sizes = torch.tensor([image.shape[1:] for image in plain], dtype=torch.int64)
    height, width = (-(-int(side) // size_divisor) * size_divisor for side in sizes.amax(dim=0))
    _check_pad_value(pad_value, dtype=plain[0].dtype)
    batch = _new_like(plain[0], (len(plain), plain[0].shape[0], height, width))
    mask = torch.zeros((len(plain), height, width), dtype=torch.bool)
    for row, real, image in zip(batch, mask, plain, strict=True):
        image_height, image_width = image.shape[1:]
        row[:, :image_height, :image_width].copy_(image)
        row[:, :image_height, image_width:].fill_(pad_value)
        row[:, image_height:, :].fill_(pad_value)
        real[:image_height, :image_width] = True
    return batch, mask, sizes


def _new_like(image: Tensor, shape: Sequence[int]) -> Tensor:
    """Return memory for a batch where its images are, its values not set."""
    return new_batch(shape, image.dtype, "cpu") if image.is_cpu else image.new_empty(shape)


def _check_pad_value(pad_value: float, *, dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        return
    limits = torch.iinfo(dtype)
    if pad_value != int(pad_value) or not limits.min <= pad_value <= limits.max:
        raise ValueError(
            f"pad_value={pad_value} is no value of {dtype} images ({limits.min}..{limits.max}, whole); "
            "give one in the images' own units."
        )
