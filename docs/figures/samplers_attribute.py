import matplotlib.pyplot as plt
import numpy as np
from lit_loader import ClassBalancedSampler
from long_tail_set import BLUE, GREEN, ORANGE

WEATHER = ("clear", "rain", "fog")
classes = np.random.default_rng(0).choice(3, 1000, p=(0.6, 0.3, 0.1))
weather = np.random.default_rng(1).choice(3, 1000, p=(0.88, 0.1, 0.02))
samplers = {
    "data": None,
    "balanced\nby class": ClassBalancedSampler(classes),
    "balanced\nby weather": ClassBalancedSampler(weather),
}
figure, panels = plt.subplots(1, 2, figsize=(8.5, 3), layout="constrained", sharey=True)
for axes, labels, names in zip(
    panels,
    (classes, weather),
    (("class A", "class B", "class C"), WEATHER),
    strict=True,
):
    for column, sampler in enumerate(samplers.values()):
        visits = np.ones(1000) if sampler is None else sampler.expected_visits()
        shares = np.bincount(labels, weights=visits) / visits.sum()
        start = 0.0
        for share, name, color in zip(
            shares, names, (BLUE, ORANGE, GREEN), strict=True
        ):
            axes.bar(
                column,
                share,
                bottom=start,
                color=color,
                width=0.7,
                label=name if column == 0 else None,
            )
            if share > 0.04:
                axes.text(
                    column,
                    start + share / 2,
                    f"{share:.0%}",
                    ha="center",
                    va="center",
                    color="black" if color == ORANGE else "white",
                )
            start += share
    axes.set_xticks(range(3), list(samplers))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("share of the samples")
