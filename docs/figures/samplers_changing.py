import matplotlib.pyplot as plt
import numpy as np
from lit_loader import ClassBalancedSampler
from long_tail_set import BLUE, GREEN, ORANGE

labels = [0] * 900 + [1] * 90 + [2] * 10
epochs = np.arange(16)
figure, panels = plt.subplots(
    1, 2, figsize=(8.5, 3.2), layout="constrained", sharey=True
)
courses = {
    "exponent: {points: {0: 0, 10: 1}}": {"points": {0: 0.0, 10: 1.0}},
    "exponent: {epochs: [5, null], value: 1}": {"epochs": [5, None], "value": 1.0},
}
for axes, (name, exponent) in zip(panels, courses.items(), strict=True):
    sampler = ClassBalancedSampler(labels, exponent=exponent)
    quotas = np.array([sampler.quotas_of(epoch)[0] for epoch in epochs])
    start = np.zeros(len(epochs))
    for c, color in enumerate((BLUE, ORANGE, GREEN)):
        axes.bar(
            epochs,
            quotas[:, c],
            bottom=start,
            color=color,
            width=0.9,
            label=f"class {'ABC'[c]}",
        )
        start += quotas[:, c]
    axes.set_xticks(epochs[::5])
    axes.set_xlabel("epoch")
    axes.set_title(name, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("visits to the class in an epoch")
panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
