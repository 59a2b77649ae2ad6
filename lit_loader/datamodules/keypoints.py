"""The data module for keypoint detection: images with boxes and points of several objects."""

from __future__ import annotations

from typing import Any

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.detection import DetectionDataModule
from lit_loader.datasets import SampleTable, TableSource
from lit_loader.datasets.samples import keypoint_samples
from lit_loader.errors import SettingError

__all__ = ["KeypointDataModule"]


class KeypointDataModule(DetectionDataModule):
    """Detection batches ``(images, targets)`` whose targets also have the points of the objects.

    A target has, besides the fields of `DetectionDataModule`, ``keypoints``, a ``tv_tensors.KeyPoints`` float32
    ``(N, K, 2)`` in pixels of the image, and ``visibility``, uint8 ``(N, K)``: 0 absent, 1 hidden, 2 visible. A flip
    exchanges the mirror pairs of the tables' points. Without known pairs images are flipped only if ``hflip`` or
    ``flip_pairs`` is set.

    The tables must have points, except for prediction, where targets without points have neither field.

    Args:
        source: Location of the data, and the split of each stage.
        min_points: Minimum number of points of an object that are not absent. With 0, objects without points stay and
            are trained and scored as boxes. Objects with fewer are left out of every stage except prediction, and so
            are images that had only such objects; the model then learns them as background in the other images.
        **settings: Settings of `DetectionDataModule`; ``masks`` must be False.

    Raises:
        ValueError: If a setting is outside its choices, or has no effect next to another.
        TypeError: If a setting is unknown or has a wrong type.

    Example:
        >>> from lit_loader import KeypointDataModule
        >>> from lit_loader.datasets import ShapesSource
        >>> datamodule = KeypointDataModule(ShapesSource(), batch_size=8, num_workers=2)
    """

    def __init__(self, source: TableSource, *, min_points: int = 0, **settings: Any) -> None:
        self._save_arguments(KeypointDataModule, locals())
        super().__init__(source, **settings)
        if self.masks:
            rule = "has no effect on points: keypoint models train on boxes and points"
            raise SettingError("masks", True, rule, settings={"masks": False})
        if self.oriented is not None:
            rule = "has no effect on points: keypoint models train on boxes along the axes"
            raise SettingError("oriented", self.oriented, rule, settings={"oriented": None})
        if min_points < 0:
            raise ValueError(f"min_points={min_points} must be at least 0")
        self.min_points = min_points
        self.keypoints = True

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction."""
        return keypoint_samples(table, min_points=self.min_points)
