"""Small drawn sets, and pictures of samples with their boxes and points, for the figures of augmentation."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lit_loader import DetectionDataset, FormatSource, VocSource
from lit_loader.datasets import draw_figures, draw_shapes
from matplotlib.patches import Rectangle

BLUE, ORANGE, GREEN, RED, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000"
NAMES = ("disc", "square", "star")
COLORS = (BLUE, RED, BLACK)


@cache
def _folder() -> Path:
    # The pictures are drawn once a build; the operating system clears its temporary folder.
    return Path(tempfile.mkdtemp(prefix="drawn-images-"))


@cache
def shapes() -> VocSource:
    """Return twelve images of discs, squares and stars."""
    settings: dict[str, Any] = {
        "num_images": {"train": 12},
        "image_size": 160,
        "objects_per_image": (2, 4),
    }
    root = draw_shapes(
        _folder(), class_shares=(0.5, 0.3, 0.2), seed=4, progress=False, **settings
    )
    return VocSource(root, val=None, test=None, cache_dir=_folder(), progress=False)


@cache
def shapes_with_masks() -> FormatSource:
    """Return the same kind of images with the masks of their objects."""
    settings: dict[str, Any] = {
        "num_images": {"train": 12},
        "image_size": 160,
        "objects_per_image": (4, 6),
    }
    root = draw_shapes(
        _folder(),
        class_shares=(0.6, 0.3, 0.1),
        seed=4,
        masks=True,
        progress=False,
        **settings,
    )
    return FormatSource(
        "coco",
        root,
        train="annotations/train.json",
        cache_dir=_folder(),
        progress=False,
    )


@cache
def figures() -> VocSource:
    """Return four images of people and animals with points."""
    root = draw_figures(
        _folder(), num_images={"train": 4}, image_size=192, seed=1, progress=False
    )
    return VocSource(root, val=None, test=None, cache_dir=_folder(), progress=False)


def dataset(source: Any, transforms: Any, **settings: Any) -> DetectionDataset:
    """Return the training images of a source with transforms."""
    source.prepare()
    return DetectionDataset(
        source.tables("train")[0], transforms=transforms, first_label=0, **settings
    )


def sample(
    source: Any, index: int, transforms: Any, *, seed: int = 0, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Return one transformed sample; the seed fixes its random draws."""
    torch.manual_seed(seed)
    return dataset(source, transforms, **settings)[index]


def show(
    axes: Any,
    image: Any,
    target: dict[str, Any],
    title: str,
    *,
    canvas: int | None = None,
) -> None:
    """Draw an image with its boxes, coloured by class."""
    pixels = np.asarray(image.permute(1, 2, 0))
    axes.imshow(pixels, vmin=0, vmax=255)
    for box, label in zip(
        target["boxes"].tolist(), target["labels"].tolist(), strict=True
    ):
        corner, size = (box[0] - 0.5, box[1] - 0.5), (box[2] - box[0], box[3] - box[1])
        axes.add_patch(
            Rectangle(
                corner, *size, fill=False, edgecolor=COLORS[label % 3], linewidth=1.8
            )
        )
    axes.set_title(title, fontsize=9)
    if canvas is not None:
        axes.set_xlim(-0.5, canvas - 0.5)
        axes.set_ylim(canvas - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(canvas is None)
