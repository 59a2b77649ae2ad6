"""A small convolutional feature pyramid that learns from scratch on a CPU."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PyramidBackbone"]


class PyramidBackbone(nn.Module):
    """Convolutional stages at strides 4, 8, 16, 32 and a top-down path back to the first of them asked for.

    The finest map sees the whole image through the coarse stages, so one map is enough for objects of
    similar size; more maps serve objects whose sizes differ by more than a factor of about four.

    Args:
        channels: Channels at stride 8; stride 4 has half as many, strides 16 and 32 one and a half times.
        out_channels: Channels of every map that is returned.
        strides: Strides of the maps returned, a run of neighbours from (4, 8, 16, 32), finest first.

    Raises:
        ValueError: If ``strides`` is not such a run or ``channels`` is not a positive multiple of 8.
    """

    def __init__(
        self, *, channels: int = 64, out_channels: int = 64, strides: tuple[int, ...] = (8,)
    ) -> None:
        super().__init__()
        known = (4, 8, 16, 32)
        first = known.index(strides[0]) if strides and strides[0] in known else -1
        if first < 0 or tuple(strides) != known[first : first + len(strides)]:
            raise ValueError(
                f"strides={strides!r} is no run of neighbours from {known}, finest first; e.g. (8,)"
            )
        if channels <= 0 or channels % 8:
            raise ValueError(f"channels={channels} is not a positive multiple of 8; take 32, 48, 64, ...")
        widths = (channels // 2, channels, channels * 3 // 2, channels * 3 // 2)
        self.out_channels = out_channels
        self.strides = tuple(strides)
        self.stem = _convolution(3, channels // 4 + channels // 8, stride=2)
        inputs = (channels // 4 + channels // 8, *widths[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(_convolution(i, o, stride=2), _Residual(o))
            for i, o in zip(inputs, widths, strict=True)
        )
        self.first = first
        self.laterals = nn.ModuleList(nn.Conv2d(width, out_channels, 1) for width in widths[first:])
        self.outputs = nn.ModuleList(_convolution(out_channels, out_channels, stride=1) for _ in strides)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Return the maps by stride.

        Args:
            images: Normalised images, float, shape ``(N, 3, H, W)``; H and W multiples of 32.

        Returns:
            ``{"8": (N, out_channels, H / 8, W / 8), ...}``, finest first.
        """
        features = self.stem(images)
        columns = []
        for stage in self.stages:
            features = stage(features)
            columns.append(features)
        merged: list[Tensor] = []
        for lateral, column in zip(reversed(self.laterals), reversed(columns[self.first :]), strict=True):
            level = lateral(column)
            if merged:
                level = level + functional.interpolate(merged[-1], scale_factor=2.0, mode="nearest")
            merged.append(level)
        maps = merged[::-1][: len(self.strides)]
        return OrderedDict(
            (str(stride), output(level))
            for stride, output, level in zip(self.strides, self.outputs, maps, strict=True)
        )


class _Residual(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(channels, channels, stride=1),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(features + self.body(features))


def _convolution(in_channels: int, out_channels: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )
