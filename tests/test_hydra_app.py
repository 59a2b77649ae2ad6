"""A user's own Hydra app composes our groups, from a wheel and from an editable install."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

APP = """
    import hydra, lit_loader
    from hydra.utils import instantiate

    @hydra.main(version_base="1.3", config_path="conf", config_name="app")
    def main(cfg):
        print(lit_loader.__file__)
        datamodule = instantiate(cfg.datamodule, _convert_="all")
        print(type(datamodule).__name__, datamodule.num_workers, datamodule.source.image_size, datamodule.seed)
        print(cfg.mine)

    main()
"""
CONFIG = """
    defaults:
      - dataset: shapes
      - sampler: class_balanced
      - workers: default
      - datamodule: detection
      - _self_
    hydra:
      searchpath: [pkg://lit_loader.conf]
      run: {dir: out}
    dataset: {image_size: 64}
    mine: 5
"""


def run_app(folder: Path, *overrides: str, path: Path | None = None) -> list[str]:
    (folder / "conf").mkdir(parents=True)
    (folder / "app.py").write_text(textwrap.dedent(APP))
    (folder / "conf" / "app.yaml").write_text(textwrap.dedent(CONFIG))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "app.py", *overrides],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is not available" not in done.stderr  # Hydra's warning of a search path
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution as an index would serve it, and installed in a folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    site = folder / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(built),
    ]
    subprocess.run(install, check=True, capture_output=True)
    return site


def test_with_the_wheel(wheel, tmp_path):
    place, module, mine = run_app(tmp_path / "app", "workers=inline", "+seed=3", path=wheel)
    assert Path(place).is_relative_to(wheel)
    assert module == "DetectionDataModule 0 64 3"
    assert mine == "5"


def test_with_the_editable_install(tmp_path):
    place, module, _ = run_app(tmp_path / "app")
    assert Path(place).is_relative_to(ROOT)
    assert module == "DetectionDataModule 2 64 0"


def test_the_wheel_holds_every_config(wheel):
    shipped = {
        path.relative_to(wheel / "lit_loader/conf") for path in (wheel / "lit_loader/conf").rglob("*.yaml")
    }
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")} != set()
    assert (wheel / "lit_loader" / "py.typed").exists()


def test_nothing_is_a_hydra_plugin(wheel):
    assert not list(wheel.rglob("hydra_plugins"))


def test_the_wheels_program_trains_in_any_folder(wheel, tmp_path):
    program = "import sys; from lit_loader.cli import main; sys.exit(main())"
    words = [
        "train",
        "experiment=shapes",
        "dataset.num_images={train: 8, val: 4, test: 4}",
        "dataset.image_size=48",
    ]
    words += [
        "model.model.channels=8",
        "model.model.head_channels=32",
        "model.model.min_size=48",
        "debug=limit",
    ]
    words += ["trainer.max_epochs=1", "datamodule.batch_size=4", "dataset.class_shares=[0.5,0.3,0.2]"]
    env = {**os.environ, "PYTHONPATH": str(wheel), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mAP@50" in done.stdout
    assert str(tmp_path / "logs/debug/runs") in done.stdout
