import matplotlib.pyplot as plt
import numpy as np
from lit_loader import EffectiveNumberSamplerConfig
from lit_loader.samplers import effective_number_weights
from long_tail_set import COLORS, draw_class_mix, long_tail

BETAS = (0.9, 0.99, 0.999)
counts = np.unique(np.geomspace(1, 10_000, 60).astype(int))
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for beta, color in zip(BETAS, COLORS, strict=False):
    left.plot(
        counts,
        effective_number_weights(counts, beta=beta),
        color=color,
        linewidth=2,
        label=f"β = {beta:g}",
    )
left.set_xscale("log")
left.set_yscale("log")
left.set_xlabel("images that contain the class, n(c)")
left.set_ylabel("weight of the class, w(c)")
left.legend(frameon=False, fontsize=9)
left.spines[["top", "right"]].set_visible(False)
draw_class_mix(
    right,
    {
        f"β = {b:g}": EffectiveNumberSamplerConfig(beta=b).make_sampler(long_tail())
        for b in BETAS
    },
)
