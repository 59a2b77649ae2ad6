"""Shares of three classes in an epoch under each sampler, as `python -m benchmarks.class_mix` counts them."""

from __future__ import annotations

import matplotlib.pyplot as plt

# Percent of the objects of one epoch (disc, square, star), and the ratio of the most to the least frequent class.
BY_IMAGE = {
    "random": ((90.0, 9.0, 1.0), "90 : 1"),
    "repeat_factor": ((84.6, 11.9, 3.5), "24 : 1"),
    "effective_number": ((83.4, 11.0, 5.6), "15 : 1"),
    "class_aware": ((77.7, 13.9, 8.5), "9.2 : 1"),
    "class_balanced": ((77.6, 13.9, 8.5), "9.1 : 1"),
    "weighted": ((75.9, 15.0, 9.1), "8.3 : 1"),
}
BY_OBJECT = {
    "random": ((90.0, 9.0, 1.0), "90 : 1"),
    "effective_number": ((79.9, 12.2, 7.9), "10 : 1"),
    "repeat_factor": ((70.4, 22.2, 7.4), "9.5 : 1"),
    "weighted": ((33.8, 33.2, 33.1), "1.0 : 1"),
    "class_aware": ((33.3, 33.3, 33.3), "1.0 : 1"),
    "class_balanced": ((33.3, 33.3, 33.3), "1.0 : 1"),
}
COLOURS = {"disc": "#0072B2", "square": "#A65400", "star": "#009E73"}

figure, panels = plt.subplots(2, 1, figsize=(7, 5.2), layout="constrained")
for axes, shares, title in zip(
    panels,
    (BY_IMAGE, BY_OBJECT),
    ("a sample is an image", "a sample is the crop of an object"),
    strict=True,
):
    for row, (percents, ratio) in enumerate(shares.values()):
        start = 0.0
        for percent, colour in zip(percents, COLOURS.values(), strict=True):
            axes.barh(row, percent, left=start, color=colour)
            if percent > 6:
                axes.text(
                    start + percent / 2,
                    row,
                    f"{percent:.1f}%",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=8.5,
                )
            start += percent
        axes.text(101, row, ratio, va="center", fontsize=9)
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.set_xticks([])
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
for name, colour in COLOURS.items():
    panels[0].bar(0, 0, color=colour, label=name)
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
