"""Order of copies and steps with and without device prefetch; a sketch, not a measurement."""

from __future__ import annotations

import matplotlib.pyplot as plt

COPY = "#E69F00"
STEP = "#555555"
COPY_S = 1.0
STEP_S = 2.4

figure, axes = plt.subplots(figsize=(7.4, 2.6), layout="constrained")
# Without prefetch a step follows its copy on the same stream.
start = 0.0
for number in range(3):
    axes.broken_barh([(start, COPY_S)], (2.1, 0.6), facecolors=COPY, edgecolors="white")
    axes.broken_barh(
        [(start + COPY_S, STEP_S)], (2.1, 0.6), facecolors=STEP, edgecolors="white"
    )
    axes.text(
        start + COPY_S + STEP_S / 2,
        2.4,
        f"step {number}",
        color="white",
        ha="center",
        va="center",
        fontsize=9,
    )
    start += COPY_S + STEP_S
# With prefetch the copy of the next batch runs on a side stream, during the step.
axes.broken_barh([(0, COPY_S)], (1.0, 0.6), facecolors=COPY, edgecolors="white")
for number in range(3):
    begin = COPY_S + number * STEP_S
    axes.broken_barh([(begin, STEP_S)], (0.3, 0.6), facecolors=STEP, edgecolors="white")
    axes.text(
        begin + STEP_S / 2,
        0.6,
        f"step {number}",
        color="white",
        ha="center",
        va="center",
        fontsize=9,
    )
    if number < 2:
        axes.broken_barh(
            [(begin, COPY_S)], (1.0, 0.6), facecolors=COPY, edgecolors="white"
        )
        axes.text(
            begin + COPY_S / 2,
            1.3,
            f"copy {number + 1}",
            ha="center",
            va="center",
            fontsize=9,
        )
axes.text(COPY_S / 2, 1.3, "copy 0", ha="center", va="center", fontsize=9)
axes.set_yticks([2.4, 1.3, 0.6], ["without prefetch", "side stream", "training stream"])
axes.set_xticks([])
axes.set_xlabel("time")
axes.set_xlim(0, start)
axes.spines[["top", "right", "left"]].set_visible(False)
axes.tick_params(axis="y", length=0)
plt.show()
