"""The upper limit of a loader's rate: only decode, resize and flip, in as many processes as the loaders have workers.

Random parameters are drawn in advance, pixels have the memory layout that torch's resize is fastest with, and results
stay in their process.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

from benchmarks.rounds import Pass
from lit_loader.images import decode_image, open_image

__all__ = ["BareSteps", "CropParameters", "bare_passes", "draw_crops", "draw_sizes", "write_pixels"]

NUM_PROCESSES = 2
_NUM_DRAWS = 512


@dataclass(frozen=True)
class CropParameters:
    """Parameters of a sample: the region (left, top, right, bottom), height and width of the result, and the flip."""

    region: tuple[int, int, int, int]
    size: tuple[int, int]
    is_mirrored: bool


@dataclass(frozen=True, kw_only=True)
class BareSteps:
    """The calls that make one sample, separately and combined.

    Args:
        paths: The JPEG files.
        crops: Parameters of the samples, used in turn.
        kind: ``"exact"`` decodes the whole image and returns float32; ``"fast"`` decodes the region and returns uint8;
            ``"cached"`` reads the region from ``pixels`` and returns uint8.
        pixels: File written by `write_pixels`, for ``"cached"``.
    """

    paths: Sequence[Path]
    crops: Sequence[CropParameters]
    kind: Literal["exact", "fast", "cached"]
    pixels: Path | None = None

    def __call__(self, index: int) -> Tensor:
        """Make a sample."""
        return self.resample(self.decode(index), index)

    def decode(self, index: int) -> Tensor:
        """Return the region of a sample, uint8 ``(3, h, w)``, channels last in memory."""
        left, top, right, bottom = self._parameters(index).region
        number = index % len(self.paths)
        if self.kind == "exact":
            return decode_image(self.paths[number])[:, top:bottom, left:right]
        if self.kind == "cached":
            return _mapped(self.pixels)[number][:, top:bottom, left:right]
        part = open_image(self.paths[number]).read_region((left, top, right, bottom), zoom=self._zoom(index))
        sides = (left - part.left, top - part.top, right - part.left, bottom - part.top)
        left, top, right, bottom = (round(side * part.zoom) for side in sides)
        return part.pixels[:, top:bottom, left:right]

    def resample(self, pixels: Tensor, index: int) -> Tensor:
        """Return the finished sample ``(3, *size)``: float32 contiguous, or uint8 channels last in memory."""
        parameters = self._parameters(index)
        _, height, width = pixels.shape
        # For a batch of one, torch cannot tell channels last from contiguous; without these strides it makes a copy.
        batch = pixels.as_strided((1, 3, height, width), (pixels.stride(1) * height, 1, pixels.stride(1), 3))
        resized = torch.nn.functional.interpolate(batch, parameters.size, mode="bilinear", antialias=True)[0]
        if parameters.is_mirrored:
            resized = resized.flip(-1)
        if self.kind != "exact":
            return resized
        return _room(resized.numel()).view(resized.shape).copy_(resized).mul_(1 / 255)

    def _parameters(self, index: int) -> CropParameters:
        return self.crops[index % len(self.crops)]

    def _zoom(self, index: int) -> float:
        (left, top, right, bottom) = self._parameters(index).region
        (height, width) = self._parameters(index).size
        return max(height / (bottom - top), width / (right - left))


def draw_crops(size: tuple[int, int], side: int) -> list[CropParameters]:
    """Draw parameters of ``RandomResizedCrop(side)`` and a flip for images of ``size`` (width, height)."""
    torch.manual_seed(0)
    shape = torch.empty((0, *size[::-1]), dtype=torch.uint8)
    draw = v2.RandomResizedCrop(side).make_params
    drawn: list[dict[str, int]] = [draw([shape]) for _ in range(_NUM_DRAWS)]
    return [
        CropParameters(
            (crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]),
            (side, side),
            bool(number % 2),
        )
        for number, crop in enumerate(drawn)
    ]


def draw_sizes(size: tuple[int, int], sides: Sequence[int], longest: int) -> list[CropParameters]:
    """Draw parameters of ``RandomShortestSize`` and a flip for images of ``size`` (width, height)."""
    torch.manual_seed(0)
    shape = torch.empty((0, *size[::-1]), dtype=torch.uint8)
    draw = v2.RandomShortestSize(list(sides), max_size=longest).make_params
    drawn: list[Any] = [draw([shape])["size"] for _ in range(_NUM_DRAWS)]
    return [
        CropParameters((0, 0, *size), tuple(drawn_size), bool(number % 2)) for number, drawn_size in enumerate(drawn)
    ]


def write_pixels(paths: Sequence[Path], to: Path) -> Path:
    """Write the pixels of images of one size to a file, uint8 ``(N, H, W, 3)``."""
    np.save(to, np.stack([decode_image(path).permute(1, 2, 0).numpy() for path in paths]))
    return to


@contextmanager
def bare_passes(work: Mapping[str, BareSteps], order: Sequence[int]) -> Iterator[dict[str, Pass]]:
    """Yield passes that make the samples of ``order`` in processes, which end with the context."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(NUM_PROCESSES, context, torch.set_num_threads, (1,)) as pool:
        # Forks now, before peers have threads.
        pool.submit(int).result()
        yield {name: functools.partial(_in_processes, pool, steps, order) for name, steps in work.items()}


def _in_processes(pool: ProcessPoolExecutor, steps: BareSteps, order: Sequence[int]) -> int:
    parts = [order[number::NUM_PROCESSES] for number in range(NUM_PROCESSES)]
    return sum(pool.map(_make_all, [steps] * NUM_PROCESSES, parts))


def _make_all(steps: BareSteps, indices: Sequence[int]) -> int:
    for index in indices:
        steps(index)
    return len(indices)


@functools.cache
def _mapped(path: Path) -> Tensor:
    # Copy on write: torch warns about read-only memory.
    return torch.from_numpy(np.load(path, mmap_mode="c")).permute(0, 3, 1, 2)


@functools.cache
def _room(num_values: int) -> Tensor:
    """Return memory that all results of one size share, because a loader reuses memory as well."""
    return torch.empty(num_values)
