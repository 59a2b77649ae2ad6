"""Study of mixing: mAP of a small detector from scratch with and without it, in equally many steps, over some seeds.

Called by ``python -m benchmarks.mixing --map``. Model, optimizer and transforms are set as in the experiments
``bccd`` and ``shapes``. There are fewer images or epochs, and images are in random order, so that only `CopyPaste`
changes the class mix. The weights after the last step are scored: no variant gains from the choice of a checkpoint.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from benchmarks.rounds import cpu_seconds
from lit_loader import DetectionDataModule
from lit_loader.datasets import ShapesSource, TableSource, VocSource
from lit_loader.images import ImageReading
from lit_loader.mixing import Mix
from lit_loader.recipes import DetectionTask, WarmupCosineLR, fcos_small
from lit_loader.schedules import EpochRange
from lit_loader.transforms import CopyPaste, Mosaic

__all__ = ["VARIANTS", "StudySet", "print_results", "run_study", "study_sets", "train"]

# Of the epochs; the last ones train on plain samples.
MIXED_SHARE = 0.8
WARMUP_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class StudySet:
    """A set of the study.

    Attributes:
        source: The data, scored on its validation split.
        size: Height and width of samples and of the detector's input, in pixels.
        photometric: Probability of photometric distortions.
        batch_size: Images per step.
        num_epochs: Epochs of a run.
    """

    source: TableSource
    size: tuple[int, int]
    photometric: float
    batch_size: int
    num_epochs: int

    @property
    def mixed_epochs(self) -> list[int]:
        """First epoch with mixed samples, and the first epoch after them."""
        return [0, max(1, round(MIXED_SHARE * self.num_epochs))]


VARIANTS: dict[str, Callable[[StudySet], Mix | None]] = {
    "none": lambda study_set: None,
    "mosaic": lambda study_set: Mosaic(p=EpochRange(study_set.mixed_epochs), size=study_set.size),
    "copy_paste": lambda study_set: CopyPaste(p=EpochRange(study_set.mixed_epochs), class_weights="balanced"),
}
"""Mixing by the name of the variant."""


def train(study_set: StudySet, variant: str, seed: int) -> dict[str, Any]:
    """Train and score a detector, and return steps, scores and seconds."""
    # Lightning reports its devices for every trainer.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    start = time.perf_counter()
    cpu_start = cpu_seconds()
    pl.seed_everything(seed, verbose=False)
    datamodule = DetectionDataModule(
        study_set.source,
        batch_size=study_set.batch_size,
        num_workers=1,
        train_transforms={"size": list(study_set.size), "vflip": 0.5, "photometric": study_set.photometric},
        reading=ImageReading(decode="fast"),
        mixing=VARIANTS[variant](study_set),
        seed=seed,
    )
    datamodule.prepare_data()
    datamodule.setup("fit")
    sides = {"min_size": min(study_set.size), "max_size": max(study_set.size)}
    task = DetectionTask(
        functools.partial(fcos_small, strides=(8,), **sides),
        class_names=datamodule.class_names,
        optimizer=functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.01),
        scheduler=functools.partial(WarmupCosineLR, warmup_steps=WARMUP_STEPS),
    )
    make_trainer = functools.partial(
        pl.Trainer, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer = make_trainer(
        max_epochs=study_set.num_epochs, gradient_clip_val=5.0, limit_val_batches=0, enable_model_summary=False
    )
    trainer.fit(task, datamodule=datamodule)
    make_trainer().validate(task, datamodule=datamodule, verbose=False)
    scores = task.val_scores
    counts = np.sum([table.class_counts() for table in datamodule.tables("train")], axis=0)
    rarest = datamodule.class_names[int(counts.argmin())]
    return {
        "steps": trainer.global_step,
        "map": scores.map,
        "map_50": scores.map_50,
        "rarest": rarest,
        "rarest_ap": scores.ap[rarest],
        "rarest_ap_50": scores.ap_50[rarest],
        "seconds": time.perf_counter() - start,
        "cpu_seconds": cpu_seconds() - cpu_start,
    }


def study_sets(bccd: Path | None) -> dict[str, StudySet]:
    """Return the sets by name.

    Args:
        bccd: Folder of BCCD in VOC layout, or None to leave it out.
    """
    # One star among a hundred objects: 40 in training, 24 in validation.
    shapes = ShapesSource(num_images={"train": 1000, "val": 600}, progress=False)
    sets = {"shapes": StudySet(source=shapes, size=(96, 96), photometric=0.5, batch_size=16, num_epochs=16)}
    if bccd is not None:
        blood = VocSource(bccd, test=None, progress=False)
        sets["bccd"] = StudySet(source=blood, size=(240, 320), photometric=0.0, batch_size=8, num_epochs=16)
    return sets


def run_study(
    sets: dict[str, StudySet], variants: Iterable[str], seeds: Iterable[int], results: Path
) -> list[dict[str, Any]]:
    """Train each set, variant and seed that the results lack, and append a line for each.

    Args:
        sets: Sets by name.
        variants: Names of `VARIANTS`.
        seeds: Seeds of weights, order and transforms.
        results: A file of JSON lines; created if missing.

    Returns:
        All lines of the file.
    """
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    finished_runs = {(row["set"], row["variant"], row["seed"]) for row in rows}
    # Seeds first, so that a study that is broken off has compared all variants.
    for seed, (name, study_set), variant in itertools.product(seeds, sets.items(), variants):
        if (name, variant, seed) in finished_runs:
            continue
        row = {"set": name, "variant": variant, "seed": seed, **train(study_set, variant, seed)}
        rows.append(row)
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("a") as file:
            file.write(f"{json.dumps(row)}\n")
        print(f"  {name}, {variant}, seed {seed}: mAP {row['map']:.3f}, {row['seconds']:.0f} s", flush=True)
    return rows


def print_results(rows: Sequence[dict[str, Any]]) -> None:
    """Print mean and spread over the seeds for each set and variant."""
    for name in dict.fromkeys(row["set"] for row in rows):
        in_set = [row for row in rows if row["set"] == name]
        steps = sorted({row["steps"] for row in in_set})
        print(f"\n{name}, {' or '.join(map(str, steps))} steps; mean of the seeds (smallest to largest)")
        for variant in dict.fromkeys(row["variant"] for row in in_set):
            runs = [row for row in in_set if row["variant"] == variant]
            columns = {
                "mAP": "map",
                "mAP50": "map_50",
                f"AP of {runs[0]['rarest']}": "rarest_ap",
                f"AP50 of {runs[0]['rarest']}": "rarest_ap_50",
            }
            texts = [f"{title} {_spread([run[key] for run in runs])}" for title, key in columns.items()]
            seconds = statistics.mean(run["seconds"] for run in runs)
            print(f"  {variant:12s} {', '.join(texts)}; {len(runs)} seeds, {seconds:.0f} s a run")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
