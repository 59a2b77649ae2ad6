import matplotlib.pyplot as plt
import numpy as np
from lit_loader import GroupedSampler, RandomSampler
from lit_loader.samplers import aspect_ratio_buckets
from long_tail_set import BLUE
from matplotlib.patches import Rectangle

rng = np.random.default_rng(3)
ratios = rng.choice((4 / 3, 3 / 2, 16 / 9, 3 / 4, 2 / 3, 1.0), 400) * np.exp(
    rng.normal(0, 0.08, 400)
)
scale = np.minimum(1, 1333 / (800 * np.maximum(ratios, 1 / ratios)))
heights = 800 * scale * np.maximum(1, 1 / ratios)
widths = heights * ratios
random = RandomSampler(400)
grouped = GroupedSampler(random, aspect_ratio_buckets(widths, heights, 8))
orders = {
    "batching=plain": random.order(seed=0, epoch=0),
    "batching=aspect_ratio": grouped.batch_order(seed=0, epoch=0, global_batch=4),
}
figure, panels = plt.subplots(2, 1, figsize=(8.5, 3), layout="constrained")
for axes, (name, order) in zip(panels, orders.items(), strict=True):
    left = 0.0
    for batch in range(3):
        indices = order[batch * 4 : batch * 4 + 4]
        width, height = widths[indices].max(), heights[indices].max()
        for index in indices:
            axes.add_patch(
                Rectangle((left, 0), width, height, color="#D9D9D9", linewidth=0)
            )
            axes.add_patch(
                Rectangle(
                    (left, 0), widths[index], heights[index], color=BLUE, linewidth=0
                )
            )
            left += width + 40
        left += 200
    batches = order[0:400].reshape(-1, 4)
    padded = 4 * (widths[batches].max(axis=1) * heights[batches].max(axis=1)).sum()
    padding = 1 - (widths * heights).sum() / padded
    axes.set_title(
        f"{name}: {padding:.0%} of the pixels of an epoch are padding",
        fontsize=10,
        loc="left",
    )
    axes.set_xlim(-20, 15900)
    axes.set_ylim(-20, 1360)
    axes.set_aspect("equal")
    axes.axis("off")
