"""Stop and resume
===============

Most training runs that stop in the middle of an epoch lose that epoch: the sampler
starts again, so the model sees some images twice and others not at all. In this
tutorial, a run crashes after 8 of 15 steps and continues from a checkpoint with
different workers. Every batch and every loss is the same as in a run that never stopped.
"""

# %%
# The data
# --------
# We draw 20 small images of shapes and train for three epochs of five batches. A resumed
# run must continue two kinds of random numbers: the order of the images, and the
# augmentation of each image. To test both, a class-balanced sampler draws the order, and
# images are mirrored, rotated and recoloured at random.

import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path
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

# Lightning's hints would hide the output of the steps below.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)

folder = Path(tempfile.mkdtemp())
source = ShapesSource(
    num_images={"train": 20}, image_size=64, cache_dir=str(folder), progress=False
)
make_datamodule = partial(
    DetectionDataModule,
    source,
    batch_size=4,
    seed=1,
    train_sampler=ClassBalancedSamplerConfig(),
    train_transforms={"hflip": 0.5, "rotation": 15.0, "photometric": 0.5},
)

# %%
# Record every step
# -----------------
# To compare two runs, a callback records three things about each step: the images in the
# batch, a checksum of their pixels, which differs if an image is augmented differently,
# and the loss. Before a given step, it raises an error, as a crash would.


class Recorder(Callback):
    def __init__(self, crash_at=None):
        self.crash_at = crash_at
        self.images, self.pixels, self.losses = {}, {}, {}

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == self.crash_at:
            raise RuntimeError("a crash in mid-epoch")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step
        images, targets = batch
        self.images[step] = [int(target["image_id"]) for target in targets]
        self.pixels[step] = [crc32(image.numpy().tobytes()) for image in images]
        self.losses[step] = outputs["loss"].item()


def train(recorder, ckpt_path=None, **workers):
    torch.manual_seed(0)  # initial weights; the batches do not depend on it
    datamodule = make_datamodule(**workers)
    datamodule.prepare_data()
    detector = partial(fcos_small, channels=8, head_channels=32, min_size=64)
    checkpoints = ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=7, save_top_k=-1
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[recorder, checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    task = DetectionTask(detector, class_names=datamodule.class_names)
    trainer.fit(task, datamodule=datamodule, ckpt_path=ckpt_path)
    return task.state_dict()


# %%
# Three runs
# ----------
# The first run is the reference: no workers and no interruption.

reference = Recorder()
reference_weights = train(reference, num_workers=0)
print(f"{len(reference.losses)} steps, last loss {reference.losses[15]:.4f}")

# %%
# The second run uses two worker processes and crashes before its ninth step. It leaves
# the checkpoint of step 7, in the middle of the second epoch. By then, the workers have
# already prepared batches that the model never saw. The checkpoint counts only the batches
# that were trained on.
#
# Workers are forked on Linux. On other systems, put the runs into a function that is called
# under ``if __name__ == "__main__":``.

crashed = Recorder(crash_at=8)
try:
    train(crashed, num_workers=2)
except RuntimeError as error:
    print(f"stopped after {len(crashed.losses)} steps: {error}")

# %%
# The third run continues from that checkpoint. ``ckpt_path`` is all it needs, because
# Lightning saves and loads the state of the data module. To show that the workers do not
# matter, this run has one worker thread instead of two processes.

resumed = Recorder()
thread = WorkerSettings(worker_method="thread")
checkpoint = folder / "step=7.ckpt"
resumed_weights = train(resumed, checkpoint, num_workers=1, workers=thread)
print(f"resumed at step {min(resumed.losses)}, on images {resumed.images[8]}")

# %%
# Compare them
# ------------
# Steps 1 to 7 of the crashed run, followed by the steps of the resumed run, must equal the
# reference. We compare with ``==``, without a tolerance.

for name in ("images", "pixels", "losses"):
    stopped = {step: getattr(crashed, name)[step] for step in range(1, 8)}
    both_runs = stopped | getattr(resumed, name)
    print(f"{name} are equal: {both_runs == getattr(reference, name)}")
same = [
    torch.equal(resumed_weights[key], reference_weights[key]) for key in resumed_weights
]
print(f"weights are equal: {all(same)}")

# %%
# Why this works
# --------------
# A sampler of lit_loader computes the order of an epoch from the seed and the number of
# the epoch, and can start at any position of it. So a checkpoint needs no list of indices
# and no state of a generator: it says "epoch 1, position 8", and the resumed run starts
# there. The augmentation of a sample is seeded from the seed, the epoch and the position,
# so it does not matter which worker makes the sample, or what it made before.
#
# The result
# ----------
# The upper plot shows the losses: the resumed run is exactly on the reference. The lower
# plot shows the images of each step. Step 8 was trained twice, once before the crash and
# once after it, on the same images. Dotted lines are the ends of epochs.

figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
for run, label, marker, color, size in (
    (reference, "never stopped", "s", "0.75", 10),
    (crashed, "crashed after step 8", "o", "tab:blue", 6),
    (resumed, "resumed after step 7", "x", "tab:orange", 6),
):
    style = {"marker": marker, "color": color, "markersize": size}
    axes[0].plot(list(run.losses), list(run.losses.values()), label=label, **style)
    axes[1].plot(list(run.images), list(run.images.values()), linestyle="", **style)
for ax in axes:
    ax.axvline(5.5, color="0.6", linestyle=":")
    ax.axvline(10.5, color="0.6", linestyle=":")
axes[0].set_ylabel("loss")
axes[0].legend()
axes[1].set(xlabel="training step", ylabel="image number", xticks=range(1, 16))
axes[1].set_yticks(range(0, 20, 5))
plt.show()

# %%
# Not covered
# -----------
# Random draws of the model itself: Lightning does not save the generator that dropout
# draws from, so the losses of a model with dropout differ after a resume, although its
# batches are the same. On a GPU, some operations of torch add numbers in a different order
# each time, which changes losses but no batches. :doc:`/exactness/resuming` has the
# details, and what happens if the data or the number of GPUs changes.
