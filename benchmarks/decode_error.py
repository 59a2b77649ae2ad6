"""Difference between ``decode="fast"`` and a full decode: PSNR, and differences in levels of 255.

Generated images have smooth shading, sharp edges, texture and a little noise, saved as JPEG of quality 85 with chroma
subsampling. To measure your own images as well: ``python -m benchmarks.decode_error --images FOLDER``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.images import decode_image, open_image
from lit_loader.transforms import CropToObjects, DecodeAwareCompose, landmark_transforms

SIZES = ((375, 500), (481, 639), (960, 1280))
SHARES = (0.5, 0.37, 0.25, 0.18, 0.125, 0.08)
SIDES = (8, 16, 32, 64, 128, 256)
# Shares of width and height.
BOXES = torch.tensor([(0.3, 0.3, 0.7, 0.7), (0, 0, 0.6, 0.5), (0.3, 0.4, 1, 1)])


def photo_like(height: int, width: int, *, seed: int, num_discs: int = 14) -> Image.Image:
    """Return an image with shading, edges, texture of several scales and a little noise."""
    draws = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    picture = np.stack([0.3 + 0.4 * rows, 0.6 - 0.3 * columns, 0.3 + 0.2 * (rows + columns)], axis=-1)
    for _ in range(num_discs):
        y, x, radius = draws.random(3) * (1, 1, 0.22) + (0, 0, 0.03)
        inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        waves = np.sin(rows * height * draws.random() * 0.8 + columns * width * draws.random() * 0.8)
        picture[inside] = draws.random(3) * (0.85 + 0.15 * waves[inside])[:, None]
    picture += draws.normal(0, 0.012, picture.shape)
    return Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))


def difference(exact: Tensor, fast: Tensor) -> tuple[float, float, float]:
    """Return PSNR in dB, the largest difference, and the 99.9th percentile of differences, in levels."""
    apart = (exact.double() - fast.double()).abs()
    mean = float((apart**2).mean())
    psnr = 10 * math.log10(255**2 / mean) if mean else math.inf
    return psnr, float(apart.max()), float(np.quantile(apart.numpy(), 0.999))


def differences(
    paths: Sequence[Path], transform: DecodeAwareCompose, *, box: Tensor | None = None
) -> list[tuple[float, float, float]]:
    """Return the `difference` of each file for equal draws; ``box`` is relative to width and height."""
    results = []
    for number, path in enumerate(paths):
        image = tv_tensors.Image(decode_image(path))
        target = {}
        if box is not None:
            height, width = image.shape[-2:]
            corners = box[None] * torch.tensor([width, height, width, height])
            target["boxes"] = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(height, width))
        torch.manual_seed(number)
        exact, _ = transform(image, target)
        torch.manual_seed(number)
        fast, _ = transform.read(open_image(path), target)
        results.append(difference(exact, fast))
    return results


def report(name: str, paths: Sequence[Path]) -> None:
    """Print a table over relative sizes of the result, for whole images and for crops."""
    print(f"\n{name}: {len(paths)} images")
    print(f"  {'shown':28s} {'PSNR, least':>12s} {'median':>8s} {'largest':>8s} {'1 in 1000':>10s}")
    sizes = {path: Image.open(path).size for path in paths}
    shorter = min(min(size) for size in sizes.values())
    for share in SHARES:
        side = max(1, math.floor(shorter * share))
        crop = CropToObjects(size=side // 2, around="image", fit="crop", scale=(0.5, 1), shift=0.2, margin=0)
        for kind, transform in (("whole", v2.Resize(side)), ("crops", crop)):
            print_row(f"{kind}, {share:.3g} of the side", differences(paths, DecodeAwareCompose([transform])))
    for side in SIDES:
        for kind, rotation in (("crops with fill", 0), ("turned crops", 30)):
            preset: Any = landmark_transforms(True, size=side, fill=255, hflip=0, to_float=False, rotation=rotation)
            results = [result for box in BOXES for result in differences(paths, preset, box=box)]
            print_row(f"{kind}, {side} pixels", results)


def print_row(name: str, results: Sequence[tuple[float, float, float]]) -> None:
    """Print one row of a table from the `differences` of its images."""
    psnr, largest, rare = zip(*results, strict=True)
    print(f"  {name:28s} {min(psnr):12.1f} {np.median(psnr):8.1f} {max(largest):8.0f} {max(rare):10.1f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--images", type=Path, help="another folder of JPEG files to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for height, width in SIZES:
            paths = [Path(folder, f"{height}-{seed}.jpg") for seed in range(6)]
            for seed, path in enumerate(paths):
                photo_like(height, width, seed=seed).save(path, quality=85)
            report(f"generated {width}x{height}", paths)
    if arguments.images is not None:
        report(str(arguments.images.name), sorted(arguments.images.rglob("*.jp*g"))[:60])


if __name__ == "__main__":
    main()
