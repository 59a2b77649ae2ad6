"""A small VOC data set that a test writes as it likes."""

from __future__ import annotations

import pytest

from tests.voc_set import VocSet


@pytest.fixture
def voc(tmp_path):
    return VocSet(tmp_path / "voc")


@pytest.fixture
def three_images(voc):
    """Three images: a dog and a cat, nothing, and three dogs."""
    voc.add("b", ("dog", 1, 2, 30, 40), ("cat", 5, 6, 70, 80))
    voc.add("a", size=(50, 60))
    voc.add("c", ("dog", 0, 0, 10, 10), ("dog", 1.5, 2.25, 20, 20), ("dog", 3, 3, 9, 9))
    return voc
