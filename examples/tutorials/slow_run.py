"""A slow run diagnosed
====================

Training is slow, and you want to know why. This tutorial makes a run slow on purpose in
two ways, lets `DataMonitor` name the stage at fault, and applies the remedy that it
prints. Then it does the same again, because the first fault hid the second one. At the
end, a timeline shows the run before and after.

The times on this page depend on the machine that built it and on its load. A verdict
``busy host`` means that other programs kept its cores busy.
"""

# %%
# Slow data, and a fast step
# --------------------------
# The data set has 64 photographs of 2000x1500 pixels in two folders, one for each class.
# They are drawn, so there is nothing to download.

import logging
import tempfile
import textwrap
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lit_loader import ClassificationDataModule, DataMonitor, FormatSource
from lit_loader.images import ImageReading
from lit_loader.monitoring import save_timeline
from PIL import Image
from torchvision.transforms import v2

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for number in range(64):
    path = folder / "train" / ("land" if number % 2 else "sea") / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    coarse.resize((2000, 1500)).save(path, quality=80)
source = FormatSource("image_folder", folder, train="train", progress=False)

# %%
# The training step sleeps for 10 ms. A step on a GPU leaves the cores of the CPU to the
# workers, and so does a sleep.


class SleepyStep(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def training_step(self, batch):
        time.sleep(0.01)
        scores = self.linear(batch.images.mean((2, 3)))
        return torch.nn.functional.cross_entropy(scores, batch.labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


# %%
# The monitor
# -----------
# :py:class:`lit_loader.DataMonitor` is a callback. In a run of your own,
# ``callbacks=[DataMonitor()]`` is all you need: it warns when training waits for data,
# with the causes. Here, we print its lines at the end of each run instead, and
# ``num_records`` keeps the times of the last 200 steps for the timeline.

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
torch.set_num_threads(1)


def train(num_steps, **settings):
    datamodule = ClassificationDataModule(
        source, batch_size=8, num_workers=2, seed=0, **settings
    )
    monitor = DataMonitor(num_records=200)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=num_steps,
        limit_val_batches=0,
        callbacks=[monitor],
        barebones=True,
    )
    trainer.fit(SleepyStep(), datamodule=datamodule)
    for line in monitor.lines():
        print(textwrap.fill(line, width=80, subsequent_indent="    "))
    return monitor


# %%
# First run: a transform in the wrong place
# -----------------------------------------
# The augmentation varies brightness and contrast. It is passed as ``extra_before``, so it
# changes the whole photograph. Only then is a random crop cut out and shrunk to
# 128x128 pixels.

jitter = [v2.ColorJitter(brightness=0.2, contrast=0.2)]
first_run = train(12, train_transforms={"size": 128, "extra_before": jitter})

# %%
# Read the output from the top. The first sentence breaks down the time of the
# training loop, and the second one the time of the workers. Each line with a dash is a
# verdict: a cause, the figures that show it, and a remedy.
#
# Here the cause is ``transform``. The remedy is a cheaper transform, and there is one: the
# crop can be jittered as well as the photograph, and has 180 times fewer pixels. Transforms
# in ``extra_after`` get the image in its final size.
#
# Second run: more pixels decoded than shown
# ------------------------------------------

late_jitter = {"size": 128, "extra_after": jitter}
second_run = train(32, train_transforms=late_jitter)

# %%
# A step takes much less time than before, but training still waits, now for ``decode``. The
# slow transform had hidden this. The verdict names two remedies:
#
# - ``decode="fast"`` decodes only the part of a JPEG that the crop shows, at 1/2, 1/4 or 1/8
#   of its size if that is enough.
# - ``cache=True`` decodes each photograph once and stores its pixels.
#
# Third run: the remedy
# ---------------------

fast = ImageReading(decode="fast")
third_run = train(32, train_transforms=late_jitter, reading=fast)

# %%
# Three runs, two changes
# -----------------------
# The waiting that remains is for the first batch of each epoch. A verdict ``epoch start``
# says so. These epochs have eight batches; longer ones wait less often.

runs = {"first": first_run, "second": second_run, "third": third_run}
for name, monitor in runs.items():
    report = monitor.report()
    step_ms = 1e3 * report.total_s / report.num_steps
    print(f"{name:6} run: {step_ms:4.0f} ms a step, waiting {report.wait_fraction:.0%}")

# %%
# The timeline
# ------------
# `save_timeline` draws a lane for the training loop and one for each worker, here for eight
# steps: compare the seconds of the two plots. In the first run, the workers are busy with
# transforms, and the loop waits for them. In the third run, one step follows the other, and
# the workers pause because they are ahead.

figure, axes = plt.subplots(2, 1, figsize=(9, 4.6), layout="constrained")
for ax, monitor in zip(axes, (first_run, third_run), strict=True):
    steps = list(monitor.loop.records)
    batches = monitor.loop.loaders[0].batch_records()
    with plt.rc_context({"font.size": 12}):
        seconds = steps[-1].end_s - steps[-8].start_s
        save_timeline(folder / "timeline.png", batches, steps, max_s=seconds)
    ax.imshow(plt.imread(folder / "timeline.png"))
    ax.set_title("first run" if monitor is first_run else "third run")
    ax.set_axis_off()
plt.show()

# %%
# Next steps
# ----------
# - ``lit-loader profile --timeline timeline.png`` measures a configured run for half a
#   minute, and draws the same picture.
# - :doc:`/speed/monitor` lists all causes and remedies.
# - :doc:`/speed/tune` finds the number of workers.
