"""The limit: decode, resize, mirror, and nothing around it, in as many processes as the loaders have workers.

What is random is drawn beforehand, pixels are handed to torch's resize as it likes them, and no result leaves its
process.
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

__all__ = ["BareSteps", "Shown", "bare_passes", "draw_crops", "draw_sizes", "write_pixels"]

NUM_PROCESSES = 2
_NUM_DRAWS = 512


@dataclass(frozen=True)
class Shown:
    """What a sample shows: left, top, right and bottom of a region, its height and width in the result, mirrored."""

    region: tuple[int, int, int, int]
    size: tuple[int, int]
    is_mirrored: bool


@dataclass(frozen=True, kw_only=True)
class BareSteps:
    """The calls that make one sample, apart and together.

    Args:
        paths: The JPEG files.
        shown: What is shown of them, taken in turn.
        kind: ``"exact"``: decode all and give float32; ``"fast"``: decode the region, give uint8; ``"cached"``: take
            the region from ``pixels``, give uint8.
        pixels: The file of `write_pixels`, for ``"cached"``.
    """

    paths: Sequence[Path]
    shown: Sequence[Shown]
    kind: Literal["exact", "fast", "cached"]
    pixels: Path | None = None

    def __call__(self, index: int) -> Tensor:
        """Make a sample."""
        return self.resample(self.decode(index), index)

    def decode(self, index: int) -> Tensor:
        """Return the region that a sample shows, uint8 ``(3, h, w)``, the values of a pixel side by side."""
        left, top, right, bottom = self._of(index).region
        number = index % len(self.paths)
        if self.kind == "exact":
            return decode_image(self.paths[number])[:, top:bottom, left:right]
        if self.kind == "cached":
            return _mapped(self.pixels)[number][:, top:bottom, left:right]
        found = open_image(self.paths[number]).read_region((left, top, right, bottom), zoom=self._zoom(index))
        sides = (left - found.left, top - found.top, right - found.left, bottom - found.top)
        left, top, right, bottom = (round(side * found.zoom) for side in sides)
        return found.pixels[:, top:bottom, left:right]

    def resample(self, pixels: Tensor, index: int) -> Tensor:
        """Return what a sample gives, ``(3, *size)``: float32 in planes, uint8 with a pixel's values side by side."""
        shown = self._of(index)
        _, height, width = pixels.shape
        # One image leaves open whether its values lie in planes; without these strides torch copies them into planes.
        batch = pixels.as_strided((1, 3, height, width), (pixels.stride(1) * height, 1, pixels.stride(1), 3))
        resized = torch.nn.functional.interpolate(batch, shown.size, mode="bilinear", antialias=True)[0]
        if shown.is_mirrored:
            resized = resized.flip(-1)
        if self.kind != "exact":
            return resized
        return _room(resized.numel()).view(resized.shape).copy_(resized).mul_(1 / 255)

    def _of(self, index: int) -> Shown:
        return self.shown[index % len(self.shown)]

    def _zoom(self, index: int) -> float:
        (left, top, right, bottom), (height, width) = self._of(index).region, self._of(index).size
        return max(height / (bottom - top), width / (right - left))


def draw_crops(size: tuple[int, int], side: int) -> list[Shown]:
    """Return what ``RandomResizedCrop(side)`` and a flip show of images of ``size`` (width, height)."""
    torch.manual_seed(0)
    shape, draw = torch.empty((0, *size[::-1]), dtype=torch.uint8), v2.RandomResizedCrop(side).make_params
    drawn: list[dict[str, int]] = [draw([shape]) for _ in range(_NUM_DRAWS)]
    return [
        Shown(
            (crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]),
            (side, side),
            bool(number % 2),
        )
        for number, crop in enumerate(drawn)
    ]


def draw_sizes(size: tuple[int, int], sides: Sequence[int], longest: int) -> list[Shown]:
    """Return what ``RandomShortestSize`` and a flip show of images of ``size`` (width, height)."""
    torch.manual_seed(0)
    shape = torch.empty((0, *size[::-1]), dtype=torch.uint8)
    draw = v2.RandomShortestSize(list(sides), max_size=longest).make_params
    drawn: list[Any] = [draw([shape])["size"] for _ in range(_NUM_DRAWS)]
    return [Shown((0, 0, *size), tuple(found), bool(number % 2)) for number, found in enumerate(drawn)]


def write_pixels(paths: Sequence[Path], to: Path) -> Path:
    """Write the pixels of images of one size behind each other, uint8 ``(N, H, W, 3)``."""
    np.save(to, np.stack([decode_image(path).permute(1, 2, 0).numpy() for path in paths]))
    return to


@contextmanager
def bare_passes(work: Mapping[str, BareSteps], order: Sequence[int]) -> Iterator[dict[str, Pass]]:
    """Give passes that make the samples of ``order`` in processes, which end with the context."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(NUM_PROCESSES, context, torch.set_num_threads, (1,)) as pool:
        pool.submit(int).result()  # forks now, before peers have threads
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
    # Copy on write: torch warns of memory that it may not write to.
    return torch.from_numpy(np.load(path, mmap_mode="c")).permute(0, 3, 1, 2)


@functools.cache
def _room(num_values: int) -> Tensor:
    """Return memory for a result, the same for every result of a size: a loader has slots for that."""
    return torch.empty(num_values)
