"""Needs of each experiment on this CPU: parameters, memory and time of a training step, with random weights.

``python -m benchmarks.experiments`` measures all experiments, ``python -m benchmarks.experiments NAME...`` some. Each
runs in a process of its own, with the experiment's model and transforms, on drawn scenes instead of its data: of the
experiment's size for an embedded set, else of 480 pixels, which torchvision's detectors resize to 800. Memory is the
largest resident size during the steps, less the size before the model was built. Seconds are CPU seconds of one thread.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hydra.utils import get_class, instantiate
from lightning.pytorch import Callback, Trainer
from omegaconf import DictConfig, open_dict

from lit_loader.app.building import build_model
from lit_loader.app.composition import ConfigError, compose_config
from lit_loader.datamodules import KeypointDataModule

BATCH_SIZE = 2
NUM_STEPS = 5
_EXPERIMENTS = Path(__file__).parents[1] / "conf/experiment"


class _StepTimes(Callback):
    """Callback that records the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        # Other programs on the host do not count.
        self.ends.append(time.process_time())


def measure(name: str) -> dict[str, float]:
    """Return the parameters in millions, CPU seconds of a step and memory in GiB."""
    torch.set_num_threads(1)
    cfg = _composed(name)
    with TemporaryDirectory() as folder, open_dict(cfg):
        cfg.dataset = _scenes(cfg, folder)
        if "sample_unit" in cfg.datamodule:
            cfg.datamodule.sample_unit = "object"  # a scene has several labels
        datamodule = instantiate(cfg.datamodule, _convert_="all")
        datamodule.prepare_data()
        baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = build_model(cfg, datamodule)
        times = _StepTimes()
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(
            accelerator="cpu", max_steps=NUM_STEPS, callbacks=[times], enable_model_summary=False, **quiet
        )
        trainer.fit(model, datamodule=datamodule)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The first step also allocates.
    steps = [end - start for start, end in zip(times.ends, times.ends[1:], strict=False)]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        "seconds": statistics.median(steps),
        "memory": (peak - baseline) / 2**20,
    }


def _composed(name: str) -> DictConfig:
    """Return the config of an experiment, which draws its images, reads files, or leaves the choice to the user."""
    overrides = [f"experiment={name}", f"datamodule.batch_size={BATCH_SIZE}", "workers=inline", "++model.weights=null"]
    root = "dataset.root=unused"
    for words in ([], [root]):
        with suppress(ConfigError):
            return compose_config(overrides=[*overrides, *words])
    return compose_config(overrides=[*overrides, "dataset=voc", root])


def _scenes(cfg: DictConfig, folder: str) -> dict[str, Any]:
    """Return the config of a drawn set for an experiment: its own images if it draws them, else larger ones."""
    has_figures = get_class(cfg.datamodule["_target_"]) is KeypointDataModule
    target = f"lit_loader.datasets.{'FiguresSource' if has_figures else 'ShapesSource'}"
    scenes: dict[str, Any] = {"_target_": target, "num_images": {"train": BATCH_SIZE * NUM_STEPS}, "cache_dir": folder}
    # Without `num_images`, the images are files of a user.
    scenes |= {"image_size": cfg.dataset.image_size if "num_images" in cfg.dataset else 480, "progress": False}
    if has_figures:
        return scenes
    shares = {"class_shares": [0.4, 0.3, 0.3], "finish_shares": [0.4, 0.3, 0.3]}
    return {**scenes, **shares, "masks": bool(cfg.datamodule.get("masks"))}


def main(names: list[str]) -> None:
    """Print a row of a Markdown table for each experiment."""
    print("| experiment | parameters, M | CPU s per step | images/s | memory, GiB |\n|---|---|---|---|---|")
    for name in names or sorted(path.stem for path in _EXPERIMENTS.glob("*.yaml")):
        command = [sys.executable, "-m", "benchmarks.experiments", "--json", name]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(f"| `{name}` | failed: {result.stderr.strip().splitlines()[-1]} |", flush=True)
            continue
        figures = json.loads(result.stdout.strip().splitlines()[-1])
        rate = BATCH_SIZE / figures["seconds"]
        row = f"{figures['parameters']:.1f} | {figures['seconds']:.2f} | {rate:.0f} | {figures['memory']:.2f}"
        print(f"| `{name}` | {row} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--json"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
