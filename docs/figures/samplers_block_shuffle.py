import matplotlib.pyplot as plt
import numpy as np
from lit_loader import BlockShuffleSampler, RandomSampler, SequentialSampler
from long_tail_set import BLUE

sizes = np.full(20, 100)
samplers = {
    "sequential": SequentialSampler(2000),
    "block shuffle": BlockShuffleSampler(
        shard_sizes=sizes, open_shards=2, block_size=25
    ),
    "random": RandomSampler(2000),
}
figure, panels = plt.subplots(
    1, 3, figsize=(8.5, 3.2), layout="constrained", sharey=True
)
for axes, (name, sampler) in zip(panels, samplers.items(), strict=True):
    axes.scatter(
        np.arange(2000),
        sampler.order(seed=0, epoch=0)[0:2000],
        s=2,
        color=BLUE,
        linewidths=0,
    )
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("position in the epoch")
    axes.set_yticks(np.arange(0, 2001, 500))
    axes.grid(visible=True, axis="y", linewidth=0.5)
    axes.margins(0.01)
panels[0].set_ylabel("index in the packed set")
