"""The data module for detection: images with boxes from any source, balanced in the loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.collate import DetectionCollate, batch_images, batch_targets
from lit_loader.datamodules.base import LoaderDataModule, SplitData
from lit_loader.datamodules.pictures import draw_boxes
from lit_loader.datamodules.sampling import RandomSampling, Sampling
from lit_loader.datamodules.summary import SetSummary, summary_table
from lit_loader.datasets import MAX_PIXELS, DetectionDataset, DetectionSource, Stage
from lit_loader.datasets.detection import check_dataset_settings
from lit_loader.transforms import detection_transforms
from lit_loader.types import CollateFn

__all__ = ["DetectionDataModule"]

Transforms = Callable[..., Any]


class DetectionDataModule(LoaderDataModule):
    """Detection batches ``(images, targets)`` as torchvision's detectors take them.

    Args:
        source: Where the data lies and which split serves which stage.
        train_sampler: How training images are drawn: one of ours by its settings (`Sampling`), or any
            sampler of indices (for a stage of one set only). None: every image once, in a new order each epoch.
        val_sampler: The same for validation; None: in order. Likewise the next two.
        test_sampler: For testing.
        predict_sampler: For prediction.
        train_transforms: v2 transforms of ``(image, target)``; None: `detection_transforms` for training.
        val_transforms: The same for validation; None: `detection_transforms` for evaluation. Likewise the next.
        test_transforms: For testing.
        predict_transforms: For prediction.
        images: How images of a batch come: ``list``, ``stack`` (equal sizes) or ``pad``.
        size_divisor: With ``pad``, height and width are rounded up to a multiple of it.
        collate_fn: Replaces the collation that ``images`` and ``size_divisor`` choose; give it alone.
        batch_transforms: Applied to each training batch after it was moved to the device.
        first_label: Label of the first class; torchvision keeps 0 for the background.
        extra_fields: Further per-object fields of the targets: ``difficult``, ``truncated``, ``occluded``.
        size_mismatch: What an image that contradicts its annotated size does, see `DetectionDataset`.
        exif_orientation: Turn images upright by their EXIF, see `DetectionDataset`.
        max_pixels: Largest image accepted.
        **settings: Batch sizes, workers and seed, as `LoaderDataModule` takes them.

    Raises:
        ValueError: If a setting is outside its choices, or would have no effect beside another.
        TypeError: If a setting is not known.

    Example:
        >>> from lit_loader import DetectionDataModule
        >>> from lit_loader.datasets import ShapesSource
        >>> datamodule = DetectionDataModule(ShapesSource(), batch_size=8, num_workers=2)
    """

    def __init__(
        self,
        source: DetectionSource,
        *,
        train_sampler: Sampling | Sampler[int] | None = None,
        val_sampler: Sampling | Sampler[int] | None = None,
        test_sampler: Sampling | Sampler[int] | None = None,
        predict_sampler: Sampling | Sampler[int] | None = None,
        train_transforms: Transforms | None = None,
        val_transforms: Transforms | None = None,
        test_transforms: Transforms | None = None,
        predict_transforms: Transforms | None = None,
        images: Literal["list", "stack", "pad"] = "list",
        size_divisor: int = 1,
        collate_fn: CollateFn | None = None,
        batch_transforms: Callable[[Any], Any] | None = None,
        first_label: int = 1,
        extra_fields: Sequence[str] = (),
        size_mismatch: Literal["clip", "raise"] = "clip",
        exif_orientation: bool = True,
        max_pixels: int = MAX_PIXELS,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        collate = DetectionCollate(images=images, size_divisor=size_divisor)
        if collate_fn is not None and (images != "list" or size_divisor != 1):
            raise ValueError(
                f"images={images!r} and size_divisor={size_divisor} have no effect beside a collate_fn; "
                "leave them out, or give collate_fn=DetectionCollate(...) with them"
            )
        check_dataset_settings(
            first_label=first_label,
            extra_fields=extra_fields,
            size_mismatch=size_mismatch,
            max_pixels=max_pixels,
        )
        self.source, self.first_label, self.extra_fields = source, first_label, tuple(extra_fields)
        self._size_mismatch, self._exif_orientation = size_mismatch, exif_orientation
        self._max_pixels = max_pixels
        self._samplers: dict[Stage, Sampling | Sampler[int] | None] = {
            "train": RandomSampling() if train_sampler is None else train_sampler,
            "val": val_sampler,
            "test": test_sampler,
            "predict": predict_sampler,
        }
        evaluation = detection_transforms(train=False, per_object=self.extra_fields)
        training = detection_transforms(train=True, per_object=self.extra_fields)
        self._transforms: dict[Stage, Transforms] = {
            "train": training if train_transforms is None else train_transforms,
            "val": evaluation if val_transforms is None else val_transforms,
            "test": evaluation if test_transforms is None else test_transforms,
            "predict": evaluation if predict_transforms is None else predict_transforms,
        }
        self._batch_transforms = batch_transforms
        self._collate: CollateFn = collate if collate_fn is None else collate_fn
        self._tables: dict[Stage, list[AnnotationTable]] = {}

    # -- data ---------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Draw, unpack and index the data, once on a machine."""
        self.source.prepare()

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the annotation tables of a stage."""
        if stage not in self._tables:
            self._tables[stage] = self.source.tables(stage)
        return self._tables[stage]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; label ``first_label + i`` is the i-th."""
        stages: tuple[Stage, ...] = ("train", "val", "test", "predict")
        return next((table.class_names for stage in stages for table in self.tables(stage)), ())

    def _split_data(self, stage: Stage) -> list[SplitData]:
        return [(self._dataset(table, stage), self._sampler(table, stage)) for table in self.tables(stage)]

    def _dataset(self, table: AnnotationTable, stage: Stage) -> DetectionDataset:
        return DetectionDataset(
            table,
            transforms=self._transforms[stage],
            first_label=self.first_label,
            extra_fields=self.extra_fields,
            size_mismatch=self._size_mismatch,
            exif_orientation=self._exif_orientation,
            max_pixels=self._max_pixels,
        )

    def _sampler(self, table: AnnotationTable, stage: Stage) -> Sampler[int] | None:
        chosen = self._samplers[stage]
        if chosen is None or isinstance(chosen, Sampling):
            return None if chosen is None else chosen.sampler(table)
        sets = len(self.tables(stage))
        if sets > 1:
            raise ValueError(
                f"{stage}_sampler={type(chosen).__name__} would be shared by {sets} sets of different length; "
                "give a lit_loader.datamodules.Sampling, which makes a sampler for each set"
            )
        return chosen

    def _collate_fn(self, stage: Stage) -> CollateFn:
        return self._collate

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply ``batch_transforms`` to a training batch, on the device."""
        training = self.trainer is not None and self.trainer.training
        return self._batch_transforms(batch) if training and self._batch_transforms is not None else batch

    # -- looking at it ------------------------------------------------------------------------------------

    def summaries(self) -> list[SetSummary]:
        """Return counts, imbalance and the expected class mix of every set, with no image opened."""
        found = []
        stages: tuple[Stage, ...] = ("train", "val", "test")
        for stage in stages:
            tables = self.tables(stage)
            for number, table in enumerate(tables):
                name = stage if len(tables) == 1 else f"{stage}/{number}"
                found.append(SetSummary.of(name, table, self._sampler(table, stage)))
        return found

    def summary(self) -> str:
        """Return counts, imbalance and the expected class mix as a table for a terminal."""
        return summary_table(self.summaries())

    def plot_batch(
        self, stage: Stage = "train", *, path: Path | str | None = None, max_images: int = 16
    ) -> Figure:
        """Return a picture of the first batch of a stage, as the model gets it.

        Args:
            stage: Whose loader.
            path: Where the picture is saved too, by its extension.
            max_images: Images drawn at most.

        Raises:
            ValueError: The stage gives no batch.
            TypeError: Targets come as columns, see `batch_targets`.
        """
        loaders = self._make_loaders(stage)
        batch = None
        for loader in loaders[:1]:
            with loader:
                batch = next(iter(loader), None)
        if batch is None:
            sets = [table.num_images for table in self.tables(stage)]
            raise ValueError(f"stage={stage!r} gives no batch to draw; its sets have {sets} images")
        figure = draw_boxes(
            batch_images(batch),
            batch_targets(batch),
            class_names=self.class_names,
            first_label=self.first_label,
            max_images=max_images,
            title=f"{stage} batch",
        )
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure
