"""A slow run diagnosed
====================

Training is slow, and you want to know why. This tutorial makes a data set slow on purpose in two stages, lets
:py:class:`lit_loader.DataMonitor` name the stage at fault, and applies the setting that it prints. Then it does the
same again, because the first fault hid the second one. At the end, a timeline shows the run before and after.
"""

# %%
# Slow data, and a fast step
# --------------------------
#
# The data set has 64 photographs of 2000x1500 pixels in one folder for each class. The script draws them, so there is
# nothing to download.

import logging
import tempfile
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lit_loader import (
    ClassificationBatch,
    ClassificationDataModule,
    DataMonitor,
    FormatSource,
)
from lit_loader.images import ImageReading
from lit_loader.monitoring import save_timeline
from PIL import Image
from torchvision.transforms import v2

folder = Path(tempfile.mkdtemp(prefix="slow-run-"))
draws = np.random.default_rng(0)
for number in range(64):
    path = folder / "train" / ("land" if number % 2 else "sea") / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(draws.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    coarse.resize((2000, 1500), Image.Resampling.BICUBIC).save(path, quality=80)

# %%
# The training step sleeps for 20 ms. A step on a GPU leaves the cores of the CPU to the workers, and so does a sleep.


class Step(LightningModule):
    """Linear classifier of the mean colour, with a step of 20 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def training_step(self, batch: ClassificationBatch) -> torch.Tensor:
        """Wait, and return the loss of a batch."""
        time.sleep(0.02)
        return torch.nn.functional.cross_entropy(
            self.linear(batch.images.mean((2, 3))), batch.labels
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


# %%
# A :py:class:`lit_loader.DataMonitor` is a callback. In a run of your own, ``callbacks=[DataMonitor()]`` is all you
# need: it warns when training waits for data. Here, ``num_records`` also keeps the times of the last 200 steps for the
# timeline at the end.

# Lightning's hints, and the warning of the monitor, whose text is printed below.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


def train(num_steps: int, **settings: Any) -> DataMonitor:
    """Train with these settings of the data module; print the report of the monitor, and return the monitor."""
    source = FormatSource("image_folder", folder, train="train", progress=False)
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
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Step(), datamodule=datamodule)
    for line in monitor.lines():
        print(textwrap.fill(line, width=70, subsequent_indent="    "))
    return monitor


# %%
# First run: a transform in the wrong place
# -----------------------------------------
#
# The augmentation should vary brightness and contrast. It was added with ``extra_before``, so it changes the whole
# photograph, and only a random crop of it, shrunk to 128x128 pixels, remains.

jitter = [v2.ColorJitter(brightness=0.2, contrast=0.2)]
first_run = train(num_steps=12, train_transforms={"size": 128, "extra_before": jitter})

# %%
# Read the output from the top. The first sentence divides the time of the training loop, and the next one the time of
# the workers. The verdicts begin with ``-``. Each has a cause, the figures by which it was recognised, and a remedy.
#
# The stage at fault is ``transform``, and the remedy is a cheaper transform. A further verdict says what more workers
# could do about it. If other programs keep the cores busy, a verdict ``busy host`` comes first.
#
# The crop can be jittered just as well, and it has 180 times fewer pixels. Transforms in ``extra_after`` get the image
# in its final size.
#
# Second run: more pixels decoded than shown
# ------------------------------------------

late_jitter = {"size": 128, "extra_after": jitter}
second_run = train(num_steps=48, train_transforms=late_jitter)

# %%
# Training still waits, now for another stage: ``decode``. The slow transform had hidden it. The verdict names two
# settings, and each of them alone may be enough:
#
# * ``decode='fast'``, a field of ``ImageReading``, decodes only the part of a JPEG that the crop shows, at 1/2, 1/4 or
#   1/8 of its size if that is enough.
# * ``cache=True`` decodes each photograph once and stores its pixels.
#
# Third run: the setting that the verdict names
# ---------------------------------------------

third_run = train(
    num_steps=48, train_transforms=late_jitter, reading=ImageReading(decode="fast")
)

# %%
# The three runs side by side:

runs = {
    "jitter before the crop": first_run,
    "jitter after it": second_run,
    "decode='fast'": third_run,
}
for name, monitor in runs.items():
    report = monitor.report()
    step_ms = report.total_s / report.num_steps * 1e3
    print(
        f"{name:22} {step_ms:4.0f} ms per step, waiting for {report.wait_fraction:.0%} of the time"
    )

# %%
# The timelines
# -------------
#
# :py:func:`lit_loader.monitoring.save_timeline` draws one lane for the training loop and one for each worker, here for
# eight steps. In the first run, the workers are always busy with transforms, and the loop waits for most of its time.
# In the third run, one step follows the other, and the workers pause because they are ahead. A white gap in the upper
# lane is the end of an epoch, which the monitor does not count.

figure, axes = plt.subplots(2, 1, figsize=(9, 4.6), layout="constrained")
for axis, monitor, title in zip(
    axes, (first_run, third_run), ("first run", "third run"), strict=True
):
    (loader,) = monitor.loop.loaders
    steps = list(monitor.loop.records)[:20]
    batches = [
        batch for batch in loader.batch_records() if batch.end_s < steps[-1].end_s
    ]
    picture = folder / f"{title}.png"
    with plt.rc_context({"font.size": 12}):
        save_timeline(
            picture, batches, steps, max_s=steps[-1].end_s - steps[-8].start_s
        )
    axis.imshow(plt.imread(picture))
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %%
# Without a script, ``lit-loader profile --timeline timeline.png`` measures a configured run for half a minute and
# draws the same picture. :doc:`The page on monitoring </speed/monitor>` lists all causes and their remedies.
