import matplotlib.pyplot as plt
import numpy as np
from drawn_images import BLUE, GREEN, ORANGE
from lit_loader import BatchChoice, EpochRange, LinearSchedule, sample_key

epochs = np.arange(20)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3), layout="constrained")
for name, schedule, color, marker in (
    ("mosaic p={epochs: [0, 15], value: 0.8}", EpochRange([0, 15], 0.8), BLUE, "o"),
    (
        "hflip={points: {0: 0.5, 10: 0.0}}",
        LinearSchedule({0: 0.5, 10: 0.0}),
        ORANGE,
        "s",
    ),
):
    left.plot(
        epochs,
        [schedule.at(epoch) for epoch in epochs.tolist()],
        marker=marker,
        color=color,
        label=name,
    )
left.set_xticks(np.arange(0, 20, 5))
left.set_xlabel("epoch")
left.set_ylabel("probability")
left.set_ylim(-0.05, 1.15)
left.legend(frameon=False, fontsize=9, loc="upper right")
choice = BatchChoice([320, 384, 448])
sizes = []
for epoch in range(2):
    for batch in range(20):
        with sample_key(epoch=epoch, batch=batch):
            sizes.append(choice.current())
right.plot(np.arange(40), sizes, "o", color=GREEN, markersize=4)
right.axvline(19.5, color="black", linewidth=1)
right.set_yticks([320, 384, 448])
right.set_xlabel("batch of epochs 0 and 1")
right.set_ylabel("size={choices: [320, 384, 448]}")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
