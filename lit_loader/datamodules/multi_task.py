"""Data module for several tasks at once: boxes, classes, points and attributes in one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lit_loader.annotations import AnnotationTable, Tiling
from lit_loader.collate import MultiTaskCollate
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import DetectionDataset, SampleTable, Stage, TableSource
from lit_loader.datasets.detection import check_dataset_settings
from lit_loader.datasets.targets import check_keypoints
from lit_loader.transforms import detection_transforms
from lit_loader.types import FIRST_LABEL, CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MultiTaskDataModule"]


class MultiTaskDataModule(TableDataModule):
    """Batches `MultiTaskBatch` of whole images: boxes, classes, points, attributes, with masks for missing values.

    Args:
        source: Location of the data, and the split of each stage.
        keypoints: True for batches with points; the tables must have points, except for prediction. If False, K is 0.
        attributes: Names of the attributes of a batch, or ``"all"`` for all attributes of the tables.
        size_divisor: Height and width of a batch are rounded up to a multiple of it.
        pad_value: Value of padded pixels, in the units of the images.
        first_label: Label of the first class; torchvision reserves 0 for the background.
        tiling: Settings of `Tiling`, or a mapping of its fields such as ``{"size": 640, "overlap": 0.2}``, if samples
            are tiles of the images; None for whole images. Samplers then weight and count tiles.
        **settings: Samplers, transforms and reading of images, as in `TableDataModule` (the preset is
            `detection_transforms` with the flip pairs of the tables; without flip pairs it flips only if asked to);
            batch sizes, workers and seed, as in `LoaderDataModule`.

    Raises:
        ValueError: If a setting is outside its choices.
        TypeError: If a setting is unknown or has a wrong type.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        keypoints: bool = True,
        attributes: Sequence[str] | Literal["all"] = "all",
        size_divisor: int = 1,
        pad_value: float = 0,
        first_label: int = FIRST_LABEL,
        tiling: Tiling | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._save_arguments(MultiTaskDataModule, locals())
        super().__init__(source, preset=detection_transforms, **settings)
        self._set_tiling(tiling)
        # Made for its check of the divisor, before the data is prepared.
        MultiTaskCollate(size_divisor=size_divisor)
        check_dataset_settings(first_label=first_label, extra_fields=())
        self.first_label = first_label
        self.wanted_attributes = attributes
        self.keypoints = keypoints
        self._padding: dict[str, Any] = {"size_divisor": size_divisor, "pad_value": pad_value}

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction."""
        if self.keypoints:
            check_keypoints(table)
        return super().select_samples(table)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the preset's keywords that depend on the table."""
        # A transform that drops a box also drops its attribute values.
        return {"per_object": tuple(self.attributes), **super().transform_defaults(table)}

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> DetectionDataset:
        """Return the data set over a table of samples."""
        return DetectionDataset(
            table,
            transforms=transforms,
            first_label=self.first_label,
            # A prediction set may lack points; for other stages select_samples() has checked them.
            keypoints=self.keypoints and table.keypoints is not None,
            attributes=tuple(self.attributes),
            **self.reading_arguments,
        )

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage."""
        return MultiTaskCollate(keypoints=self.has_keypoints(stage), attributes=tuple(self.attributes), **self._padding)

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        return self.draw_targets(batch, **drawing)
