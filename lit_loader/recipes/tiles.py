"""Validation and tests of tiles of large images: detections are merged and scored as detections of whole images.

NOTE [Every image is scored by one rank]
    The tiles of an image may be on several ranks. At the end of an epoch the ranks tell each other which tiles they
    have, so that all know the complete images. These are dealt to the ranks in turn. Each rank receives the detections
    of its images only, merges them and updates its metric. A rank with fewer images updates once more, with an image
    marked as duplicate, because torchmetrics gathers image by image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.masks import Masks
from lit_loader.callbacks.original_pixels import Placements, original_detections
from lit_loader.callbacks.prediction_files import Prediction
from lit_loader.callbacks.tile_merging import TiledImages, is_tiled
from lit_loader.collate import batch_duplicates, batch_images, batch_targets
from lit_loader.datasets import DetectionDataset
from lit_loader.datasets.targets import object_target, unlabelled_labels
from lit_loader.errors import SettingError
from lit_loader.transforms import SanitizeObjects

__all__ = ["TiledSet", "tiled_sets"]

_EvalStage: TypeAlias = Literal["val", "test"]

_MAX_MASK_BYTES: Final = 2**31
"""Memory for the masks of the objects, or of the detections, of an image."""


def tiled_sets(trainer: Trainer | None, stage: _EvalStage) -> list[TiledSet]:
    """Return the sets of a stage if their samples are tiles of the trainer's data module, else an empty list.

    Args:
        trainer: The trainer that runs the stage, or None.
        stage: The stage.
    """
    # Lightning sets the attribute only if it is given a data module.
    datamodule: Any = getattr(trainer, "datamodule", None)
    if trainer is None or not is_tiled(datamodule, stage):
        return []
    loaders: Any = trainer.val_dataloaders if stage == "val" else trainer.test_dataloaders
    loaders = loaders if isinstance(loaders, list) else [loaders]
    datasets: list[Any] = [getattr(loader, "dataset", None) for loader in loaders]
    if not all(isinstance(dataset, DetectionDataset) and dataset.table.regions is not None for dataset in datasets):
        if any(map(_has_regions, datasets)):
            _warn_of_single_tiles(stage, "a loader wraps the data set of the data module")
        return []
    # Lightning keeps the data module of an earlier run, and the loaders of this one may be others.
    if [id(dataset.table) for dataset in datasets] != [id(table) for table in datamodule.tables(stage)]:
        _warn_of_single_tiles(stage, "the loaders have other tables than the data module")
        return []
    collate = datamodule.collate_fn(stage)
    return [
        TiledSet(dataset, images, collate=collate, name=f"{stage}_transforms")
        for dataset, images in zip(datasets, datamodule.image_tables(stage), strict=True)
    ]


def _has_regions(dataset: Any) -> bool:
    """Return True if the samples of a data set, or of the one that it wraps, are regions of images."""
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return getattr(getattr(dataset, "table", None), "regions", None) is not None


def _warn_of_single_tiles(stage: _EvalStage, reason: str) -> None:
    problem = f"{stage}: each tile is scored alone instead of the merged image, because {reason}"
    rank_zero_warn(f"{problem}; pass datamodule=... whose {stage}_dataloader returns its own loaders")


class TiledSet:
    """Detections in the tiles of a set during an epoch, see NOTE [Every image is scored by one rank].

    Args:
        dataset: Data set of the tiles.
        images: Table of the whole images.
        collate: Collate function of the set.
        name: Name of the argument with the set's transforms, for messages.
    """

    def __init__(
        self, dataset: DetectionDataset, images: AnnotationTable, *, collate: Callable[..., Any], name: str
    ) -> None:
        self._dataset = dataset
        self._images = images
        self._collate = collate
        self._sanitize = SanitizeObjects(per_object=(*dataset.extra_fields, *dataset.attributes))
        self._tiled = TiledImages(dataset.table, images)
        self._placements = Placements(dataset, dataset.table, name=name)
        self._row_by_id = {image_id: row for row, image_id in enumerate(dataset.table.image_numbers.tolist())}
        # This rank's detections by row of the tile.
        self._detections: dict[int, Prediction] = {}

    def collect(self, detections: Iterable[Mapping[str, Tensor]], batch: Any) -> None:
        """Collect the detections in the tiles of a batch that are not duplicates.

        Args:
            detections: One dict per tile, in pixels of the model's input.
            batch: The batch.

        Raises:
            ValueError: If the transforms cannot be undone.
        """
        samples = zip(
            detections, batch_images(batch), batch_targets(batch), batch_duplicates(batch).tolist(), strict=True
        )
        for tile_detections, image, target, is_duplicate in samples:
            if is_duplicate:
                continue
            row = self._row_by_id[int(target["image_id"])]
            placement = self._placements.find(row, (int(image.shape[-2]), int(image.shape[-1])))
            self._detections[row] = original_detections(
                tile_detections, placement, first_label=0, attributes=self._dataset.attributes
            )

    def score(
        self,
        update: Callable[[list[dict[str, Tensor]], list[dict[str, Tensor]], list[bool]], None],
        *,
        read_targets: Callable[[Any], list[dict[str, Tensor]]],
        max_detections: int,
        device: torch.device,
    ) -> int:
        """Update metrics with the images whose tiles have all been collected, on any rank.

        Args:
            update: Called with detections, targets and ``is_duplicate`` of images, equally often on all ranks, and at
                least once if the set has an image.
            read_targets: Returns the targets of a batch.
            max_detections: Number of detections per class that the metric counts.
            device: Device of the metrics.

        Returns:
            Number of images that are not scored, because only some of their tiles were collected.
        """
        rank, world_size = _rank_and_size()
        rows = np.concatenate([np.array(part, np.int64) for part in _all_gather(sorted(self._detections))])
        complete = self._tiled.complete(np.unique(rows))
        predictions = self._tiled.merge(self._exchange(complete, rank, world_size))
        num_updates = max(-(-len(complete) // world_size), min(1, self._images.num_images))
        for index in range(num_updates):
            position = index * world_size + rank
            is_padding = position >= len(complete)
            # Any image can be the padding, because a duplicate counts without its objects.
            image = 0 if is_padding else complete[position]
            (target,) = read_targets(self._batch(image))
            if is_padding:
                detection = {**{name: values[:0] for name, values in target.items()}, "scores": torch.zeros(0)}
            else:
                detection = _as_tensors(predictions.pop(image), max_detections)
            detection, target = (
                {name: values.to(device) for name, values in part.items()} for part in (detection, target)
            )
            update([detection], [target], [is_padding])
        return len(np.unique(self._tiled.image_of_tile[rows])) - len(complete)

    def _exchange(self, complete: Sequence[int], rank: int, world_size: int) -> dict[int, Prediction]:
        """Return the detections of all ranks in the tiles of this rank's images, by row of the tile."""
        detections = self._detections
        self._detections = {}
        received: dict[int, Prediction] = {}
        for destination in range(world_size):
            is_sent = np.zeros(self._images.num_images, dtype=np.bool_)
            is_sent[complete[destination::world_size]] = True
            part = {row: value for row, value in detections.items() if is_sent[self._tiled.image_of_tile[row]]}
            if world_size == 1:
                return part
            parts: list[Any] | None = [None] * world_size if rank == destination else None
            dist.gather_object(part, parts, dst=destination)
            for sender in parts or ():
                received = {**sender, **received}
        return received

    def _batch(self, image: int) -> Any:
        """Return a batch with the annotations of a whole image and a blank one in its place."""
        dataset = self._dataset
        size = self._tiled.size(image)
        if dataset.masks:
            _check_mask_memory(int(np.diff(self._images.offsets[image : image + 2])[0]), size)
        target = object_target(
            self._images,
            image,
            canvas_size=size,
            first_label=dataset.first_label,
            extra_fields=dataset.extra_fields,
            keypoints=dataset.keypoints,
            attributes=dataset.attributes,
            mask_size=size if dataset.masks else None,
            unlabelled=unlabelled_labels(self._images, dataset.first_label),
        )
        # As evaluation of whole images, without objects that have no pixel.
        blank = torch.zeros(3, 1, 1)
        return self._collate([self._sanitize(blank, target)])


