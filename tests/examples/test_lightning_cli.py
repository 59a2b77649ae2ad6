"""Lightning's own command line runs our data modules from YAML, with no Hydra in between."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lit_loader import datamodules

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples" / "lightning_cli.yaml"
SMALL = [
    "--data.source.init_args.num_images={train: 24, val: 8, test: 8}",
    "--data.source.init_args.class_shares=[0.6, 0.3, 0.1]",
    "--data.batch_size=4",
    "--trainer.max_epochs=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(scripts, cache, tmp_path):
    env = {"XDG_CACHE_HOME": str(cache)}
    return partial(scripts.run, ROOT / "examples" / "lightning_cli.py", cwd=tmp_path, env=env)


def test_it_fits_and_tests_the_checkpoint(run, tmp_path):
    fitted = run("fit", "--config", str(CONFIG), *SMALL)
    assert fitted.returncode == 0, fitted.stderr
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    tested = run("test", "--config", str(CONFIG), *SMALL, f"--ckpt_path={checkpoint}")
    assert tested.returncode == 0, tested.stderr
    assert "test/map_50" in tested.stdout


def test_it_never_imports_hydra():
    script = str(ROOT / "examples" / "lightning_cli.py")
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{script!r}, 'fit', '--config', {str(CONFIG)!r}, '--print_config']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert 'hydra' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "class_path: lit_loader.datamodules.DetectionDataModule" in done.stdout


def test_a_mistaken_key_is_named(run):
    done = run("fit", "--config", str(CONFIG), "--data.batchsize=4")
    assert done.returncode != 0
    assert "batchsize" in done.stderr


BASES = ("LoaderDataModule", "TableDataModule")
MODULES = [name for name in datamodules.__all__ if name.endswith("DataModule") and name not in BASES]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name != "MultiTaskDataModule" else [])
        for name in MODULES
    ],
)
def test_every_data_module_explains_its_settings(name, run):
    done = run("fit", f"--data.help=lit_loader.datamodules.{name}")
    assert done.returncode == 0, done.stderr
    own = ("train_dataset",) if name == "DatasetsDataModule" else ("source", "train_transforms")
    for keyword in (*own, "train_sampler", "batch_size", "num_workers", "seed"):
        assert f"--data.{keyword}" in done.stdout
