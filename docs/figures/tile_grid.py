"""Overlapping tiles of a large image, and which tiles have an object."""

import matplotlib.pyplot as plt
from lit_loader import AnnotationTable, Tiling, tile_table
from matplotlib.patches import Rectangle

width = 1600
height = 1000
boxes = [[250, 180, 330, 260], [560, 300, 700, 420], [1020, 600, 1180, 840]]
table = AnnotationTable(
    root=".",
    image_paths=["large.jpg"],
    class_names=("car",),
    widths=[width],
    heights=[height],
    offsets=[0, len(boxes)],
    boxes=boxes,
    labels=[0] * len(boxes),
)
tiles = tile_table(table, Tiling(640, overlap=0.2, keep=0.3))

colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_, axes = plt.subplots(
    1, 2, figsize=(11, 3.8), width_ratios=(1.15, 1), layout="constrained"
)
axes[0].add_patch(Rectangle((0, 0), width, height, color="#eeeeee"))
for row, (xmin, ymin, xmax, ymax) in enumerate(tiles.regions.tolist()):
    inset = 5 * row
    axes[0].add_patch(
        Rectangle(
            (xmin + inset, ymin + inset),
            xmax - xmin - 2 * inset,
            ymax - ymin - 2 * inset,
            fill=False,
            lw=2,
            color=colours[row % len(colours)],
        )
    )
for xmin, ymin, xmax, ymax in boxes:
    axes[0].add_patch(Rectangle((xmin, ymin), xmax - xmin, ymax - ymin, color="black"))
axes[0].set_title(
    f"{len(tiles)} tiles of 640 pixels in an image of {width} x {height}", fontsize=11
)
axes[0].set(
    xlim=(-20, width + 20),
    ylim=(height + 20, -20),
    aspect="equal",
    xticks=[],
    yticks=[],
)

counts = [
    tiles.objects(row).stop - tiles.objects(row).start for row in range(len(tiles))
]
axes[1].bar(range(len(tiles)), counts, color=colours)
axes[1].set(xlabel="tile", ylabel="objects", yticks=range(4))
axes[1].set_title("each tile is a sample with its own objects", fontsize=11)
