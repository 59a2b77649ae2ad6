"""Needs of each experiment on this CPU: parameters, memory and time of a training step, with random weights.

``python -m benchmarks.experiments`` measures all experiments, ``python -m benchmarks.experiments NAME...`` some. Each
runs in a process of its own, with the experiment's model and transforms, on drawn scenes instead of its data: of 96
pixels for the embedded set, else of 480, which torchvision's detectors resize to 800. Memory is the largest resident
size during the steps, less that before the model was built. Seconds are those of one core, with one thread.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Callback, Trainer
from omegaconf import open_dict

from lit_loader.app.building import build_model
from lit_loader.app.composition import compose_config

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
    overrides = [f"experiment={name}", "datamodule.batch_size=2", "workers=inline", "++model.weights=null"]
    is_drawn = name.startswith("shapes")
    cfg = compose_config(overrides=overrides if is_drawn else [*overrides, "++dataset.root=unused"])
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, open_dict(cfg):
        scenes = {"num_images": {"train": BATCH_SIZE * NUM_STEPS}, "image_size": 96 if is_drawn else 480}
        shares = {"class_shares": [0.4, 0.3, 0.3], "finish_shares": [0.4, 0.3, 0.3]}
        target = {"_target_": "lit_loader.datasets.ShapesSource", "cache_dir": folder, "progress": False}
        cfg.dataset = {**target, **scenes, **shares, "masks": bool(cfg.datamodule.get("masks"))}
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
        row = f"{figures['parameters']:.1f} | {figures['seconds']:.2f} | {rate:.1f} | {figures['memory']:.1f}"
        print(f"| `{name}` | {row} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--json"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
