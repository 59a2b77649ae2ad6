"""Resize part of a decoded image with torchvision's antialiased bilinear resize, with strides that make it fast."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tv_functional

__all__ = ["Allocate", "resample"]

Allocate: TypeAlias = Callable[[Sequence[int], torch.dtype], Tensor]
"""Returns an uninitialized, contiguous tensor of a shape and dtype."""

_Cut: TypeAlias = tuple[int, int, int, int]
_Scales: TypeAlias = tuple[float, float] | tuple[None, None]

_upsample: Any = torch._C._nn._upsample_bilinear2d_aa


def resample(
    pixels: Tensor, box: Sequence[float], size: tuple[int, int], *, fill: float = 0, empty: Allocate | None = None
) -> Tensor:
    """Resize a box of an image once to ``size``, in new memory.

    Args:
        pixels: uint8 ``(3, h, w)`` in any memory format.
        box: Left, top, right and bottom; may be fractional.
        size: (height, width) of the result.
        fill: Value beyond the image.
        empty: Allocates the result; None for ordinary memory.

    Returns:
        uint8 ``(3, *size)``, with adjacent channels in memory if ``pixels`` has them or ``empty`` is given. For a box
        of whole pixels, the bits of torchvision's crop, pad and resize.
    """
    left, top, right, bottom = box
    x0 = math.floor(left)
    y0 = math.floor(top)
    x1 = math.ceil(right)
    y1 = math.ceil(bottom)
    cut = (x0, y0, x1, y1)
    if not (0 <= x0 < x1 <= pixels.shape[-1] and 0 <= y0 < y1 <= pixels.shape[-2]):
        pixels = _padded(pixels, cut, fill)
        cut = (0, 0, x1 - x0, y1 - y0)
    if (left, top) != (x0, y0):
        # torch has no fractional offset. Pillow has.
        resized = _resize_with_pillow(_view(pixels, cut), (left - x0, top - y0, right - x0, bottom - y0), size)
        return resized if empty is None else _copy(resized, empty)
    if (right, bottom) != (x1, y1):
        # The box covers the last row or column in part, so the scales cannot be derived from whole sizes.
        return _resize(pixels, cut, size, (size[0] / (bottom - top), size[1] / (right - left)), empty)
    if (y1 - y0, x1 - x0) == size:
        return _copy(_view(pixels, cut), empty)
    return _resize(pixels, cut, size, (None, None), empty)


def _allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def _view(pixels: Tensor, cut: _Cut) -> Tensor:
    left, top, right, bottom = cut
    return pixels[:, top:bottom, left:right]


def _padded(pixels: Tensor, cut: _Cut, fill: float) -> Tensor:
    """Copy a cut that extends beyond the image to a filled canvas with adjacent channels."""
    left, top, right, bottom = cut
    height, width = pixels.shape[1:]
    canvas = _allocate((bottom - top, right - left, 3), torch.uint8).fill_(fill).permute(2, 0, 1)
    x0 = max(left, 0)
    x1 = min(right, width)
    y0 = max(top, 0)
    y1 = min(bottom, height)
    if x0 < x1 and y0 < y1:
        canvas[:, y0 - top : y1 - top, x0 - left : x1 - left] = pixels[:, y0:y1, x0:x1]
    return canvas


def _copy(pixels: Tensor, empty: Allocate | None) -> Tensor:
    """Copy pixels to new memory with adjacent channels."""
    _, height, width = pixels.shape
    return (empty or _allocate)((height, width, 3), torch.uint8).permute(2, 0, 1).copy_(pixels)


def _resize(pixels: Tensor, cut: _Cut, size: tuple[int, int], scales: _Scales, empty: Allocate | None) -> Tensor:
    left, top, right, bottom = cut
    height = bottom - top
    width = right - left
    channel_stride, row_stride, column_stride = pixels.stride()
    adjacent_channels = (channel_stride, column_stride) == (1, 3)
    if not adjacent_channels or (1, 1) in (size, (height, width)) or not _upsample_matches_torchvision():
        resized = _resize_with_torchvision(_view(pixels, cut), size, scales)
        return resized if empty is None else _copy(resized, empty)
    # torch resizes uint8 in half the time if it recognizes that the channels are adjacent. With a batch size of 1 the
    # default strides are ambiguous: torch assumes planes and unpacks the channels. So the strides are given, which
    # makes the cut a view without a copy. The result has the same order: writing 224x224 pixels as planes would take
    # torch's kernel 120 us more, or a separate copy 50 us.
    offset = pixels.storage_offset() + top * row_stride + left * 3
    batch = pixels.as_strided((1, 3, height, width), (row_stride * height, 1, row_stride, 3), offset)
    if empty is None:
        image: Tensor = _upsample(batch, size, False, *scales)[0]
        return image
    image = empty((*size, 3), torch.uint8).permute(2, 0, 1)
    _upsample(batch, size, False, *scales, out=image.unsqueeze(0))
    return image


def _resize_with_torchvision(cut: Tensor, size: tuple[int, int], scales: _Scales) -> Tensor:
    if scales == (None, None):
        image: Tensor = tv_functional.resize_image(cut, list(size), antialias=True)
        return image
    # Without the epsilon, rounding may lose the last row or column.
    factors = [1e-12 + (scale or 0) for scale in scales]
    batch = torch.nn.functional.interpolate(cut[None], scale_factor=factors, mode="bilinear", antialias=True)
    return batch[0, :, : size[0], : size[1]]


def _resize_with_pillow(cut: Tensor, box: tuple[float, float, float, float], size: tuple[int, int]) -> Tensor:
    image = Image.fromarray(np.ascontiguousarray(cut.permute(1, 2, 0).numpy()))
    resized = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


@functools.cache
def _upsample_matches_torchvision() -> bool:
    """Return True if torchvision resizes uint8 directly on this CPU; without AVX2 it converts to float32 and rounds."""
    values = torch.arange(32 * 32 * 3, device="cpu").mul(37).remainder(251).byte()
    pixels = values.view(32, 32, 3).permute(2, 0, 1)
    out = _allocate((1, 21, 19, 3), torch.uint8).permute(0, 3, 1, 2)
    _upsample(pixels.as_strided((1, 3, 32, 32), (32 * 96, 1, 96, 3)), (21, 19), False, None, None, out=out)
    return torch.equal(out[0], tv_functional.resize_image(pixels, [21, 19], antialias=True))
