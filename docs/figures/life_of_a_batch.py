"""The way of a batch: steps in the main process, in a worker process, and the shared memory between them."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

MAIN = "#dceaf5"
WORKER = "#fbe8c8"
MEMORY = "#d5ede4"

figure, axes = plt.subplots(figsize=(7.6, 4), layout="constrained")


def box(x: float, y: float, width: float, text: str, color: str) -> None:
    style = "round,pad=0.02,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, 0.9, boxstyle=style, facecolor=color, edgecolor="0.4"
        )
    )
    axes.text(x + width / 2, y + 0.45, text, ha="center", va="center", fontsize=9)


def arrow(*points: Any) -> None:
    """Draw an arrow along corners."""
    axes.plot(*zip(*points[:-1], strict=True), color="0.25", linewidth=1)
    axes.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops={"arrowstyle": "->", "color": "0.25", "shrinkA": 0},
    )


def label(x: float, y: float, text: str, align: str = "left") -> None:
    axes.text(x, y, text, ha=align, va="center", fontsize=8.5, color="0.15")


axes.text(0, 4.85, "main process", weight="bold")
for x, width, text in (
    (0, 1.7, "DataLoader\narguments"),
    (2.4, 1.5, "LoaderSpec"),
    (4.6, 1.5, "plan:\nkeyed tasks"),
    (6.8, 1.6, "Scheduler"),
    (9.2, 1.7, "LoaderIterator\nyour loop"),
):
    box(x, 3.7, width, text, MAIN)
for start, end in ((1.72, 2.38), (3.92, 4.58), (6.12, 6.78), (8.42, 9.18)):
    arrow((start, 4.15), (end, 4.15))
box(6.5, 2.1, 2.2, "ProcessBackend", MAIN)
box(9.2, 2.1, 1.7, "slots of\nshared memory", MEMORY)
arrow((7.3, 3.68), (7.3, 3.02))
label(7.2, 3.35, "task", "right")
arrow((7.9, 3.02), (7.9, 3.68))
label(8, 3.35, "result")
arrow((10.05, 3.02), (10.05, 3.68))
label(10.15, 3.35, "tensors are views")

axes.axhline(1.7, color="0.6", linestyle=":")
for x, width, text in (
    (0, 1.7, "receive"),
    (2.4, 2, "fetch\nseed, dataset[i]"),
    (5, 1.5, "collate"),
    (7.1, 1.6, "send"),
):
    box(x, 0, width, text, WORKER)
for start, end in ((1.72, 2.38), (4.42, 4.98), (6.52, 7.08)):
    arrow((start, 0.45), (end, 0.45))
axes.text(0, -0.6, "worker process", weight="bold")
arrow((6.48, 2.55), (0.85, 2.55), (0.85, 0.92))
label(0.95, 2.75, "queue shared by idle workers")
arrow((7.9, 0.92), (7.9, 2.08))
label(8, 1.9, "pipe")
arrow((5.75, 0.92), (5.75, 1.3), (10.05, 1.3), (10.05, 2.08))
label(10.15, 1.45, "pixels, once")
axes.set(xlim=(-0.2, 12.2), ylim=(-0.8, 5.2))
axes.axis("off")
