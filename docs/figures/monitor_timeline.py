"""Timeline of a run that waits for two workers, from simulated times, drawn by `save_timeline`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from lit_loader.engine.stats import STAGES, BatchRecord
from lit_loader.monitoring import StepRecord, save_timeline

STEP_S = 0.03
BATCH_S = {
    "read": 0.004,
    "decode": 0.07,
    "transform": 0.02,
    "sample": 0.003,
    "collate": 0.004,
    "send": 0.003,
}

batches = []
steps = []
free_s = [0.0, 0.045]  # the two workers
loop_s = 0.0
for number in range(18):
    worker = number % 2
    factor = 1 + 0.25 * ((number * 7) % 5 - 2) / 2  # images have different sizes
    stage_s = {stage: BATCH_S[stage] * factor for stage in STAGES}
    start_s = free_s[worker]
    end_s = start_s + sum(stage_s.values())
    free_s[worker] = end_s
    batches.append(
        BatchRecord(
            worker=worker,
            number=number,
            num_samples=16,
            start_s=start_s,
            end_s=end_s,
            stage_s=stage_s,
        )
    )
    begin_s = max(loop_s, end_s) + 0.001
    wait_s = begin_s - loop_s - 0.001
    steps.append(
        StepRecord(
            start_s=loop_s, wait_s=wait_s, step_start_s=begin_s, end_s=begin_s + STEP_S
        )
    )
    loop_s = begin_s + STEP_S

# The picture is shown at half its size, so its text needs twice the size.
STYLE = {"font.size": 15, "legend.columnspacing": 0.9, "legend.handlelength": 0.9}
with tempfile.TemporaryDirectory() as folder, plt.rc_context(STYLE):
    path = Path(folder, "timeline.png")
    save_timeline(path, batches, steps)
    picture = plt.imread(path)
figure = plt.figure(figsize=(picture.shape[1] / 144, picture.shape[0] / 144))
axes = figure.add_axes((0, 0, 1, 1))
axes.imshow(picture)
axes.axis("off")
plt.show()
