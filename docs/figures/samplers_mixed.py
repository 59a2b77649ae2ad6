import matplotlib.pyplot as plt
import numpy as np
from lit_loader import MixedSourceSampler
from long_tail_set import draw_batches

SIZES = (200, 60, 10)
samplers = {
    "no ratio": MixedSourceSampler(SIZES),
    "shares 2 : 1 : 1": MixedSourceSampler(SIZES, shares=[2, 1, 1], num_samples=270),
    "counts 4, 2, 2": MixedSourceSampler(SIZES, counts=[4, 2, 2]),
}
ends = np.cumsum(SIZES)
sources = {
    name: np.searchsorted(ends, sampler.order(seed=0, epoch=0)[0:40], side="right")
    for name, sampler in samplers.items()
}
figure, axes = plt.subplots(figsize=(8.5, 2.5), layout="constrained")
draw_batches(axes, {name: numbers.tolist() for name, numbers in sources.items()})