def _rank_and_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _all_gather(value: Any) -> list[Any]:
    _, world_size = _rank_and_size()
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values


def _check_mask_memory(num_masks: int, size: tuple[int, int]) -> None:
    """Raise SettingError before masks of a whole image are drawn that could exhaust the memory."""
    num_bytes = num_masks * size[0] * size[1]
    if num_bytes > _MAX_MASK_BYTES:
        rule = (
            f"takes {num_bytes / 2**30:.1f} GiB for {num_masks} masks of an image of {size[1]}x{size[0]} pixels, more "
            f"than {_MAX_MASK_BYTES / 2**30:.0f} GiB"
        )
        remedy = "leave val and test out of tiling.stages"
        raise SettingError("masks", True, rule, remedy, settings={"masks": False})


def _as_tensors(prediction: Prediction, max_detections: int) -> dict[str, Tensor]:
    """Return predictions as a model does, in pixels of the image."""
    rows = np.arange(len(prediction.labels))
    if prediction.masks is not None:
        # Masks of a whole image are large, and the metric counts only this many detections of a class. Predictions are
        # sorted by score.
        counted = [np.flatnonzero(prediction.labels == label)[:max_detections] for label in set(prediction.labels)]
        rows = np.sort(np.concatenate([rows[:0], *counted]))
    columns = {
        "boxes": prediction.boxes,
        "labels": prediction.labels,
        "scores": prediction.scores,
        "keypoints": prediction.keypoints,
        "keypoint_scores": prediction.keypoint_scores,
        **prediction.attributes,
    }
    tensors = {name: torch.from_numpy(values[rows]) for name, values in columns.items() if values is not None}
    if prediction.masks is not None:
        _check_mask_memory(len(rows), prediction.size or (0, 0))
        masks = Masks.from_rows([prediction.masks[row] for row in rows.tolist()])
        bitmaps = np.zeros((len(rows), *(prediction.size or (0, 0))), dtype=np.bool_)
        for index, bitmap in enumerate(bitmaps):
            bitmap[:] = masks.rasterize(index, *bitmap.shape)
        tensors["masks"] = torch.from_numpy(bitmaps)
    return tensors
