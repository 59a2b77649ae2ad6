import matplotlib.pyplot as plt
from lit_loader import RandomSampler
from long_tail_set import BLUE, ORANGE

sampler = RandomSampler(24)
figure, axes = plt.subplots(figsize=(8.5, 2.3), layout="constrained")
for row, epoch in enumerate((0, 1)):
    order = sampler.order(seed=0, epoch=epoch)[0:24]
    for position, index in enumerate(order.tolist()):
        color = (BLUE, ORANGE)[position % 8 // 4]
        axes.barh(-row, 0.9, left=position - 0.45, height=0.62, color=color)
        axes.text(
            position,
            -row,
            index,
            ha="center",
            va="center",
            color="black" if color == ORANGE else "white",
            fontsize=10,
        )
    axes.text(-1, -row, f"epoch {epoch}", ha="right", va="center")
for batch in range(3):
    axes.text(batch * 8 + 3.5, 0.55, f"global batch {batch}", ha="center")
    if batch:
        axes.axvline(batch * 8 - 0.5, color="black", linewidth=1)
for rank, color in enumerate((BLUE, ORANGE)):
    axes.bar(0, 0, color=color, label=f"rank {rank}")
axes.legend(loc="lower center", ncols=2, frameon=False, bbox_to_anchor=(0.5, -0.32))
axes.set_xlim(-3.5, 24)
axes.set_ylim(-1.5, 0.9)
axes.axis("off")
