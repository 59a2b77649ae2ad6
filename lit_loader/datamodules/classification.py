"""Data module for classification: whole images or object crops, labelled by class or by an attribute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import BatchMixing, ClassificationCollate, batch_images
from lit_loader.datamodules.keywords import as_settings, plain_arguments
from lit_loader.datamodules.pictures import draw_labels, label_texts
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datasets import ClassificationDataset, SampleTable, Stage, TableSource, labelled_samples
from lit_loader.datasets.samples import check_sample_unit
from lit_loader.errors import SettingError
from lit_loader.mixing import Mix
from lit_loader.transforms import classification_transforms
from lit_loader.types import CollateFn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClassificationDataModule"]


class ClassificationDataModule(TableDataModule):
    """Batches `ClassificationBatch` of images with labels from 0.

    Samples with an unknown label are left out, and `summary` counts them. Prediction gets every image, or object, with
    label -1 for unknown. To balance a sampler by the labels, set its ``balance_by`` to ``label_attribute``.

    Args:
        source: Location of the data, and the split of each stage.
        label_attribute: Attribute whose values are the labels, or None for the class.
        multi_label: True if an image may have several labels or, without an object, none; labels are multi-hot.
        sample_unit: ``"image"`` for samples that are images, ``"object"`` for objects that are cut out of their images.
        mixing: `BatchMixing` of training batches, or a mapping of its fields such as ``{"cutmix": 0.5}``, or a mapping
            with one `BatchMixing` by name, as a config has it; None for no mixing. With it, training labels are
            float32 ``(B, num_classes)``, the proportion of each class. This data module has no other mixes.
        **settings: Samplers, transforms and reading of images, as in `TableDataModule` (the preset is
            `classification_transforms`); batch sizes, workers and seed, as in `LoaderDataModule`.

    Attributes:
        batch_mixing: The `BatchMixing` of training batches, or None.

    Raises:
        ValueError: If a setting is outside its choices, or has no effect next to another.
        TypeError: If a setting is unknown or has a wrong type.
    """

    counts_images = True

    def __init__(
        self,
        source: TableSource,
        *,
        label_attribute: str | None = None,
        multi_label: bool = False,
        sample_unit: Literal["object", "image"] = "image",
        mixing: BatchMixing | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        check_sample_unit(sample_unit, multi_label=multi_label)
        # Before the types are checked, because a mix of detection has a remedy of its own.
        mixing = _batch_mixing(mixing)
        self._save_arguments(ClassificationDataModule, locals())
        preset = partial(classification_transforms, crop=sample_unit == "object")
        super().__init__(source, preset=preset, **settings)
        self.label_attribute = label_attribute
        self.multi_label = multi_label
        self.sample_unit = sample_unit
        self.batch_mixing = mixing
        # A checkpoint keeps it as a mapping, unless a schedule is a function. The base class has kept its default.
        self.hparams.pop("mixing")
        self.hparams.update(plain_arguments({"mixing": None if mixing is None else asdict(mixing)}))

    def names(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        """Return the lists of names that all tables must share, by kind."""
        # A prediction set may lack the attribute.
        has_labels = self.label_attribute is None or self.label_attribute in table.attributes
        labels = table.labels_of(self.label_attribute)[1] if has_labels else ()
        return {**super().names(table), "labels": labels}

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction."""
        return labelled_samples(
            table, label_attribute=self.label_attribute, multi_label=self.multi_label, sample_unit=self.sample_unit
        )

    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> ClassificationDataset:
        """Return the data set over a table of samples."""
        return ClassificationDataset(
            table,
            label_attribute=self.label_attribute,
            multi_label=self.multi_label,
            sample_unit=self.sample_unit,
            # select_samples() has dropped unlabelled samples, and prediction keeps them.
            unlabelled="keep",
            transforms=transforms,
            **self.reading_arguments,
        )

    def collate_fn(self, stage: Stage) -> CollateFn:
        """Return the collate function of a stage; only training batches are mixed."""
        if stage != "train" or self.batch_mixing is None:
            return ClassificationCollate(multi_label=self.multi_label)
        num_classes = None if self.multi_label else len(self.class_names)
        return ClassificationCollate(multi_label=self.multi_label, mixing=self.batch_mixing, num_classes=num_classes)

    def draw_batch(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch."""
        return draw_labels(batch_images(batch), label_texts(batch.labels, self.class_names), **drawing)

    def _training_mixes(self) -> list[Any]:
        return [] if self.batch_mixing is None else [self.batch_mixing]


def _batch_mixing(mixing: Any) -> BatchMixing | None:
    """Return the argument ``mixing`` of a classification data module as one object.

    Raises:
        SettingError: It is a mix of detection, has an unknown field, or several are given.
    """
    if mixing is None or isinstance(mixing, BatchMixing):
        return mixing
    mixes = mixing if isinstance(mixing, list) else [mixing]
    if isinstance(mixing, Mapping):
        # None leaves an entry of a config out.
        mixing = {name: value for name, value in mixing.items() if value is not None}
        mixes = list(mixing.values())
    remedy = "choose BatchMixing(cutmix=1.0) or BatchMixing(mixup=1.0), in a config mixing=cutmix or mixing=batch_mixup"
    if names := [type(mix).__name__ for mix in mixes if isinstance(mix, Mix)]:
        raise SettingError("mixing", names, "is for images with objects, and these have classes alone", remedy)
    if not isinstance(mixing, dict):
        raise SettingError("mixing", mixing, "must be a BatchMixing", remedy)
    if not any(isinstance(mix, BatchMixing) for mix in mixes):
        names = [field.name for field in fields(BatchMixing)]
        if unknown := sorted(map(str, mixing.keys() - names)):
            raise SettingError("mixing", mixing, f"has {unknown}; the fields of BatchMixing are {names}", remedy)
        return as_settings(BatchMixing, mixing) if mixing else None
    if len(mixes) > 1:
        rule = "has several entries, and a batch is mixed by one of them"
        raise SettingError("mixing", list(mixing), rule, "choose one, and set its probabilities mixup and cutmix")
    batch_mixing: BatchMixing = mixes[0]
    return batch_mixing
