"""A small embedded data set, drawn once."""

from __future__ import annotations

import pytest

from lit_loader.datasets import ShapesSource

NUM_IMAGES = {"train": 60, "val": 20, "test": 24}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    source = ShapesSource(
        num_images=NUM_IMAGES,
        image_size=48,
        class_shares=(0.7, 0.2, 0.1),
        cache_dir=str(tmp_path_factory.mktemp("shapes")),
        progress=False,
    )
    source.prepare()
    return source
