"""The data module for landmarks: one object crop a sample, or whole images with all of their objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import (
    LandmarkBatch,
    LandmarkCollate,
    MultiTaskCollate,
)
from lit_loader.datamodules.pictures import draw_points, label_texts
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import (
    DetectionDataset,
    LandmarkDataset,
    SampleTable,
    Stage,
    TableSource,
    landmark_samples,
)
from lit_loader.datasets.samples import check_sample_unit
from lit_loader.errors import SettingError
from lit_loader.transforms import detection_transforms, landmark_transforms
from lit_loader.types import FIRST_LABEL, CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LandmarkDataModule"]


_CROPPED_AROUND: Final = {
    "box": "are crops around the boxes of the annotations, not around those of a detector",
    "points": "are crops around the true points, which a model has to find",
}


class LandmarkDataModule(TableDataModule):
    """Batches `LandmarkBatch` of object crops with labels from 0, or `MultiTaskBatch` of whole images, from 1.

    Objects (images) with too few points are left out, and `summary` says how many; prediction gets every object
    (image), and K = 0 points where neither its tables nor those of another stage have any.

    Args:
        source: Where the data lies and which split serves which stage.
        sample_unit: ``"object"``: a sample is an object, cut out of its image; ``"image"``: it is a whole image.
        min_points: Fewest points of a sample's object that are not absent; of a whole image one object must
            have them, and the others stay.
        attributes: Names of the attributes that batches hold, or ``"all"`` that the tables have.
        size_divisor: Height and width of a batch of whole images are rounded up to a multiple of it.
        **settings: Samplers, transforms and reading of images, as `TableDataModule` takes them (its preset is
            `landmark_transforms`, or `detection_transforms` for whole images, with the tables'
            flip pairs; where there are none it does not flip unless told to); batch sizes, workers and seed, as
            `LoaderDataModule` takes them.

    Raises:
        ValueError: If a setting is outside its choices, or would have no effect beside another.
        TypeError: If a setting is not known, or of a wrong type.
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
        if sample_unit == "object" and size_divisor != 1:
            rule = "has no effect with sample_unit='object', whose size the transforms set"
            alternatives = {"sample_unit": "image"}
            raise SettingError("size_divisor", size_divisor, rule, "leave it out", settings=alternatives)
        if min_points < 0:
            raise ValueError(f"min_points={min_points} must be at least 0")
        MultiTaskCollate(size_divisor=size_divisor)  # checks it before there is a table
        self.min_points, self.sample_unit = min_points, sample_unit
        self._size_divisor, self.wanted_attributes, self.keypoints = size_divisor, attributes, True

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples that a table gives to any stage but prediction."""
        return landmark_samples(table, sample_unit=self.sample_unit, min_points=self.min_points)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the keywords of the preset that follow from the table."""
        defaults = super().transform_defaults(table)
        return (
            defaults if self.sample_unit == "object" else {"per_object": tuple(self.attributes), **defaults}
        )

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> DetectionDataset:
        """Return the data set of a table of samples."""
        settings = {"transforms": transforms, "attributes": tuple(self.attributes), **self.reading_arguments}
        has_keypoints = table.keypoints is not None
        if self.sample_unit == "object" and has_keypoints:  # what has too few points has gone already
            return LandmarkDataset(table, min_points=0, **settings)
        first_label = 0 if self.sample_unit == "object" else FIRST_LABEL
        return DetectionDataset(table, first_label=first_label, keypoints=has_keypoints, **settings)

    def summary(self) -> str:
        """Return counts, imbalance and the expected mix as a table, and the region of evaluation crops."""
        transforms = self._transforms["test"]
        if self.sample_unit == "image" or not isinstance(transforms, Mapping):
            return super().summary()
        around = transforms.get("around", "box")
        place = "show whole images" if around == "image" else _CROPPED_AROUND[around]
        return f"{super().summary()}\nSamples of evaluation {place}."

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage."""
        keypoints, attributes = self.has_keypoints(stage), tuple(self.attributes)
        if self.sample_unit == "object":
            return LandmarkCollate(keypoints=keypoints, attributes=attributes)
        return MultiTaskCollate(keypoints=keypoints, attributes=attributes, size_divisor=self._size_divisor)

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        if not isinstance(batch, LandmarkBatch):
            return self.draw_targets(batch, first_label=FIRST_LABEL, **drawing)
        values = {name: (batch.attributes[name], names) for name, names in self.attributes.items()}
        texts = label_texts(batch.labels, self.class_names, attributes=values)
        return draw_points(batch.images, batch.keypoints, batch.visibility, texts=texts, **drawing)
