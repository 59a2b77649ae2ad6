"""Measured time per batch of small samples by kind of worker, and a model of the rate by the number of workers."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

# Microseconds per batch of 256 stored samples, two cores: medians of `python -m benchmarks.overhead`.
MEASURED = {
    "torch, inline": 77.8,
    "torch, 2 processes": 526.6,
    "lit_loader, inline": 52.3,
    "lit_loader, 2 threads": 103.4,
    "lit_loader, 2 processes": 169.5,
}
NUM_CORES = 4
SAMPLE_MS = 10.0  # CPU time of a sample with one worker
BANDWIDTH = 3.2  # workers whose memory traffic fits into the bandwidth
SWITCHING = 0.04  # additional CPU time for each worker beyond the number of cores


def rate(
    num_workers: np.ndarray, *, threads: int = 1, bandwidth: float = np.inf
) -> np.ndarray:
    """Return samples per second of the model.

    Args:
        num_workers: Number of workers.
        threads: Native threads of each worker, which compete for the cores.
        bandwidth: Number of workers from which on the memory is the limit.
    """
    running = num_workers * threads
    cost = 1 + SWITCHING * np.maximum(running - NUM_CORES, 0)
    cores = np.minimum(running, NUM_CORES)
    # Beyond the bandwidth, more traffic also evicts more of the shared cache.
    memory = np.minimum(1, (bandwidth / np.minimum(num_workers, NUM_CORES)) ** 1.5)
    return 1e3 / SAMPLE_MS * cores * memory / cost


figure, (measured_axes, model_axes) = plt.subplots(
    1, 2, figsize=(8.4, 3.6), layout="constrained", width_ratios=(1, 1.15)
)
names = list(MEASURED)
colours = ["#999999", "#999999", "#0072B2", "#0072B2", "#0072B2"]
bars = measured_axes.barh(names, list(MEASURED.values()), color=colours)
measured_axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
measured_axes.invert_yaxis()
measured_axes.set_xlim(0, 660)
measured_axes.set_xlabel("µs per batch of 256 samples (measured)")

workers = np.arange(1, 13)
for label, colour, style, rates in (
    ("cores are the limit", "#009E73", "-", rate(workers)),
    ("memory bandwidth is short", "#0072B2", "--", rate(workers, bandwidth=BANDWIDTH)),
    ("4 native threads per worker", "#D55E00", ":", rate(workers, threads=4)),
):
    model_axes.plot(
        workers, rates, style, color=colour, marker="o", markersize=4, label=label
    )
model_axes.axvline(NUM_CORES, color="#BBBBBB", linewidth=1)
model_axes.text(NUM_CORES + 0.15, 425, "4 cores", color="#555555", fontsize=9)
model_axes.set_ylim(0, 440)
model_axes.set_xlabel("workers")
model_axes.set_ylabel("samples/s (model)")
model_axes.legend(frameon=False, fontsize=9, loc="lower right")
for axes in (measured_axes, model_axes):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()
