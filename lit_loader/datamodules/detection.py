"""The data module for detection: images with boxes from any source, balanced in the loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lit_loader.annotations import AnnotationTable, Tiling
from lit_loader.collate import DetectionCollate
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import DetectionDataset, SampleTable, Stage, TableSource
from lit_loader.datasets.detection import check_dataset_settings
from lit_loader.datasets.mixing import check_mixes_oriented
from lit_loader.datasets.targets import Oriented, check_masks, check_oriented
from lit_loader.transforms import detection_transforms
from lit_loader.types import FIRST_LABEL, CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DetectionDataModule"]


class DetectionDataModule(TableDataModule):
    """Detection batches ``(images, targets)`` as torchvision's detectors take them.

    Args:
        source: Location of the data, and the split of each stage.
        images: Form of the images of a batch: ``list``, ``stack`` (equal sizes) or ``pad``.
        size_divisor: With ``pad``, height and width are rounded up to a multiple of it.
        collate_fn: Replaces the collation that ``images`` and ``size_divisor`` choose, or None to keep it.
        first_label: Label of the first class; torchvision reserves 0 for the background.
        tiling: Settings of `Tiling`, or a mapping of its fields such as ``{"size": 640, "overlap": 0.2}``, if samples
            are tiles of the images; None for whole images. Samplers then weight and count tiles.
        extra_fields: Additional per-object fields of the targets: ``difficult``, ``truncated``, ``occluded``.
        masks: True for targets with ``masks``, as torchvision's Mask R-CNN takes them. The tables must have masks,
            except for prediction.
        oriented: ``"corners"`` or ``"rotated"`` for targets with oriented ``boxes``, as in `DetectionDataset`, for a
            model of your own; None for boxes along the axes. The tables must have oriented boxes, except for
            prediction.
        **settings: Samplers, transforms and reading of images, as in `TableDataModule` (the preset is
            `detection_transforms`); batch sizes, workers and seed, as in `LoaderDataModule`.

    Raises:
        ValueError: If a setting is outside its choices, or has no effect next to another.
        TypeError: If a setting is unknown or has a wrong type.

    Example:
        >>> from lit_loader import DetectionDataModule
        >>> from lit_loader.datasets import ShapesSource
        >>> datamodule = DetectionDataModule(ShapesSource(), batch_size=8, num_workers=2)
    """

    def __init__(
        self,
        source: TableSource,
        *,
        images: Literal["list", "stack", "pad"] = "list",
        size_divisor: int = 1,
        collate_fn: CollateFn | None = None,
        first_label: int = FIRST_LABEL,
        extra_fields: Sequence[str] = (),
        masks: bool = False,
        oriented: Oriented | None = None,
        tiling: Tiling | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._save_arguments(DetectionDataModule, locals())
        super().__init__(source, preset=detection_transforms, **settings)
        self._set_tiling(tiling)
        # Made in any case, because it checks both arguments before the data is prepared.
        collate = DetectionCollate(images=images, size_divisor=size_divisor)
        if collate_fn is not None and (images != "list" or size_divisor != 1):
            raise ValueError(
                f"images={images!r} and size_divisor={size_divisor} have no effect next to a collate_fn; "
                "leave them out, or pass them to collate_fn=DetectionCollate(...)"
            )
        check_dataset_settings(first_label=first_label, extra_fields=extra_fields, oriented=oriented)
        if oriented is not None:
            check_mixes_oriented(self.mixing)
        self.first_label = first_label
        self.extra_fields = tuple(extra_fields)
        self.masks = masks
        self.oriented = oriented
        self._collate: CollateFn = collate if collate_fn is None else collate_fn

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction."""
        if self.masks:
            check_masks(table)
        if self.oriented is not None:
            check_oriented(table, form=self.oriented)
        return super().select_samples(table)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the preset's keywords that depend on the table."""
        # A transform that drops a box also drops its values of these fields.
        return {"per_object": self.extra_fields, **super().transform_defaults(table)}

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> DetectionDataset:
        """Return the data set over a table of samples."""
        return DetectionDataset(
            table,
            transforms=transforms,
            first_label=self.first_label,
            extra_fields=self.extra_fields,
            # A prediction set may lack points and masks; for other stages select_samples() has checked them.
            keypoints=self.keypoints and table.keypoints is not None,
            masks=self.masks and table.masks is not None,
            # Targets of a prediction set without oriented boxes have boxes along the axes.
            oriented=self.oriented if not table.num_objects or table.has_orientation().any() else None,
            **self.reading_arguments,
        )

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage."""
        return self._collate

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        return self.draw_targets(batch, **drawing)
