import matplotlib.pyplot as plt
import numpy as np
from lit_loader import MixedSourceSampler
from long_tail_set import BLUE, GREEN, ORANGE

SIZES = (200, 60, 10)
samplers = {
    "no ratio": MixedSourceSampler(SIZES),
    "shares 2 : 1 : 1": MixedSourceSampler(SIZES, shares=[2, 1, 1], num_samples=270),
    "counts 4, 2, 2": MixedSourceSampler(SIZES, counts=[4, 2, 2]),
}
ends = np.cumsum(SIZES)
figure, axes = plt.subplots(figsize=(8.5, 2.5), layout="constrained")
for row, (name, sampler) in enumerate(samplers.items()):
    sources = np.searchsorted(ends, sampler.order(seed=0, epoch=0)[0:40], side="right")
    for position, source in enumerate(sources.tolist()):
        color = (BLUE, ORANGE, GREEN)[source]
        axes.barh(-row, 0.9, left=position - 0.45, height=0.7, color=color)
        axes.text(
            position,
            -row,
            "ABC"[source],
            ha="center",
            va="center",
            color="black" if color == ORANGE else "white",
            fontsize=9,
        )
    axes.text(-1, -row, name, ha="right", va="center")
for batch in range(5):
    axes.text(batch * 8 + 3.5, 0.6, f"batch {batch}", ha="center")
    if batch:
        axes.axvline(batch * 8 - 0.5, color="black", linewidth=1)
axes.set_xlim(-8, 40)
axes.set_ylim(-2.5, 0.9)
axes.axis("off")
