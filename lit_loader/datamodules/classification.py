"""The data module for classification: whole images or object crops, labelled by class or by an attribute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from matplotlib.figure import Figure
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import ClassificationCollate, batch_images
from lit_loader.datamodules.pictures import draw_labels, label_texts
from lit_loader.datamodules.summary import SetSummary
from lit_loader.datamodules.table_module import DEFAULT_SIZE, TableDataModule
from lit_loader.datasets import (
    ClassificationDataset,
    SampleTable,
    Stage,
    TableSource,
    labelled_samples,
)
from lit_loader.datasets.samples import check_objects
from lit_loader.transforms import classification_transforms
from lit_loader.types import CollateFn

__all__ = ["ClassificationDataModule"]


class ClassificationDataModule(TableDataModule):
    """Batches `ClassificationBatch` of images with labels from 0.

    A sample whose label is not known is left out, and `summary` says how many; prediction gets every image, or
    object, with the label -1 where there is none. A sampler balances by its own ``balance_by``: give it the same.

    Args:
        source: Where the data lies and which split serves which stage.
        by: The attribute that labels; None: the class.
        multi_label: An image may have several labels or, without any object, none; labels are multi-hot.
        objects: ``"image"``: a sample is an image; ``"crop"``: it is an object, cut out of its image.
        **settings: Samplers, transforms and reading of images, as `TableDataModule` takes them (its preset is
            `classification_transforms` with ``size=96``); batch sizes, workers and seed, as `LoaderDataModule`
            takes them.

    Raises:
        ValueError: If a setting is outside its choices, or would have no effect beside another.
        TypeError: If a setting is not known.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        by: str | None = None,
        multi_label: bool = False,
        objects: Literal["crop", "image"] = "image",
        **settings: Any,
    ) -> None:
        check_objects(objects, multi_label=multi_label)
        preset = partial(classification_transforms, size=DEFAULT_SIZE, crop=objects == "crop")
        super().__init__(source, preset=preset, **settings)
        self.by, self.multi_label, self._objects = by, multi_label, objects

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels, in their order."""
        table = self._first_table()
        return () if table is None else self._names_of(table)["labels"]

    def _names_of(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        # A set to predict on may lack the attribute.
        known = self.by is None or self.by in table.attributes
        return {**super()._names_of(table), "labels": table.labels_of(self.by)[1] if known else ()}

    def _samples_of(self, table: AnnotationTable) -> SampleTable:
        return labelled_samples(table, by=self.by, multi_label=self.multi_label, objects=self._objects)

    def _dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> ClassificationDataset:
        return ClassificationDataset(
            table,
            by=self.by,
            multi_label=self.multi_label,
            objects=self._objects,
            unlabelled="keep",  # what must go has gone: the table is one of samples
            transforms=transforms,
            **self._reading,
        )

    def _collate_fn(self, stage: Stage) -> CollateFn:
        return ClassificationCollate(multi_label=self.multi_label)

    def _summaries_of(
        self, name: str, samples: SampleTable, sampler: Sampler[int] | None
    ) -> list[SetSummary]:
        labels = dict.fromkeys([self.by, *self._balanced_by()])
        return [
            SetSummary.of(
                name, samples.table, sampler, by=by, distinct=True, num_left_out=samples.num_left_out
            )
            for by in labels
        ]

    def _draw(self, batch: Any, *, max_images: int, title: str) -> Figure:
        texts = label_texts(batch.labels, self.class_names)
        return draw_labels(batch_images(batch), texts, max_images=max_images, title=title)
