"""Region of a JPEG that decode="fast" decodes for a crop, next to the whole image."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

WIDTH = 96
HEIGHT = 72
CROP = (36, 20, 28, 28)  # left, top, width and height in blocks


def draw_image(axes: Axes, title: str, note: str) -> None:
    """Draw the outline of the image, its crop, and a title."""
    axes.set_xlim(-2, WIDTH + 2)
    axes.set_ylim(HEIGHT + 12, -2)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, fontsize=10)
    axes.add_patch(
        Rectangle((0, 0), WIDTH, HEIGHT, fill=False, edgecolor="#555555", linewidth=1.2)
    )
    left, top, width, height = CROP
    axes.add_patch(
        Rectangle(
            (left, top), width, height, fill=False, edgecolor="#D55E00", linewidth=2
        )
    )
    axes.text(
        left + width / 2, top + height / 2, "crop", ha="center", va="center", fontsize=9
    )
    axes.text(0, HEIGHT + 3, note, va="top", fontsize=9)


figure, (exact, fast, scaled) = plt.subplots(
    1, 3, figsize=(8, 2.9), layout="constrained"
)
left, top, width, height = CROP
exact.add_patch(Rectangle((0, 0), WIDTH, HEIGHT, facecolor="#56B4E9", alpha=0.55))
for axes in (fast, scaled):
    # Entropy decoding cannot skip the rows above the crop, and stops below it.
    axes.add_patch(Rectangle((0, 0), WIDTH, top + height, facecolor="#F7EFA0"))
    axes.add_patch(Rectangle((left, top), width, height, facecolor="#A5D6F2"))
draw_image(
    exact, "decode='exact'", "all pixels are computed,\nand most are cropped away"
)
draw_image(
    fast,
    "decode='fast', large result",
    "yellow: entropy decoding alone;\nblue: pixels; white: not read",
)
for line in range(1, 4):
    offset = line * width / 4
    scaled.plot(
        [left + offset] * 2, [top, top + height], color="#0072B2", linewidth=0.7
    )
    scaled.plot(
        [left, left + width], [top + offset] * 2, color="#0072B2", linewidth=0.7
    )
draw_image(
    scaled,
    "decode='fast', small result",
    "the blue pixels are computed at\n1/2, 1/4 or 1/8 of the size",
)
plt.show()
