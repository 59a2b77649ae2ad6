import matplotlib.pyplot as plt
import numpy as np
from lit_loader import RepeatFactorSamplerConfig
from long_tail_set import COLORS, GREY, draw_class_mix, long_tail

THRESHOLDS = (0.01, 0.1, 1.0)
frequencies = np.geomspace(0.001, 1, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for threshold, color in zip(THRESHOLDS, COLORS, strict=False):
    factors = np.maximum(1, np.sqrt(threshold / frequencies))
    left.plot(
        frequencies, factors, color=color, linewidth=2, label=f"t = {threshold:g}"
    )
left.axhline(1, color=GREY, linewidth=1, linestyle=":")
left.set_xscale("log")
left.set_yscale("log")
left.set_xlabel("share of the images that contain the class, f(c)")
left.set_ylabel("repeat factor of the class, r(c)")
left.legend(frameon=False, fontsize=9)
left.spines[["top", "right"]].set_visible(False)
draw_class_mix(
    right,
    {
        f"t = {t:g}": RepeatFactorSamplerConfig(repeat_thresh=t).make_sampler(
            long_tail()
        )
        for t in THRESHOLDS
    },
)
