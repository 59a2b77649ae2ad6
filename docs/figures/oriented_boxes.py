"""An oriented object with its axis-aligned box, its corners and its rotated box."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Polygon, Rectangle

centre = np.array([6.0, 4.0])
width = 7.0
height = 2.6
turn = np.deg2rad(30.0)
# y points down, so a positive angle, counter-clockwise on the screen, lowers y to the right.
right = np.array([np.cos(turn), -np.sin(turn)])
down = np.array([np.sin(turn), np.cos(turn)])
halves = [
    (-width / 2, -height / 2),
    (width / 2, -height / 2),
    (width / 2, height / 2),
    (-width / 2, height / 2),
]
corners = np.array([centre + along * right + across * down for along, across in halves])
low = corners.min(axis=0)
high = corners.max(axis=0)

_, axes = plt.subplots(
    1, 3, figsize=(11, 3.3), sharex=True, sharey=True, layout="constrained"
)
titles = (
    "boxes: xmin, ymin, xmax, ymax",
    "corners: x1 y1 x2 y2 x3 y3 x4 y4",
    "rotated_boxes: cx cy w h angle",
)
for ax, title in zip(axes, titles, strict=True):
    ax.add_patch(Polygon(corners, color="#d9d9d9"))
    ax.set_title(title, fontsize=11)
    ax.set_aspect("equal")
    ax.set(xlim=(0, 12), ylim=(8, 0), xticks=[], yticks=[])
axes[0].add_patch(Rectangle(low, *(high - low), fill=False, lw=2, color="#0072b2"))
axes[1].add_patch(Polygon(corners, fill=False, lw=2, color="#d55e00"))
for number, corner in enumerate(corners, 1):
    axes[1].plot(*corner, "o", color="#d55e00")
    axes[1].annotate(
        str(number), corner, textcoords="offset points", xytext=(6, 6), fontsize=12
    )
axes[2].add_patch(Polygon(corners, fill=False, lw=2, color="#009e73"))
axes[2].plot(*centre, "o", color="#009e73")
end = centre + 0.5 * width * right
axes[2].plot([centre[0], end[0]], [centre[1], end[1]], color="#009e73", lw=2)
axes[2].plot(
    [centre[0], centre[0] + 0.5 * width], [centre[1]] * 2, color="black", lw=1, ls=":"
)
axes[2].annotate("angle", centre + np.array([1.3, -0.1]), fontsize=11)
axes[2].annotate(
    "w / 2", centre + 0.22 * width * right + np.array([0, -0.5]), fontsize=11
)
