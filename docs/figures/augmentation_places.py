import matplotlib.pyplot as plt
from drawn_images import BLUE, GREEN, ORANGE
from matplotlib.patches import FancyBboxPatch

STEPS = (
    (("read", "decode"), BLUE),
    (("extra_before",), BLUE),
    (("mixing:", "mosaic, mixup,", "copy_paste"), ORANGE),
    (("colours, zoom,", "crop, rotation,", "flips"), BLUE),
    (("resize",), BLUE),
    (("extra_after",), BLUE),
    (("collate,", "batch mixing"), GREEN),
    (("batch", "transforms"), GREEN),
)
figure, axes = plt.subplots(figsize=(9.4, 2.4), layout="constrained")
for place, (lines, color) in enumerate(STEPS):
    axes.add_patch(
        FancyBboxPatch(
            (place * 1.25, 0),
            1.0,
            1.0,
            boxstyle="round,pad=0.03",
            facecolor=color,
            edgecolor="none",
        )
    )
    axes.text(
        place * 1.25 + 0.5,
        0.5,
        "\n".join(lines),
        ha="center",
        va="center",
        color="white",
        fontsize=9,
    )
    if place:
        axes.annotate(
            "",
            (place * 1.25 - 0.03, 0.5),
            (place * 1.25 - 0.22, 0.5),
            arrowprops={"arrowstyle": "->", "color": "black"},
        )
for first, last, text in (
    (0, 5, "one sample, in a worker"),
    (2, 2, "several images"),
    (6, 6, "batch, in\na worker"),
    (7, 7, "batch, on\nthe device"),
):
    top = text == "several images"
    y = 1.15 if top else -0.15
    left, right = first * 1.25, last * 1.25 + 1.0
    axes.plot([left, right], [y, y], color="black", linewidth=1)
    axes.text(
        (left + right) / 2,
        y + (0.08 if top else -0.08),
        text,
        ha="center",
        va="bottom" if top else "top",
    )
axes.set_xlim(-0.1, 9.9)
axes.set_ylim(-0.65, 1.5)
axes.axis("off")
