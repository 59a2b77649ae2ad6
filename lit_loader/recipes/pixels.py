"""Images as a network wants them: plain float tensors, normalised, with sides that its strides divide."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["IMAGE_MEAN", "IMAGE_STD", "network_input", "plain", "unit_range"]

IMAGE_MEAN: Final = 0.5
IMAGE_STD: Final = 0.25


def plain(value: Tensor) -> Tensor:
    """Return a tensor without its tv_tensor class, which would be looked at in every operation of a model."""
    return value.as_subclass(Tensor)


def unit_range(image: Tensor) -> Tensor:
    """Return an image as floats in [0, 1].

    Images may come as uint8, a quarter of the bytes to move, and are made float where the model is.

    Args:
        image: float in [0, 1], returned as it is, or uint8 in [0, 255]; any shape.
    """
    image = plain(image)
    return image if image.is_floating_point() else image.float() / 255


def network_input(images: Tensor, *, divisor: int = 32) -> Tensor:
    """Return a batch of images normalised, and padded right and below to sides that ``divisor`` divides.

    Args:
        images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.
        divisor: The largest stride of the network.

    Returns:
        float, shape ``(B, 3, H', W')``, channels last in memory, in which convolutions run faster; padding is
        0, the mean colour.

    Raises:
        ValueError: If the shape is another.
    """
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images of shape {tuple(images.shape)} are no batch of colours (B, 3, H, W)")
    normalised = (unit_range(images) - IMAGE_MEAN) / IMAGE_STD
    height, width = images.shape[-2:]
    padded = functional.pad(normalised, (0, -width % divisor, 0, -height % divisor))
    return padded.contiguous(memory_format=torch.channels_last)
