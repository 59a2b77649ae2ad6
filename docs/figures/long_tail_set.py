"""A long-tailed detection set without pixels, and the panels that the figures of samplers share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lit_loader import AnnotationTable, OrderSampler
from lit_loader.annotations import image_labels
from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#999999",
)
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE)
NUM_CLASSES = 10
NUM_IMAGES = 2000


@cache
def long_tail() -> AnnotationTable:
    """Return 2,000 images with one to four objects of ten classes, from about 2,000 objects to 20."""
    rng = np.random.default_rng(0)
    shares = 100.0 ** -(np.arange(NUM_CLASSES) / (NUM_CLASSES - 1))
    counts = rng.integers(1, 5, NUM_IMAGES)
    num_objects = int(counts.sum())
    return AnnotationTable(
        root=Path("/"),
        image_paths=[f"{i}.jpg" for i in range(NUM_IMAGES)],
        class_names=[f"class {c}" for c in range(NUM_CLASSES)],
        offsets=np.append(0, np.cumsum(counts)),
        boxes=np.tile(np.array([0, 0, 9, 9], dtype=np.float32), (num_objects, 1)),
        labels=rng.choice(NUM_CLASSES, num_objects, p=shares / shares.sum()),
    )


def class_shares(visits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the share of each class among the objects of an epoch that visits each image so often."""
    objects = visits @ long_tail().image_class_counts()
    return objects / objects.sum()


def rarest_class_count() -> npt.NDArray[np.float64]:
    """Return for each image the number of images that contain its rarest class."""
    labels = image_labels(long_tail())
    counts = np.bincount(labels.classes)
    return np.minimum.reduceat(counts[labels.classes], labels.offsets[:-1])


def draw_class_mix(axes: Axes, samplers: dict[str, OrderSampler]) -> None:
    """Draw the share of each class in the data and under each sampler."""
    classes = np.arange(NUM_CLASSES)
    axes.bar(classes, class_shares(np.ones(NUM_IMAGES)), color="#D9D9D9", label="data")
    for (name, sampler), color, marker in zip(
        samplers.items(), COLORS, "osD^v", strict=False
    ):
        shares = class_shares(sampler.expected_visits())
        axes.plot(
            classes,
            shares,
            marker=marker,
            color=color,
            linewidth=1.5,
            markersize=5,
            label=name,
        )
    axes.set_yscale("log")
    axes.set_xticks(classes)
    axes.set_xlabel("class, from frequent to rare")
    axes.set_ylabel("share of the objects of an epoch")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw_batches(
    axes: Axes, groups_by_name: dict[str, list[int]], *, batch_size: int = 8
) -> None:
    """Draw a row of coloured letters for each list of group numbers, divided into batches."""
    for row, (name, groups) in enumerate(groups_by_name.items()):
        for position, group in enumerate(groups):
            color = COLORS[group]
            axes.barh(-row, 0.9, left=position - 0.45, height=0.7, color=color)
            axes.text(
                position,
                -row,
                "ABCDE"[group],
                ha="center",
                va="center",
                color="black" if color == ORANGE else "white",
                fontsize=9,
            )
        axes.text(-1, -row, name, ha="right", va="center")
    length = max(map(len, groups_by_name.values()))
    for batch in range(length // batch_size):
        start = batch * batch_size
        axes.text(start + (batch_size - 1) / 2, 0.6, f"batch {batch}", ha="center")
        if batch:
            axes.axvline(start - 0.5, color="black", linewidth=1)
    axes.set_xlim(-10, length)
    axes.set_ylim(0.5 - len(groups_by_name), 0.9)
    axes.axis("off")


def draw_curves(
    axes: Axes,
    x: npt.NDArray[np.generic],
    curves: dict[str, npt.NDArray[np.float64]],
    *,
    x_label: str,
    y_label: str,
) -> None:
    """Draw curves over the same x in log-log axes, one for each setting of a sampler."""
    for (name, y), color in zip(curves.items(), COLORS, strict=False):
        axes.plot(x, y, color=color, linewidth=2, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw_visits(axes: Axes, samplers: dict[str, OrderSampler]) -> None:
    """Draw the mean visits of an image in an epoch against the frequency of its rarest class."""
    counts = rarest_class_count()
    frequencies = np.unique(counts)
    for (name, sampler), color, marker in zip(
        samplers.items(), COLORS, "osD^v", strict=False
    ):
        visits = sampler.expected_visits()
        means = [visits[counts == count].mean() for count in frequencies]
        axes.plot(
            frequencies / NUM_IMAGES,
            means,
            marker=marker,
            color=color,
            linewidth=1.5,
            markersize=5,
            label=name,
        )
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("share of the images with the image's rarest class")
    axes.set_ylabel("mean visits of an image in an epoch")
    axes.spines[["top", "right"]].set_visible(False)
