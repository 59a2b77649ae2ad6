"""An epoch without interruption, and the same epoch stopped and resumed with other workers, from real loaders."""

import time
from typing import Any

import matplotlib.pyplot as plt
from lit_loader import DataLoader, get_worker_info
from matplotlib.patches import Rectangle

COLORS = ("#777777", "#0072b2", "#c47f00")


class Indices:
    """Samples are their indices, with the number of the worker that made them (0: the main process)."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(0.004)  # otherwise one worker makes nearly all batches
        info = get_worker_info()
        return index, 0 if info is None else info.id + 1


def loader(**workers: Any) -> Any:
    return DataLoader(Indices(), batch_size=3, shuffle=True, seed=0, **workers)


complete_batches = list(loader())
stopped = loader(num_workers=2)
iterator = iter(stopped)
stopped_batches = [next(iterator) for _ in range(3)]
state = stopped.state_dict()
del iterator
resumed = loader(num_workers=2, worker_method="thread")
resumed.load_state_dict(state)
resumed_batches = list(resumed)

figure, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
rows = [
    ("no workers,\nnot stopped", complete_batches, 0),
    ("two processes,\nstopped", stopped_batches, 0),
    ("two threads,\nresumed", resumed_batches, len(stopped_batches)),
]
for row, (label, batches, first) in enumerate(rows):
    axes.text(-0.5, 0.5 - 1.5 * row, label, ha="right", va="center")
    for number, (indices, workers) in enumerate(batches, first):
        for column, (index, worker) in enumerate(
            zip(indices.tolist(), workers.tolist(), strict=True)
        ):
            x = 3.4 * number + column
            axes.add_patch(
                Rectangle((x, -1.5 * row), 0.94, 1, facecolor=COLORS[worker])
            )
            axes.text(
                x + 0.47,
                0.5 - 1.5 * row,
                index,
                ha="center",
                va="center",
                color="white",
            )
stop = 3.4 * len(stopped_batches) - 0.23
axes.plot((stop, stop), (-3.2, 1.2), color="black", linestyle="--", linewidth=1)
axes.text(stop, 1.35, "state_dict()", ha="center", family="monospace")
for number, (color, name) in enumerate(
    zip(COLORS, ("main process", "worker 0", "worker 1"), strict=True)
):
    axes.add_patch(Rectangle((5 + 6 * number, -4.2), 0.7, 0.6, facecolor=color))
    axes.text(6 + 6 * number, -3.9, name, va="center")
axes.set(xlim=(-5, 27.2), ylim=(-4.4, 1.9))
axes.axis("off")
