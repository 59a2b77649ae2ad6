"""The sessions of noxfile.py: the workflow runs each of them, and the oldest one pins every lower bound."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def noxfile(monkeypatch):
    """The names of noxfile.py, and in ``sessions`` what nox calls its sessions; nox itself need not be installed."""
    sessions = []

    def session(python, reuse_venv=None):
        def register(function):
            ids = [f"({each})" for each in getattr(function, "ids", ())] or [""]
            pythons = [f"-{each}" for each in python] if isinstance(python, list) else [""]
            sessions.extend(f"{function.__name__}{version}{each}" for version in pythons for each in ids)
            return function

        return register

    def parametrize(names, values, ids):
        assert len(ids) == len(values)
        return lambda function: setattr(function, "ids", ids) or function

    stand_in = SimpleNamespace(
        session=session, parametrize=parametrize, options=SimpleNamespace(), Session=None
    )
    monkeypatch.setitem(sys.modules, "nox", stand_in)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "noxfile.py")), sessions=sessions)


def test_the_workflow_runs_every_session_and_no_other(noxfile):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    job = workflow["jobs"]["nox"]
    assert job["strategy"]["matrix"]["session"] == noxfile.sessions
    assert job["steps"][-1]["run"] == 'nox -s "${{ matrix.session }}"'
    (pythons,) = (step["with"]["python-version"].split() for step in job["steps"] if "with" in step)
    assert pythons == noxfile.PYTHONS


def test_the_oldest_session_pins_the_lower_bound_of_every_requirement(noxfile):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = {
        Requirement(text)
        for text in [*project["dependencies"], *(each for extra in extras for each in extra)]
    }
    pins = [Requirement(text) for text in noxfile.lower_bounds()]
    assert {pin.name for pin in pins} == {each.name for each in requirements} - {"lit-loader"}
    for pin in pins:
        ((specifier,), version) = (list(pin.specifier), str(pin.specifier).removeprefix("=="))
        assert specifier.operator == "=="
        assert all(version in each.specifier for each in requirements if each.name == pin.name)
