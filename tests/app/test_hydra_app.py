"""A user's Hydra app composes the shipped groups, from a wheel and from an editable install."""

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
    command = [sys.executable, "app.py", *overrides]
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "is not available" not in result.stderr  # Hydra's warning about a search path
    # With an empty cache folder, matplotlib logs that it has built its list of fonts.
    return [line for line in result.stdout.splitlines() if not line.startswith("[")]


@pytest.fixture(scope="module")
def wheel(distributions, tmp_path_factory):
    """The wheel, built from the source distribution as an index would serve it, and installed in a folder."""
    (path,) = distributions.glob("*.whl")
    site = tmp_path_factory.mktemp("wheel") / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(path)]
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
