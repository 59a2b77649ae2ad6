import matplotlib.pyplot as plt
import numpy as np
from lit_loader import RepeatFactorSamplerConfig
from long_tail_set import GREY, draw_class_mix, draw_curves, long_tail

THRESHOLDS = (0.01, 0.1, 1.0)
frequencies = np.geomspace(0.001, 1, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
draw_curves(
    left,
    frequencies,
    {f"t = {t:g}": np.maximum(1, np.sqrt(t / frequencies)) for t in THRESHOLDS},
    x_label="share of the images that contain the class, f(c)",
    y_label="repeat factor of the class, r(c)",
)
left.axhline(1, color=GREY, linewidth=1, linestyle=":")
configs = {f"t = {t:g}": RepeatFactorSamplerConfig(repeat_thresh=t) for t in THRESHOLDS}
draw_class_mix(
    right, {name: config.make_sampler(long_tail()) for name, config in configs.items()}
)
