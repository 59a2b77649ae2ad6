"""The data module for classification: whole images or object crops, labelled by class or by an attribute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import ClassificationCollate, batch_images
from lit_loader.datamodules.pictures import draw_labels, label_texts
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import (
    ClassificationDataset,
    SampleTable,
    Stage,
    TableSource,
    labelled_samples,
)
from lit_loader.datasets.samples import check_sample_unit
from lit_loader.transforms import classification_transforms
from lit_loader.types import CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClassificationDataModule"]


class ClassificationDataModule(TableDataModule):
    """Batches `ClassificationBatch` of images with labels from 0.

    A sample whose label is not known is left out, and `summary` says how many; prediction gets every image, or
    object, with the label -1 where there is none. A sampler balances by its own ``balance_by``: give it the same.

    Args:
        source: Where the data lies and which split serves which stage.
        label_attribute: The attribute that labels, or None for the class.
        multi_label: An image may have several labels or, without any object, none; labels are multi-hot.
        sample_unit: ``"image"``: a sample is an image; ``"object"``: it is an object, cut out of its image.
        **settings: Samplers, transforms and reading of images, as `TableDataModule` takes them (its preset is
            `classification_transforms`); batch sizes, workers and seed, as `LoaderDataModule`
            takes them.

    Raises:
        ValueError: If a setting is outside its choices, or would have no effect beside another.
        TypeError: If a setting is not known, or of a wrong type.
    """

    counts_images = True

    def __init__(
        self,
        source: TableSource,
        *,
        label_attribute: str | None = None,
        multi_label: bool = False,
        sample_unit: Literal["object", "image"] = "image",
        **settings: Any,
    ) -> None:
        check_sample_unit(sample_unit, multi_label=multi_label)
        self._save_arguments(ClassificationDataModule, locals())
        preset = partial(classification_transforms, crop=sample_unit == "object")
        super().__init__(source, preset=preset, **settings)
        self.label_attribute, self.multi_label, self.sample_unit = label_attribute, multi_label, sample_unit

    def names(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        """Return the names that must be the same in every table, by what they name."""
        # A set to predict on may lack the attribute.
        known = self.label_attribute is None or self.label_attribute in table.attributes
        labels = table.labels_of(self.label_attribute)[1] if known else ()
        return {**super().names(table), "labels": labels}

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples that a table gives to any stage but prediction."""
        return labelled_samples(
            table,
            label_attribute=self.label_attribute,
            multi_label=self.multi_label,
            sample_unit=self.sample_unit,
        )

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> ClassificationDataset:
        """Return the data set of a table of samples."""
        return ClassificationDataset(
            table,
            label_attribute=self.label_attribute,
            multi_label=self.multi_label,
            sample_unit=self.sample_unit,
            unlabelled="keep",  # what must go has gone: the table is one of samples
            transforms=transforms,
            **self.reading_arguments,
        )

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage."""
        return ClassificationCollate(multi_label=self.multi_label)

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        return draw_labels(batch_images(batch), label_texts(batch.labels, self.class_names), **drawing)
