"""A user's own Hydra app composes our groups, from a wheel and from an editable install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_app import write_app

ROOT = Path(__file__).parents[2]


def run_app(folder: Path, *overrides: str, path: Path | None = None) -> list[str]:
    write_app(folder)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "app.py", *overrides], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "is not available" not in done.stderr  # Hydra's warning of a search path
    # With an empty cache folder, matplotlib logs that it has built its list of fonts.
    return [line for line in done.stdout.splitlines() if not line.startswith("[")]


@pytest.fixture(scope="module")
def wheel(distributions, tmp_path_factory):
    """The wheel, built from the source distribution as an index would serve it, and installed in a folder."""
    (built,) = distributions.glob("*.whl")
    site = tmp_path_factory.mktemp("wheel") / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(built)]
    subprocess.run(install, check=True, capture_output=True)
    return site


needs_hydra_to_start = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="without lit_loader.app.run Hydra 1.3 does not start on Python 3.14"
)


@needs_hydra_to_start
def test_with_the_wheel(wheel, tmp_path):
    place, module, mine = run_app(tmp_path / "app", "workers=inline", "+seed=3", path=wheel)
    assert Path(place).is_relative_to(wheel)
    assert module == "DetectionDataModule 0 64 3"
    assert mine == "5"


@needs_hydra_to_start
@pytest.mark.soak
def test_with_the_editable_install(tmp_path):
    place, module, _ = run_app(tmp_path / "app")
    assert Path(place).is_relative_to(ROOT)
    assert module == "DetectionDataModule 2 64 0"


def test_the_wheels_program_trains_in_any_folder(wheel, tmp_path):
    program = "import sys; from lit_loader.app.commands import main; sys.exit(main())"
    words = ["train", "experiment=shapes", "dataset.num_images={train: 8, val: 4, test: 4}", "dataset.image_size=48"]
    words += ["model.model.channels=8", "model.model.head_channels=32", "model.model.min_size=48", "debug=limit"]
    words += ["trainer.max_epochs=1", "datamodule.batch_size=4", "dataset.class_shares=[0.5,0.3,0.2]"]
    env = {**os.environ, "PYTHONPATH": str(wheel), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mAP@50" in done.stdout
    assert str(tmp_path / "logs/debug/runs") in done.stdout
