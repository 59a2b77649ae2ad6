"""The app in this process, in a folder of its own."""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.small_app import SMALL, run_app


@pytest.fixture(scope="session")
def _app_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _with_cache(_app_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(_app_cache))


@pytest.fixture
def app(tmp_path):
    """Runs the app with the small scenes, each time in a folder of its own: ``run0``, ``run1`` ..."""
    folders = (tmp_path / f"run{number}" for number in count())

    def run(command, *words, code=0, small=True):
        folder = next(folders)
        sweeps = any(word == "-m" or word.startswith("hparams_search") for word in words)
        place = f"hydra.{'sweep' if sweeps else 'run'}.dir={folder}"
        result = run_app(tmp_path, command, *(SMALL if small else []), place, *words)
        assert result.code == code, result.out + result.err
        result.folder = folder
        return result

    return run
