"""The project's files: every requirement has a lower bound; make repairs a broken environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_requirement_has_a_lower_bound():
    extras = PROJECT["optional-dependencies"]
    requirements = [*PROJECT["dependencies"], *(requirement for extra in extras.values() for requirement in extra)]
    assert all(">=" in requirement for requirement in requirements if not requirement.startswith("lit-loader["))


def test_base_install_has_at_most_ten_requirements_and_all_has_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    # torch requires filelock anyway.
    assert len([text for text in PROJECT["dependencies"] if not text.startswith("filelock")]) <= 10
    extras_for_users = sorted(set(extras) - {"all", "dev", "docs"})
    assert extras["all"] == [f"lit-loader[{','.join(extras_for_users)}]"]
    assert "lit-loader[all,docs]" in extras["dev"]


# A fake interpreter: "-m venv" copies it into the environment, and every other command succeeds.
INTERPRETER = """#!/bin/sh
case "$*" in
  *"-m venv --clear .venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo made >> made ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "lit_loader").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "interpreter").write_text(INTERPRETER)
    (tmp_path / "interpreter").chmod(0o755)
    return tmp_path


def make(clone):
    # The tests may be run by make, whose flags would apply to this one.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "PYTHON=./interpreter", ".venv/.installed"]
    subprocess.run(command, cwd=clone, env=env, check=True, capture_output=True)
    log = clone / "made"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_environment_is_made_once(clone):
    assert make(clone) == 1
    assert make(clone) == 1
    (clone / ".venv" / ".installed").unlink()
    assert make(clone) == 1  # only installed again


def test_environment_without_pip_is_made_again(clone):
    (clone / ".venv" / "bin").mkdir(parents=True)
    broken = clone / ".venv" / "bin" / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert make(clone) == 1


def test_configs_are_found_in_a_tree_without_links(clone):
    make(clone)
    assert (clone / "lit_loader" / "conf").samefile(clone / "conf")
    (clone / ".venv" / ".installed").unlink()
    make(clone)  # over the link
    assert not list((clone / "conf").iterdir())
