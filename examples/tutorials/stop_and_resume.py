"""Stop and resume
===============

Most training runs that stop in the middle of an epoch lose that epoch: the sampler starts again, so the model sees some
images twice and others not at all. In this tutorial, a run crashes after 8 of 15 steps and continues from a checkpoint
with different workers. Every batch and every loss is the same as in a run that never stopped.
"""

# %%
# Data
# ----
# We draw 20 small images of shapes and train for three epochs of five batches. A resumed run has to continue two kinds
# of random numbers: the order of the images, and the augmentation of each image. Here the order is a class-balanced
# draw, and images are mirrored, rotated and recoloured at random.

import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import matplotlib.pyplot as plt
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lit_loader import (
    ClassBalancedSamplerConfig,
    DetectionDataModule,
    ShapesSource,
    WorkerSettings,
)
from lit_loader.recipes import DetectionTask, fcos_small

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

folder = Path(tempfile.mkdtemp())
source = ShapesSource(
    num_images={"train": 20, "val": 4, "test": 4},
    image_size=64,
    cache_dir=str(folder),
    progress=False,
)


def make_datamodule(**settings: Any) -> DetectionDataModule:
    """Return the data of all runs."""
    augmentation = {"hflip": 0.5, "rotation": 15.0, "photometric": 0.5}
    sampler = ClassBalancedSamplerConfig()
    return DetectionDataModule(
        source,
        batch_size=4,
        seed=1,
        train_sampler=sampler,
        train_transforms=augmentation,
        **settings,
    )


# %%
# Record each step
# ----------------
# To compare runs, a callback notes three things about each step: the images in the batch, a checksum of their pixels
# (it changes if an image is augmented differently), and the loss. It can also end the run with an error before a given
# step, as a crash would.


class Recorder(Callback):
    """Record images, pixels and loss of each step, and raise an error before a given step."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.crash_at = crash_at
        self.images: dict[int, list[int]] = {}
        self.pixels: dict[int, list[int]] = {}
        self.losses: dict[int, float] = {}

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Crash, if it is time."""
        if trainer.global_step == self.crash_at:
            raise RuntimeError("a crash in mid-epoch")

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the step."""
        images, targets = batch
        step = trainer.global_step
        self.images[step] = [int(target["image_id"]) for target in targets]
        self.pixels[step] = [crc32(image.numpy().tobytes()) for image in images]
        self.losses[step] = outputs["loss"].item()


def train(
    *callbacks: Callback, ckpt_path: Path | None = None, **settings: Any
) -> dict[str, torch.Tensor]:
    """Train from the beginning or from a checkpoint, and return the final weights."""
    torch.manual_seed(0)  # initial weights; the batches do not depend on it
    detector = partial(fcos_small, channels=8, head_channels=32, min_size=64)
    datamodule = make_datamodule(**settings)
    datamodule.prepare_data()
    task = DetectionTask(detector, class_names=datamodule.class_names)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=list(callbacks),
        default_root_dir=folder,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=any(
            isinstance(callback, ModelCheckpoint) for callback in callbacks
        ),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, datamodule=datamodule, ckpt_path=ckpt_path)
    return task.state_dict()


# %%
# Three runs
# ----------
# The first run is the reference: no workers, no interruption.

reference = Recorder()
reference_weights = train(reference, num_workers=0)
print(f"{len(reference.losses)} steps, last loss {reference.losses[15]:.4f}")

# %%
# The second run uses two worker processes and crashes before its ninth step. All that remains of it is the checkpoint
# of step 7. That step is in the middle of the second epoch, and the workers have already prepared batches that the
# model never saw. The checkpoint counts only the batches that were trained on. (Linux forks workers. On other systems,
# put the runs into a function that is called under ``if __name__ == "__main__":``.)

crashed = Recorder(crash_at=8)
checkpoints = ModelCheckpoint(
    folder / "checkpoints", filename="{step}", every_n_train_steps=7, save_top_k=-1
)
try:
    train(crashed, checkpoints, num_workers=2)
except RuntimeError as error:
    print(f"stopped after {len(crashed.losses)} steps: {error}")

# %%
# The third run continues from that checkpoint. ``ckpt_path`` is all it needs, because Lightning saves and loads the
# state of the data module. We also change the workers, as on another machine: one worker thread instead of two
# processes.

resumed = Recorder()
thread = WorkerSettings(worker_method="thread")
checkpoint = folder / "checkpoints" / "step=7.ckpt"
resumed_weights = train(resumed, ckpt_path=checkpoint, num_workers=1, workers=thread)
print(f"resumed at step {min(resumed.losses)}, on images {resumed.images[8]}")

# %%
# Compare them
# ------------
# Steps 1 to 7 of the crashed run, followed by the steps of the resumed one, must equal the reference. We compare with
# ``==``, not within a tolerance.

for name in ("images", "pixels", "losses"):
    first_steps = {
        step: value for step, value in getattr(crashed, name).items() if step <= 7
    }
    print(
        f"{name} are equal:",
        first_steps | getattr(resumed, name) == getattr(reference, name),
    )
print(
    "weights are equal:",
    all(
        torch.equal(resumed_weights[key], value)
        for key, value in reference_weights.items()
    ),
)

# %%
# Why this works
# --------------
# A sampler of lit_loader computes the order of an epoch from the seed and the number of the epoch, and can read any
# part of it directly. So a checkpoint needs no list of indices and no generator states: it says "epoch 1, position 8",
# and the resumed run starts to read there. The augmentation of each sample is seeded from (seed, epoch, position), so
# it does not matter which worker makes the sample, or what that worker made before.
#
# The upper plot shows both loss curves; the resumed run lies exactly on the reference. The lower plot shows the images
# of each step. Step 8 was trained twice, once before the crash and once after it, on the same images.

fig, (top, bottom) = plt.subplots(
    2, 1, figsize=(8, 6), sharex=True, layout="constrained"
)
top.plot(
    *zip(*reference.losses.items(), strict=True),
    color="0.75",
    linewidth=6,
    label="never stopped",
)
top.plot(
    *zip(*crashed.losses.items(), strict=True),
    "o-",
    color="tab:blue",
    label="crashed after step 8",
)
top.plot(
    *zip(*resumed.losses.items(), strict=True),
    "x--",
    color="tab:orange",
    label="resumed after step 7",
)
top.set_ylabel("loss")
top.legend()
for run, marker, color in (
    (reference, "s", "0.75"),
    (crashed, "o", "tab:blue"),
    (resumed, "x", "tab:orange"),
):
    points = [(step, image) for step, images in run.images.items() for image in images]
    bottom.scatter(
        *zip(*points, strict=True),
        marker=marker,
        color=color,
        s=90 if marker == "s" else 30,
    )
for axes in (top, bottom):
    for end_of_epoch in (5.5, 10.5):
        axes.axvline(end_of_epoch, color="0.6", linestyle=":")
bottom.set(
    xlabel="training step (dotted: end of an epoch)",
    ylabel="image number",
    xticks=range(1, 16),
    yticks=range(0, 20, 4),
)
plt.show()

# %%
# **Not covered:** random draws of the model itself. Lightning does not save the generator that dropout draws from,
# so the losses of a model with dropout differ after a resume, although its batches are the same. On a GPU, some of
# torch's operations add numbers in a different order each time; the batches are not affected.
