import matplotlib.pyplot as plt
import numpy as np
from lit_loader import ClassBalancedSamplerConfig
from long_tail_set import COLORS, GREY, NUM_CLASSES, draw_class_mix, long_tail

samplers = {
    f"exponent {exponent:g}": ClassBalancedSamplerConfig(
        exponent=exponent
    ).make_sampler(long_tail())
    for exponent in (0.0, 0.5, 1.0)
}
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for (name, sampler), color, marker in zip(
    samplers.items(), COLORS, "osD", strict=False
):
    left.plot(
        np.arange(NUM_CLASSES),
        sampler.quotas,
        marker=marker,
        color=color,
        linewidth=1.5,
        label=name,
    )
left.axhline(len(sampler) / NUM_CLASSES, color=GREY, linewidth=1, linestyle=":")
left.set_yscale("log")
left.set_xticks(np.arange(NUM_CLASSES))
left.set_xlabel("class, from frequent to rare")
left.set_ylabel("visits to the class in an epoch (quota)")
left.legend(frameon=False, fontsize=9)
left.spines[["top", "right"]].set_visible(False)
draw_class_mix(right, samplers)
