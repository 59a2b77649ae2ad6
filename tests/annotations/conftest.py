"""A small VOC data set that a test writes as it likes."""

from __future__ import annotations

from tests.support.voc_set import three_images, voc

__all__ = ["three_images", "voc"]
