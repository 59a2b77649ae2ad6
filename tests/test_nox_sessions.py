"""The nox session with the oldest requirements pins every lower bound."""

from __future__ import annotations

import itertools
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def noxfile(monkeypatch):
    """The names of noxfile.py, with stand-ins for nox, which need not be installed."""

    def decorator(*args, **kwargs):
        return lambda function: function

    nox = SimpleNamespace(session=decorator, parametrize=decorator, options=SimpleNamespace(), Session=None)
    monkeypatch.setitem(sys.modules, "nox", nox)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "noxfile.py")))


def test_oldest_session_pins_the_lower_bound_of_every_requirement(noxfile):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = set(map(Requirement, itertools.chain(project["dependencies"], *extras)))
    pins = [Requirement(text) for text in noxfile.lower_bounds()]
    assert {pin.name for pin in pins} == {requirement.name for requirement in requirements} - {"lit-loader"}
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert all(specifier.version in item.specifier for item in requirements if item.name == pin.name)
