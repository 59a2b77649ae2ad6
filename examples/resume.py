"""Kill a training run within an epoch, resume it with other workers, and prove that its batches are unchanged.

    python examples/resume.py

Trains a small detector three times on the embedded scenes: with two worker processes, killed by SIGKILL in the middle
of the second epoch; from the last checkpoint, with one worker thread; and uninterrupted, without workers. Prints the
progress of each, and whether all batches (image numbers, and pixels after augmentation) and the final weights have the
same bits. The exit code is 1 if they do not.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_loader import DetectionDataModule
from lit_loader.datamodules import ClassBalancedSamplerConfig, WorkerSettings
from lit_loader.datasets import ShapesSource
from lit_loader.recipes import DetectionTask, fcos_small

KILL_STEP = 8  # of ten steps
SAVED_STEP = 7  # checkpoints are saved every 7 steps


class Recorded(DetectionTask):
    """Records each training batch, and kills its process at a given step."""

    record: Path
    kill_at: int | None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train on a batch."""
        # SIGKILL leaves no time to clean up or to save anything.
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        images, targets = batch
        pixels = blake2b(b"".join(image.numpy().tobytes() for image in images), digest_size=8).hexdigest()
        with self.record.open("a") as file:
            file.write(f"{[int(target['image_id']) for target in targets]} {pixels}\n")
        return super().training_step(batch, batch_idx)


def train(record: Path, *, kill_at: int | None = None, ckpt_path: Path | None = None, **settings: Any) -> Any:
    """Train from the beginning or from a checkpoint, and return the final weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # for the initial weights; batches do not depend on it
    source = ShapesSource(num_images={"train": 20, "val": 4, "test": 4}, image_size=64, progress=False)
    sampler = ClassBalancedSamplerConfig()
    datamodule = DetectionDataModule(source, batch_size=4, train_sampler=sampler, seed=1, **settings)
    datamodule.prepare_data()
    small = partial(fcos_small, channels=8, head_channels=32, min_size=64)
    model = Recorded(small, class_names=datamodule.class_names)
    model.record = record
    model.kill_at = kill_at
    saves = ModelCheckpoint(record.with_suffix(""), every_n_train_steps=SAVED_STEP, save_top_k=-1, filename="{step}")
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=2, callbacks=[saves], limit_val_batches=0, **quiet)
    trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
    return model.state_dict()


def main(folder: Path) -> bool:
    """Run all three, print a comparison, and return True if they are equal."""
    records = [folder / f"{name}.txt" for name in ("killed", "resumed", "unbroken")]
    settings = {"kill_at": KILL_STEP, "num_workers": 2}
    # The run that is killed needs a process of its own.
    child = multiprocessing.get_context("fork").Process(target=train, args=records[:1], kwargs=settings)
    child.start()
    child.join()
    ckpt_path = folder / "killed" / f"step={SAVED_STEP}.ckpt"
    resumed = train(records[1], ckpt_path=ckpt_path, num_workers=1, workers=WorkerSettings(worker_method="thread"))
    unbroken = train(records[2])
    first, second, complete = (record.read_text().splitlines() for record in records)
    print(f"killed:   exit code {child.exitcode} after {len(first)} steps, last checkpoint at step {SAVED_STEP}")
    print(f"resumed:  {len(second)} steps, the first one on images {second[0]}")
    print(f"unbroken: {len(complete)} steps, number {SAVED_STEP + 1} on images {complete[SAVED_STEP]}")
    same_batches = first[:SAVED_STEP] + second == complete
    same_weights = all(torch.equal(resumed[name], value) for name, value in unbroken.items())
    print(f"every batch is the same: {same_batches}\nthe final weights are the same: {same_weights}")
    return same_batches and same_weights


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(0 if main(Path(temporary)) else 1)
