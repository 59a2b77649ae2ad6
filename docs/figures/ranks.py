"""Batches of one epoch on 1, 2 and 4 ranks with the same global batch, from real loaders."""

from typing import Any

import matplotlib.pyplot as plt
from lit_loader import DataLoader, is_duplicate
from matplotlib.patches import Rectangle

GLOBAL_BATCH = 8
COLORS = ("#0072b2", "#c47f00", "#00805c", "#b0568f")


class Indices:
    """Samples are their indices, and whether they only pad the last batch."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, bool]:
        return index, is_duplicate()


def draw(
    axes: Any, x: float, y: float, text: Any, color: str, hatch: str | None = None
) -> None:
    axes.add_patch(
        Rectangle(
            (x, y),
            0.94,
            1,
            facecolor="white" if hatch else color,
            edgecolor=color,
            hatch=hatch,
        )
    )
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if hatch else None
    axes.text(
        x + 0.47,
        y + 0.5,
        text,
        ha="center",
        va="center",
        color=color if hatch else "white",
        bbox=box,
    )


figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
for row, world_size in enumerate((1, 2, 4)):
    axes.text(
        -0.4,
        0.5 - row * 1.5,
        f"{world_size} rank{'s' * (world_size > 1)}",
        ha="right",
        va="center",
    )
    batch_size = GLOBAL_BATCH // world_size
    for rank in range(world_size):
        loader = DataLoader(
            Indices(),
            batch_size,
            shuffle=True,
            seed=0,
            rank=rank,
            world_size=world_size,
        )
        for number, (indices, duplicates) in enumerate(loader):
            # The last global batch is not full, so each rank has fewer samples there.
            start = number * (GLOBAL_BATCH + 0.6) + rank * len(indices)
            for column, (index, pads) in enumerate(
                zip(indices.tolist(), duplicates.tolist(), strict=True)
            ):
                draw(
                    axes,
                    start + column,
                    -row * 1.5,
                    index,
                    COLORS[rank],
                    "////" if pads else None,
                )
for number in range(3):
    axes.text(
        number * (GLOBAL_BATCH + 0.6) + 3.9, 1.35, f"global batch {number}", ha="center"
    )
for rank, color in enumerate(COLORS):
    axes.add_patch(Rectangle((1.3 + 4 * rank, -4.25), 0.7, 0.6, facecolor=color))
    axes.text(2.3 + 4 * rank, -3.95, f"rank {rank}", va="center")
axes.add_patch(
    Rectangle((17.3, -4.25), 0.7, 0.6, facecolor="white", edgecolor="0.3", hatch="////")
)
axes.text(18.3, -3.95, "padding duplicate", va="center")
axes.set(xlim=(-3.2, 26), ylim=(-4.5, 1.9))
axes.axis("off")
