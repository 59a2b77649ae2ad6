import matplotlib.pyplot as plt
import numpy as np
from lit_loader import EffectiveNumberSamplerConfig
from lit_loader.samplers import effective_number_weights
from long_tail_set import draw_class_mix, draw_curves, long_tail

BETAS = (0.9, 0.99, 0.999)
counts = np.unique(np.geomspace(1, 10_000, 60).astype(int))
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
draw_curves(
    left,
    counts,
    {f"β = {beta:g}": effective_number_weights(counts, beta=beta) for beta in BETAS},
    x_label="images that contain the class, n(c)",
    y_label="weight of the class, w(c)",
)
configs = {f"β = {beta:g}": EffectiveNumberSamplerConfig(beta=beta) for beta in BETAS}
draw_class_mix(
    right, {name: config.make_sampler(long_tail()) for name, config in configs.items()}
)
