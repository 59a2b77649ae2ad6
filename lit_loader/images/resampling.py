"""Part of a decoded image at another size: torchvision's antialiased bilinear resize, of strides that it is fast with.

NOTE [Strides]
    torch's resize of uint8 takes half the time if it knows that the three values of a pixel lie side by side. Of one
    image, or of a part cut out of one, the strides with a batch dimension of 1 leave that open, and torch then takes it
    for planes and unpacks it. So the strides are given. A cut is such a view too, and nothing is copied for it. The
    result has the same order: to write 224x224 pixels in planes takes torch's kernel 120 us more, or a copy 50 us.
"""

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
"""Returns a contiguous tensor of a shape and dtype, its values not set."""

_Cut: TypeAlias = tuple[int, int, int, int]
_Scales: TypeAlias = tuple[float, float] | tuple[None, None]

_upsample: Any = torch._C._nn._upsample_bilinear2d_aa


def resample(
    pixels: Tensor,
    box: Sequence[float],
    size: tuple[int, int],
    *,
    fill: float = 0,
    empty: Allocate | None = None,
) -> Tensor:
    """Return a box of an image at ``size``, resized once, in memory of its own.

    Args:
        pixels: uint8 ``(3, h, w)`` in any memory format.
        box: Left, top, right and bottom; sides may lie between pixels.
        size: (height, width) of the result.
        fill: Value beyond the image.
        empty: Where the result's memory comes from; None is ordinary memory.

    Returns:
        uint8 ``(3, *size)``, the three values of a pixel side by side if ``pixels`` has them so or ``empty`` is given:
        where the box has whole pixels, the bits of torchvision's crop, pad and resize.
    """
    left, top, right, bottom = box
    low_x, low_y, high_x, high_y = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    cut = (low_x, low_y, high_x, high_y)
    if not (0 <= low_x < high_x <= pixels.shape[-1] and 0 <= low_y < high_y <= pixels.shape[-2]):
        pixels, cut = _padded(pixels, cut, fill), (0, 0, high_x - low_x, high_y - low_y)
    if (left, top) != (low_x, low_y):
        inner = (left - low_x, top - low_y, right - low_x, bottom - low_y)
        found = _resized_by_pillow(_view(pixels, cut), inner, size)
        return found if empty is None else _placed(found, empty)
    if (right, bottom) != (high_x, high_y):
        # The last row and column are parts of one, which sizes cannot say.
        return _resized(pixels, cut, size, (size[0] / (bottom - top), size[1] / (right - left)), empty)
    if (high_y - low_y, high_x - low_x) == size:
        return _placed(_view(pixels, cut), empty)
    return _resized(pixels, cut, size, (None, None), empty)


def _ordinary_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def _view(pixels: Tensor, cut: _Cut) -> Tensor:
    left, top, right, bottom = cut
    return pixels[:, top:bottom, left:right]


def _padded(pixels: Tensor, cut: _Cut, fill: float) -> Tensor:
    """Return a cut that goes beyond the image, with the strides that the resize is fast with."""
    left, top, right, bottom = cut
    height, width = pixels.shape[1:]
    canvas = _ordinary_memory((bottom - top, right - left, 3), torch.uint8).fill_(fill).permute(2, 0, 1)
    x0, x1 = max(left, 0), min(right, width)
    y0, y1 = max(top, 0), min(bottom, height)
    if x0 < x1 and y0 < y1:
        canvas[:, y0 - top : y1 - top, x0 - left : x1 - left] = pixels[:, y0:y1, x0:x1]
    return canvas


def _placed(pixels: Tensor, empty: Allocate | None) -> Tensor:
    """Return a copy, the three values of a pixel side by side."""
    _, height, width = pixels.shape
    return (empty or _ordinary_memory)((height, width, 3), torch.uint8).permute(2, 0, 1).copy_(pixels)


def _resized(
    pixels: Tensor, cut: _Cut, size: tuple[int, int], scales: _Scales, empty: Allocate | None
) -> Tensor:
    left, top, right, bottom = cut
    height, width = bottom - top, right - left
    channel, row, column = pixels.stride()
    if (channel, column) != (1, 3) or (1, 1) in (size, (height, width)) or not _has_torchvisions_bits():
        found = _resized_by_torchvision(_view(pixels, cut), size, scales)
        return found if empty is None else _placed(found, empty)
    # see NOTE [Strides]
    start = pixels.storage_offset() + top * row + left * 3
    batch = pixels.as_strided((1, 3, height, width), (row * height, 1, row, 3), start)
    if empty is None:
        resized: Tensor = _upsample(batch, size, False, *scales)[0]
        return resized
    out = empty((*size, 3), torch.uint8)
    result = out.permute(2, 0, 1)
    _upsample(batch, size, False, *scales, out=result.unsqueeze(0))
    return result


def _resized_by_torchvision(cut: Tensor, size: tuple[int, int], scales: _Scales) -> Tensor:
    if scales == (None, None):
        resized: Tensor = tv_functional.resize_image(cut, list(size), antialias=True)
        return resized
    given = [1e-12 + (scale or 0) for scale in scales]  # rounding must not lose the last row
    found = torch.nn.functional.interpolate(cut[None], scale_factor=given, mode="bilinear", antialias=True)
    return found[0, :, : size[0], : size[1]]


def _resized_by_pillow(cut: Tensor, box: tuple[float, float, float, float], size: tuple[int, int]) -> Tensor:
    picture = Image.fromarray(np.ascontiguousarray(cut.permute(1, 2, 0).numpy()))
    between = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.array(between)).permute(2, 0, 1)


@functools.cache
def _has_torchvisions_bits() -> bool:
    """Return whether torchvision resizes uint8 as such on this CPU; without AVX2 it goes by float32, and rounds."""
    values = torch.arange(32 * 32 * 3, device="cpu").mul(37).remainder(251).byte()
    pixels = values.view(32, 32, 3).permute(2, 0, 1)
    out = _ordinary_memory((1, 21, 19, 3), torch.uint8).permute(0, 3, 1, 2)
    _upsample(pixels.as_strided((1, 3, 32, 32), (32 * 96, 1, 96, 3)), (21, 19), False, None, None, out=out)
    return torch.equal(out[0], tv_functional.resize_image(pixels, [21, 19], antialias=True))
