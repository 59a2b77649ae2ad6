import matplotlib.pyplot as plt
from lit_loader import ClassAwareSampler, ClassBalancedSampler, RandomSampler
from long_tail_set import BLUE, GREEN, ORANGE, RED

labels = [0] * 60 + [1] * 30 + [2] * 8 + [3] * 2
samplers = {
    "RandomSampler": RandomSampler(len(labels)),
    "ClassBalancedSampler": ClassBalancedSampler(labels),
    "ClassAwareSampler": ClassAwareSampler(labels),
}
figure, axes = plt.subplots(figsize=(8.5, 2.5), layout="constrained")
for row, (name, sampler) in enumerate(samplers.items()):
    for position, index in enumerate(sampler.order(seed=0, epoch=0)[0:40].tolist()):
        color = (BLUE, ORANGE, GREEN, RED)[labels[index]]
        axes.barh(-row, 0.9, left=position - 0.45, height=0.7, color=color)
        axes.text(
            position,
            -row,
            "ABCD"[labels[index]],
            ha="center",
            va="center",
            color="black" if color == ORANGE else "white",
            fontsize=9,
        )
    axes.text(-1, -row, name, ha="right", va="center")
for batch in range(5):
    axes.text(batch * 8 + 3.5, 0.6, f"batch {batch}", ha="center")
    if batch:
        axes.axvline(batch * 8 - 0.5, color="black", linewidth=1)
axes.set_xlim(-10, 40)
axes.set_ylim(-2.5, 0.9)
axes.axis("off")
