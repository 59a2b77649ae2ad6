"""Rates of two workers on photographs: medians of three rounds of `python -m benchmarks.classification`."""

from __future__ import annotations

import matplotlib.pyplot as plt

# Images per second, and the median, lowest and highest ratio to the first one in three rounds; 500x375, two cores.
RATES = {
    "torch, recipe, float32": (1243, 1, 1, 1),
    "torch, recipe, uint8": (1776, 1.42, 1.39, 1.49),
    "lit_loader, same recipe, float32": (1813, 1.46, 1.41, 1.53),
    "lit_loader, same recipe, uint8": (2049, 1.67, 1.61, 1.68),
    "lit_loader data set, exact, float32": (2115, 1.74, 1.59, 1.74),
    "lit_loader data set, fast, uint8": (2783, 2.24, 2.2, 2.24),
    "the same on threads": (2193, 1.79, 1.72, 1.8),
}

figure, axes = plt.subplots(figsize=(7, 3.1), layout="constrained")
reference = RATES["torch, recipe, float32"][0]
for row, (rate, ratio, low, high) in enumerate(RATES.values()):
    axes.barh(row, rate, color="#999999" if row < 2 else "#0072B2")
    axes.plot(
        [low * reference, high * reference], [row, row], color="black", linewidth=1.5
    )
    axes.text(
        max(rate, high * reference) + 40, row, f"{ratio:.2f}x", va="center", fontsize=10
    )
axes.set_yticks(range(len(RATES)), list(RATES))
axes.invert_yaxis()
axes.set_xlim(0, 3350)
axes.set_xlabel("images per second (line: range of three rounds)")
axes.spines[["top", "right"]].set_visible(False)
plt.show()
