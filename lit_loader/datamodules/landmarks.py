"""Data module for landmarks: samples are object crops, or whole images with all their objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import LandmarkBatch, LandmarkCollate, MultiTaskCollate
from lit_loader.datamodules.pictures import draw_points, label_texts
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import DetectionDataset, LandmarkDataset, SampleTable, Stage, TableSource, landmark_samples
from lit_loader.datasets.samples import check_sample_unit
from lit_loader.errors import SettingError
from lit_loader.transforms import detection_transforms, landmark_transforms
from lit_loader.transforms.preset_extras import may_move_pixels
from lit_loader.types import CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LandmarkDataModule"]


_CROP_CENTRES: Final = {
    "box": "are crops around annotated boxes, not around a detector's boxes",
    "points": "are crops around the true points, which the model has to find",
}


class LandmarkDataModule(TableDataModule):
    """Batches `LandmarkBatch` of object crops with labels from 0, or `MultiTaskBatch` of whole images, from 1.

    Objects (images) with too few points are left out, and `summary` counts them. Prediction gets every object (image),
    with K = 0 points if no table of any stage has points.

    Args:
        source: Location of the data, and the split of each stage.
        sample_unit: ``"object"`` for samples that are objects, cut out of their images; ``"image"`` for whole images.
        min_points: Minimum number of points of an object that are not absent. Of a whole image one object must have
            them; the other objects stay.
        attributes: Names of the attributes of a batch, or ``"all"`` for all attributes of the tables.
        size_divisor: Height and width of a batch of whole images are rounded up to a multiple of it.
        **settings: Samplers, transforms and reading of images, as in `TableDataModule` (the preset is
            `landmark_transforms`, or `detection_transforms` for whole images, with the flip pairs of the tables;
            without flip pairs it flips only if asked to); batch sizes, workers and seed, as in `LoaderDataModule`.

    Raises:
        ValueError: If a setting is outside its choices, or has no effect next to another.
        TypeError: If a setting is unknown or has a wrong type.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        sample_unit: Literal["object", "image"] = "object",
        min_points: int = 1,
        attributes: Sequence[str] | Literal["all"] = (),
        size_divisor: int = 1,
        **settings: Any,
    ) -> None:
        check_sample_unit(sample_unit)
        self._save_arguments(LandmarkDataModule, locals())
        preset = landmark_transforms if sample_unit == "object" else detection_transforms
        super().__init__(source, preset=preset, **settings)
        if self.mixing:
            names = [type(mix).__name__ for mix in self.mixing]
            remedy = "leave it out (mixing=none in a config), or train with MultiTaskDataModule (datamodule=multi_task)"
            raise SettingError("mixing", names, "mixes whole images, which landmarks do not train on", remedy)
        if sample_unit == "object" and size_divisor != 1:
            rule = "has no effect with sample_unit='object', whose size the transforms set"
            alternatives = {"sample_unit": "image"}
            raise SettingError("size_divisor", size_divisor, rule, "leave it out", settings=alternatives)
        predict_transforms = self._transforms["predict"]
        # Predicted points are converted from the crop alone, which does not know of further moves.
        keywords = predict_transforms if isinstance(predict_transforms, Mapping) else {}
        if sample_unit == "object" and may_move_pixels(preset(False, **keywords)):
            rule = "may move pixels, so predicted points could not be converted to pixels of the file"
            remedy = "leave out its extra_before and extra_after, except for transforms of colours"
            raise SettingError("predict_transforms", dict(keywords), rule, remedy)
        if min_points < 0:
            raise ValueError(f"min_points={min_points} must be at least 0")
        # Made for its check of the divisor, before the data is prepared.
        MultiTaskCollate(size_divisor=size_divisor)
        self.min_points = min_points
        self.sample_unit = sample_unit
        self.wanted_attributes = attributes
        self.keypoints = True
        self._size_divisor = size_divisor

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction."""
        return landmark_samples(table, sample_unit=self.sample_unit, min_points=self.min_points)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the preset's keywords that depend on the table."""
        defaults = super().transform_defaults(table)
        if self.sample_unit == "image":
            defaults["per_object"] = tuple(self.attributes)
        return defaults

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> DetectionDataset:
        """Return the data set over a table of samples."""
        settings = {"transforms": transforms, "attributes": tuple(self.attributes), **self.reading_arguments}
        has_keypoints = table.keypoints is not None
        if self.sample_unit == "object" and has_keypoints:
            # select_samples() has dropped samples with too few points, and prediction keeps them.
            return LandmarkDataset(table, min_points=0, **settings)
        # A prediction set without points has no landmarks to load. Crops have labels from 0, whole images from 1.
        first_label = 0 if self.sample_unit == "object" else self.first_label
        return DetectionDataset(table, first_label=first_label, keypoints=has_keypoints, **settings)

    def summary(self) -> str:
        """Return counts, imbalance and the expected class mix as a table, and the region of evaluation crops."""
        # Only keywords of the preset tell the region; a user's transforms may show anything.
        transforms = self._transforms["test"]
        if self.sample_unit == "image" or not isinstance(transforms, Mapping):
            return super().summary()
        around = transforms.get("around", "box")
        region = "show whole images" if around == "image" else _CROP_CENTRES[around]
        return f"{super().summary()}\nSamples of evaluation {region}."

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage."""
        keypoints = self.has_keypoints(stage)
        attributes = tuple(self.attributes)
        if self.sample_unit == "object":
            return LandmarkCollate(keypoints=keypoints, attributes=attributes)
        return MultiTaskCollate(keypoints=keypoints, attributes=attributes, size_divisor=self._size_divisor)

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        # Whole images come as a `MultiTaskBatch`.
        if not isinstance(batch, LandmarkBatch):
            return self.draw_targets(batch, **drawing)
        values = {name: (batch.attributes[name], names) for name, names in self.attributes.items()}
        texts = label_texts(batch.labels, self.class_names, attributes=values)
        drawing = {"skeleton": self.skeleton, "texts": texts, **drawing}
        return draw_points(batch.images, batch.keypoints, batch.visibility, **drawing)
