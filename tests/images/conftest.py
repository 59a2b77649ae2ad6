"""A drawn set, settings of a decoded cache in the test's own folder, and the list of images that are decoded."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lit_loader.images import CacheSettings, ImageReading
from tests.support.drawn_set import draw_set


@pytest.fixture
def table(tmp_path):
    """Twelve drawn images with 0, 1, 2, 3, 0, ... objects."""
    return draw_set(tmp_path / "set")


@pytest.fixture
def cached(tmp_path):
    """Maker of cache settings, all with the same folder."""
    return partial(CacheSettings, cache_dir=tmp_path / "cache", progress=False)


@pytest.fixture
def decoded_paths(monkeypatch):
    """Folder and name of each image that is decoded for a cache from now on."""
    paths = []
    read = ImageReading.read

    def read_and_note(self, path):
        paths.append("/".join(Path(path).parts[-2:]))
        return read(self, path)

    monkeypatch.setattr(ImageReading, "read", read_and_note)
    return paths
