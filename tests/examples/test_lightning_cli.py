"""Lightning's command line runs the data modules from YAML, without Hydra."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn

from lit_loader import datamodules

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lightning_cli.py"
CONFIG = EXAMPLE.with_suffix(".yaml")
SMALL = [
    "--config",
    str(CONFIG),
    "--data.source.init_args.num_images={train: 8, val: 4, test: 4}",
    "--data.source.init_args.class_shares=[0.6, 0.3, 0.1]",
    "--data.source.init_args.image_size=64",
    "--data.batch_size=4",
    "--data.num_workers=1",
    "--trainer.max_epochs=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
WITHOUT_HYDRA = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert "hydra" not in sys.modules
"""


# Lightning 2.6.6 on jsonargparse 4.53
OLD_CALLS = pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")


@pytest.fixture
def built(monkeypatch):
    """Build the model of the example's command line, without running it."""

    def build(*words):
        options = ["--config", str(CONFIG), "--seed_everything=false", "--trainer.logger=false"]
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options, *words])
        modes = {"subclass_mode_model": True, "subclass_mode_data": True, "save_config_callback": None}
        return LightningCLI(LightningModule, LightningDataModule, run=False, **modes).model

    return build


@OLD_CALLS
def test_mixes_come_from_the_command_line(monkeypatch):
    mosaic = "{class_path: lit_loader.Mosaic, init_args: {p: {epochs: [0, 2], value: 0.5}}}"
    mixes = f"[{mosaic}, {{class_path: lit_loader.MixUp}}]"
    words = ["--config", str(CONFIG), "--seed_everything=false", "--trainer.logger=false", f"--data.mixing={mixes}"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *words])
    modes = {"subclass_mode_model": True, "subclass_mode_data": True, "save_config_callback": None}
    mosaic, mixup = LightningCLI(LightningModule, LightningDataModule, run=False, **modes).datamodule.mixing
    assert [type(mosaic).__name__, type(mixup).__name__] == ["Mosaic", "MixUp"]
    assert [mosaic.chance(epoch) for epoch in (1, 2)] == [0.5, 0]


@pytest.fixture
def run(scripts, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return partial(scripts.run, EXAMPLE, cwd=tmp_path, env=env)


@pytest.mark.soak  # an interpreter of its own takes seconds to import everything
def test_example_fits_without_hydra(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WITHOUT_HYDRA, str(EXAMPLE), "fit", *SMALL]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_example_fits_and_tests_the_checkpoint(run, tmp_path):
    result = run("fit", *SMALL)
    assert result.returncode == 0, result.stderr
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    result = run("test", *SMALL, f"--ckpt_path={checkpoint}")
    assert result.returncode == 0, result.stderr
    assert "test/map_50" in result.stdout


@OLD_CALLS
def test_optimizer_and_schedule_come_from_the_file_and_the_command_line(built):
    settings = built("--model.optimizer.lr=0.02", "--model.scheduler.warmup_steps=3").configure_optimizers()
    assert isinstance(settings["optimizer"], torch.optim.AdamW)
    schedule = settings["lr_scheduler"]["scheduler"]
    assert (schedule.base_lrs[0], schedule.warmup_steps) == (0.02, 3)
    words = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1", "--model.optimizer.momentum=0.5"]
    words += ["--model.scheduler=torch.optim.lr_scheduler.StepLR", "--model.scheduler.step_size=2"]
    settings = built(*words).configure_optimizers()
    assert settings["optimizer"].param_groups[0]["momentum"] == 0.5
    assert settings["lr_scheduler"]["scheduler"].step_size == 2


class CustomDetector(nn.Module):
    """A detector as a user would write it."""

    def __init__(self, num_classes: int, channels: int = 16) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.channels = channels
        self.layer = nn.Linear(channels, num_classes)


@OLD_CALLS
def test_model_may_be_a_class_with_arguments(built):
    model = built(f"--model.model={{class_path: {__name__}.CustomDetector, init_args: {{channels: 8}}}}").model
    assert isinstance(model, CustomDetector)
    assert (model.num_classes, model.channels) == (4, 8)


def test_misspelled_key_is_named(run):
    result = run("fit", "--config", str(CONFIG), "--data.batchsize=4")
    assert result.returncode != 0
    assert "batchsize" in result.stderr


BASES = ("LoaderDataModule", "TableDataModule")
MODULES = [name for name in datamodules.__all__ if name.endswith("DataModule") and name not in BASES]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name != "MultiTaskDataModule" else []) for name in MODULES]
)
def test_every_data_module_explains_its_settings(name, run):
    result = run("fit", f"--data.help=lit_loader.datamodules.{name}")
    assert result.returncode == 0, result.stderr
    own_keywords = ("train_dataset",) if name == "DatasetsDataModule" else ("source", "train_transforms")
    for keyword in (*own_keywords, "train_sampler", "batch_size", "num_workers", "seed"):
        assert f"--data.{keyword}" in result.stdout
