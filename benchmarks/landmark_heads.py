"""Error of regressed points and of heatmaps after equal training time, over some seeds: faces with 68 points.

``python -m benchmarks.landmark_heads --faces FOLDER`` reads ``training_frames_keypoints.csv`` and ``training/`` of
Udacity's facial keypoints. A fifth of the people is held out. Models from scratch, optimizer and transforms are those
of the experiment ``faces`` with ``model=heatmaps_small`` and ``model=regression_small``. Contenders train in turn, each
for the same CPU time of one thread, loading included, so that other work on the machine does not change the result; the
learning rate follows this time. The weights at its end are scored, so that no contender gains from the choice of a
checkpoint.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from lit_loader import LandmarkDataModule
from lit_loader.datasets import FormatSource
from lit_loader.recipes import LandmarkLoss, LandmarkTask, WingLoss, model_kwargs_from_datamodule

__all__ = ["CONTENDERS", "CpuClock", "compare_heads", "train"]

WARMUP_SHARE: Final = 0.05

CONTENDERS: Final[dict[str, tuple[str, nn.Module]]] = {
    "heatmaps, L1": ("heatmaps_small", nn.L1Loss(reduction="none")),
    "heatmaps, wing": ("heatmaps_small", WingLoss()),
    "regression, L1": ("regression_small", nn.L1Loss(reduction="none")),
    "regression, wing": ("regression_small", WingLoss()),
}
"""Model and loss of the points by the name of the contender."""

LEARNING_RATES: Final = {"heatmaps_small": 0.003, "regression_small": 0.001}
"""Learning rates of the shipped configs. Heatmaps did as well at 0.001, regression worse at 0.003."""


class CpuClock(pl.Callback):
    """Ends a fit after some CPU time, and scales the learning rate by it: a warm-up, then half a cosine.

    Args:
        seconds: CPU seconds of this process.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start_s = time.process_time()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._start_s = time.process_time()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stop when the time is over."""
        trainer.should_stop = self.progress >= 1

    @property
    def progress(self) -> float:
        """Elapsed share of the time."""
        return (time.process_time() - self._start_s) / self.seconds

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate now."""
        # The last batch ends after the time is over, where the cosine would rise again.
        progress = min(1.0, self.progress)
        if progress < WARMUP_SHARE:
            # Above 0, so that the first step already learns.
            return (progress + 0.01) / (WARMUP_SHARE + 0.01)
        return 0.5 * (1 + math.cos(math.pi * (progress - WARMUP_SHARE) / (1 - WARMUP_SHARE)))


def train(source: FormatSource, contender: str, *, seed: int, seconds: float) -> dict[str, float]:
    """Train a contender, and return its steps and its errors on the people held out, plain and with mirrored crops."""
    pl.seed_everything(seed, verbose=False)
    datamodule = LandmarkDataModule(
        source,
        batch_size=8,
        num_workers=0,
        train_transforms={"size": 96, "margin": 0.15, "rotation": 20.0, "photometric": 0.3},
        seed=seed,
    )
    datamodule.prepare_data()
    datamodule.setup("fit")
    clock = CpuClock(seconds)
    model, point_loss = CONTENDERS[contender]
    task = LandmarkTask(
        model,
        **model_kwargs_from_datamodule(datamodule),
        loss=LandmarkLoss(point_loss=point_loss),
        optimizer=partial(torch.optim.AdamW, lr=LEARNING_RATES[model], weight_decay=0.01),
        scheduler=partial(LambdaLR, lr_lambda=clock.factor),
        scheduler_interval="step",
    )
    make_trainer = partial(
        pl.Trainer, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer = make_trainer(
        max_epochs=-1, gradient_clip_val=5.0, limit_val_batches=0, enable_model_summary=False, callbacks=[clock]
    )
    trainer.fit(task, datamodule=datamodule)
    errors = {}
    # One fit for both errors: mirrored crops are averaged in tests only.
    for flip in (False, True):
        task.test_time_flip = flip
        make_trainer().test(task, datamodule=datamodule, verbose=False)
        errors[flip] = task.test_scores.nme
    return {"steps": trainer.global_step, "nme": errors[False], "flipped": errors[True]}


def compare_heads(folder: Path, *, seeds: int, seconds: float) -> dict[str, list[Mapping[str, float]]]:
    """Train all contenders in turn, and print the median of their errors with its range as a table.

    Args:
        folder: Folder of the faces.
        seeds: Number of runs of each contender; the weights, the order and the transforms differ.
        seconds: CPU seconds of a run.
    """
    # Lightning reports its devices for every trainer.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    source = FormatSource(
        format="keypoints_csv",
        root=str(folder),
        train="training_frames_keypoints.csv",
        test=None,
        test_fraction=0.2,
        options={"image_dir": "training", "schema": "face_68", "class_name": "face"},
        # The same person in training and test would be recognised.
        group_pattern=r"([A-Za-z_]+)_\d+\.",
        progress=False,
    )
    runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in CONTENDERS}
    # Contenders alternate, so that a slow spell of the machine hits all of them.
    for seed in range(seeds):
        for name, results in runs.items():
            results.append(train(source, name, seed=seed, seconds=seconds))
    print(
        f"\nfaces with 68 points, {seconds:g} CPU seconds a run, {seeds} seeds; NME in % of the inter-ocular distance"
    )
    print(f"  {'':18s} {'steps':>6s}   {'NME':24s} with mirrored crops")
    for name, results in runs.items():
        steps = statistics.median(result["steps"] for result in results)
        texts = [_spread([100 * result[key] for result in results]) for key in ("nme", "flipped")]
        print(f"  {name:18s} {steps:6.0f}   {texts[0]:24s} {texts[1]}")
    return runs


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Compare the heads on the faces of ``--faces``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, help="folder with training_frames_keypoints.csv and training/")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of a run (%(default)s)")
    arguments = parser.parse_args()
    if arguments.faces is None or not (arguments.faces / "training_frames_keypoints.csv").is_file():
        print(
            f"skipped: --faces={arguments.faces} has no training_frames_keypoints.csv; give Udacity's facial keypoints"
        )
        return
    # CPU time of several threads would add up, and depend on the machine's load.
    torch.set_num_threads(1)
    compare_heads(arguments.faces, seeds=arguments.seeds, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
