"""Waiting in three epochs with persistent workers, from the medians of `python -m benchmarks.epoch_gap`."""

from __future__ import annotations

import matplotlib.pyplot as plt

STEP_S = 0.110
NUM_BATCHES = 9
NUM_EPOCHS = 3
# Seconds of waiting for the first batch of an epoch, and for each other batch.
WAITS = {
    "torch, 2 processes": (0.1674, 0.0011),
    "lit_loader, 2 processes": (0.0012, 0.0005),
    "lit_loader, 2 threads": (0.0006, 0.0002),
}

figure, axes = plt.subplots(figsize=(7.4, 2.3), layout="constrained")
for row, (first_s, other_s) in enumerate(WAITS.values()):
    waits = [first_s, *[other_s] * (NUM_BATCHES - 1)] * NUM_EPOCHS
    waiting = []
    steps = []
    now = 0.0
    for wait_s in waits:
        waiting.append((now, wait_s))
        steps.append((now + wait_s, STEP_S))
        now += wait_s + STEP_S
    labels = (None, None) if row else ("step", "waiting")
    axes.broken_barh(
        steps,
        (row - 0.3, 0.6),
        facecolor="#999999",
        edgecolor="white",
        linewidth=0.4,
        label=labels[0],
    )
    axes.broken_barh(
        waiting, (row - 0.3, 0.6), facecolor="#D55E00", linewidth=0, label=labels[1]
    )
    axes.text(now + 0.05, row, f"waits {sum(waits):.2f} s", va="center", fontsize=9.5)
axes.set_yticks(range(len(WAITS)), list(WAITS))
axes.invert_yaxis()
axes.set_xlim(0, 4.1)
axes.set_xlabel("seconds")
axes.spines[["top", "right", "left"]].set_visible(False)
axes.tick_params(axis="y", length=0)
figure.legend(loc="outside upper right", ncols=2, frameon=False)
plt.show()
