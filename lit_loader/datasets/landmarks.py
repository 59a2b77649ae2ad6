"""The landmark dataset: one object with points per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lit_loader.datasets.detection import DetectionDataset, DetectionSample
from lit_loader.datasets.samples import landmark_samples
from lit_loader.images.decoded_cache import CacheSettings
from lit_loader.images.reading import ImageReading

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["LandmarkDataset"]


class LandmarkDataset(DetectionDataset):
    """Objects with points, one per sample, for ``transforms`` that cut them out.

    ``dataset[i]`` is ``(image, target)`` as in `DetectionDataset`, with one row in every field, points, and labels from
    0. The image is the whole image: a transform such as ``lit_loader.transforms.landmark_transforms`` crops it to the
    object and stores the region in ``target["crop"]``, which `LandmarkCollate` requires.

    An image with several objects is decoded for each of them unless there is a ``cache``.

    Args:
        table: The annotations. The dataset's own ``table`` has one image row per sample.
        transforms: Called as ``transforms(image, target)``.
        min_points: Objects with fewer points (absent ones not counted) are left out.
        attributes: Names of the table's attributes to add, or ``"all"``.
        reading: Settings for reading image files.
        cache: Cache decoded images, see `DetectionDataset`; all samples of an image share its entry.

    Attributes:
        num_left_out: Objects of the argument ``table`` that are not samples.

    Raises:
        ValueError: An argument is out of range, or the table has no points.
    """

    def __init__(
        self,
        table: AnnotationTable,
        *,
        transforms: Callable[[Any, dict[str, Any]], DetectionSample] | None = None,
        min_points: int = 1,
        attributes: Sequence[str] | Literal["all"] = (),
        reading: ImageReading = ImageReading(),
        cache: CacheSettings | bool = False,
    ) -> None:
        # An object without points has no loss, so it would only take a place in batches.
        samples, self.num_left_out = landmark_samples(table, sample_unit="object", min_points=min_points)
        super().__init__(
            samples,
            transforms=transforms,
            first_label=0,
            keypoints=True,
            attributes=attributes,
            reading=reading,
            cache=cache,
        )
