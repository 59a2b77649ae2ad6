"""Detection: any model with the signature of torchvision's detectors, with heads for the classes of the data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from lit_loader.collate import batch_duplicates, batch_images, batch_targets
from lit_loader.errors import SettingError
from lit_loader.recipes.average_precision import AveragePrecision
from lit_loader.recipes.matching import detection_error, mark_errors
from lit_loader.recipes.network import check_labels, check_names, fcos_small, plain, unit_range
from lit_loader.recipes.small_rcnn import maskrcnn_small
from lit_loader.recipes.task import Metric, Task
from lit_loader.recipes.tiles import TiledSet, tiled_sets
from lit_loader.recipes.unlabelled import drop_unlabelled, training_losses
from lit_loader.recipes.weights import ModelBuilder, build_model, freeze_batch_norm, model_builder
from lit_loader.types import FIRST_LABEL

__all__ = ["DetectionTask", "plain_targets", "replace_detection_heads", "training_targets"]

Batch: TypeAlias = tuple[Sequence[Tensor] | Tensor, Sequence[Mapping[str, Any]]]

DETECTORS: Final[dict[str, ModelBuilder]] = {"fcos_small": fcos_small, "maskrcnn_small": maskrcnn_small}
"""This package's builders of detectors by name."""

_IMAGE_SIZE: Final = re.compile(r"train_transforms\.(size|shorter_sides)\b")
"""Names of schedules of the size of training images."""


class DetectionTask(Task):
    """Boxes, and masks on request, by any model with the signature of torchvision's detectors.

    In training the model is called as ``model(images, targets)`` and returns a dict of losses; in evaluation as
    ``model(images)`` and returns a dict an image: ``boxes`` float ``(n, 4)``, xyxy in pixels of the image, ``labels``
    int64 ``(n,)`` from 1, ``scores`` float ``(n,)`` and, of a model with masks, ``masks`` ``(n, 1, H, W)`` or
    ``(n, H, W)``, probabilities or bool. Images are a list of float ``(3, H, W)`` in [0, 1]: the model itself
    normalises and resizes. An image may be without boxes.

    A batch is ``(images, targets)``, or a `PaddedBatch`, whose padding the model does not see: images a list of tensors
    ``(3, H, W)``, or one tensor ``(B, 3, H, W)``, float in [0, 1] or uint8 in [0, 255]; targets a list of dicts with
    ``boxes`` (float32 xyxy pixels), ``labels`` (int64 from 1; 0 is background) and, with ``masks=True``, ``masks``
    (uint8 ``(n, H, W)``); in validation and tests also ``is_duplicate``, see `WithoutDuplicates`. Objects marked by
    ``iscrowd`` are not trained on, and detections on them count neither for nor against. Classes in ``unlabelled``
    (int64, labels) are not trained on the image, see `lit_loader.recipes.unlabelled`, and count neither for nor
    against. Their detections are dropped from those that the model returns, and so use up places among its best ones;
    ``detections_per_img`` of torchvision's models sets the number of places.

    Detections in tiles (``tiling`` of the data module) are merged to detections of their image before they are scored.

    Logs ``train/loss`` and its parts, ``val/map``, ``val/map_50``, with masks ``val/mask_map`` and ``val/mask_map_50``;
    the same under ``test/``.

    Args:
        model: Name of a detector, such as ``fcos_small`` or ``fasterrcnn_resnet50_fpn_v2``, or a builder that is called
            with ``num_classes=``, the classes and the background. See `model_builder`.
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        weights: Name of weights, such as ``DEFAULT``, or a file, or None for random ones. See `build_model`. Heads for
            other classes are replaced, see `replace_detection_heads`.
        masks: Train on the masks of objects, and score them.
        max_detections: Number of detections per image that the metric counts, those with the highest scores; COCO
            counts 100. For more, the model must also return more, such as one with ``detections_per_img=300``.
        **training: Arguments of `Task`.

    Attributes:
        test_scores: `DetectionScores` of the last test, or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range, or the model needs targets that it would not get.
        OSError: If weights cannot be downloaded or read.
    """

    monitor = "val/map_50"
    monitor_mode = "max"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        class_names: Sequence[str],
        weights: str | None = None,
        masks: bool = False,
        max_detections: int = 100,
        **training: Any,
    ) -> None:
        super().__init__(**training)
        self.keep_arguments()
        self.class_names = tuple(check_names("class_names", class_names))
        self.masks = masks
        self.max_detections = max_detections
        self._tiled_sets: list[TiledSet] = []
        detector = self.build_detector(model, weights)
        self.check_detector(detector)
        self.set_model(detector)
        self.set_metric(self.make_metric)

    def build_detector(self, model: str | ModelBuilder, weights: str | None) -> nn.Module:
        """Return the detector with heads for the classes."""
        return build_model(
            model_builder(model, DETECTORS),
            num_classes=len(self.class_names) + FIRST_LABEL,
            weights=weights,
            replace_heads=replace_detection_heads,
        )

    def check_detector(self, detector: nn.Module) -> None:
        """Raise ValueError for a detector that trains on fields of targets that it would not get."""
        # Before training: torchvision would raise a KeyError in the first step.
        _check_model_targets(detector, masks=self.masks)

    def make_metric(self) -> nn.Module:
        """Return the metric of validation and tests."""
        return AveragePrecision(self.class_names, masks=self.masks, max_detections=self.max_detections)

    def read_targets(self, batch: Any) -> list[dict[str, Tensor]]:
        """Return the targets of a batch as one dict of plain tensors an image, checked against the names."""
        targets = plain_targets(batch_targets(batch), masks=self.masks)
        if self.must_check(targets[0]["labels"]):
            self.check_batch(batch)
        return targets

    def check_batch(self, batch: Any) -> None:
        """Refuse labels without a name, in batches with one target for each image."""
        try:
            targets = batch_targets(batch)
        except (TypeError, LookupError):  # a batch transform may still turn it into a batch that the task reads
            return
        fields = [target for target in targets if isinstance(target, Mapping)]
        sizes = {tuple(target["boxes"].shape[1:]) for target in fields if isinstance(target.get("boxes"), Tensor)}
        if sizes - {(4,)}:
            rule = "give boxes along the axes, or train a model of your own on oriented boxes"
            raise ValueError(f"expected boxes (N, 4), xyxy, got boxes with {sorted(sizes)} numbers; {rule}")
        labels = [plain(target[name]) for target in fields for name in ("labels", "unlabelled") if name in target]
        if labels:
            check_labels(torch.cat(labels), self.class_names, argument="class_names", first=FIRST_LABEL)

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return ``boxes``, ``labels`` and ``scores`` of every image; needs ``eval()``.

        Of a model with masks also ``masks``, bool ``(n, H, W)``, where their probability is above one half.
        """
        outputs = self.model([unit_range(image) for image in images])
        return [_as_detections(output) for output in outputs]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the losses."""
        targets = training_targets(self.read_targets(batch))
        # torchvision checks this, too, and reads every box for it; one check of all boxes waits for the device once.
        boxes = torch.cat([target["boxes"] for target in targets])
        flat = boxes[(boxes[:, 2:] <= boxes[:, :2]).any(dim=1)]
        if len(flat):
            raise ValueError(f"the box {flat[0].tolist()} has no area; drop such objects with SanitizeObjects")
        images = [unit_range(image) for image in batch_images(batch)]
        compiled = self.compile_settings is not False
        losses = training_losses(self.model, images, targets, class_names=self.class_names, compiled=compiled)
        return self.log_sum(losses, batch_size=len(targets))

    def collect(self, batch: Batch, metric: Metric) -> list[dict[str, Tensor]]:
        """Update a metric with the detections in a batch, and return these."""
        detections = self._detect(batch)
        self._update(metric, detections, self.read_targets(batch), batch_duplicates(batch))
        return detections

    def sample_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[float, str]]:
        """Return the number of missed objects and the scores of false detections of each image, added up.

        Pairs of an object and a detection have an IoU of at least 0.5, see `detection_error`.
        """
        pairs = zip(*_without_unlabelled(predictions, self.read_targets(batch)), strict=True)
        return [detection_error(detections, target, min_score=min_score, min_iou=0.5) for detections, target in pairs]

    def mark_errors(
        self, batch: Any, predictions: Any, *, min_score: float
    ) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Mark false detections and missed objects, see `CurveTask`, with the pairs of `sample_errors`."""
        # `predict_step` adds the number of the image, which has no row for each detection.
        rows = [{name: value.cpu() for name, value in fields.items() if value.ndim} for fields in predictions]
        marked = []
        for detections, target in zip(*_without_unlabelled(rows, self.read_targets(batch)), strict=True):
            is_false, is_missed = mark_errors(detections, target, min_score=min_score, min_iou=0.5)
            marked.append(({**detections, "is_wrong": is_false}, {**target, "is_wrong": is_missed}))
        return marked

    def _start_curves(self, **limits: Any) -> None:
        metric: Any = self.test_metric.metric
        metric.record_curves(**limits)

    def setup(self, stage: str) -> None:
        """Refuse oriented boxes of the data module, see `Task.setup`.

        Raises:
            SettingError: The data module gives oriented boxes, which torchvision's detectors do not take.
        """
        super().setup(stage)
        self.check_oriented(getattr(getattr(self._trainer, "datamodule", None), "oriented", None))

    @classmethod
    def check_oriented(cls, form: object) -> None:
        """Refuse oriented boxes; an app calls it before a model downloads weights.

        Args:
            form: The data module's setting ``oriented``, None for boxes along the axes.

        Raises:
            SettingError: ``form`` is not None.
        """
        if form is not None:
            rule = f"gives oriented boxes, and {cls.__name__} trains detectors of boxes along the axes"
            remedy = "train a model of your own on them"
            raise SettingError("oriented", form, rule, remedy, settings={"oriented": None})

    def on_fit_start(self) -> None:
        """Warn if the data module changes the size of images over the run, and the model resizes them to one size."""
        datamodule = getattr(self.trainer, "datamodule", None)
        schedules = getattr(datamodule, "schedules", None)
        names: Sequence[str] = [] if schedules is None else [*schedules()]
        name = next((name for name in names if _IMAGE_SIZE.match(name)), None)
        size = _only_size(self.model)
        if name is None or size is None:
            return
        rank_zero_warn(
            f"{name} follows a schedule, and {type(self.model).__name__} resizes all images to {size}, so only their "
            "sharpness changes; give the model several sizes, such as min_size=[320, 384, 448], and it draws one for "
            "each training image, or train a model that does not resize"
        )

    def on_validation_epoch_start(self) -> None:
        """Look up whether the samples are tiles."""
        self._tiled_sets = tiled_sets(self._trainer, "val")

    def on_test_epoch_start(self) -> None:
        """Look up whether the samples are tiles."""
        self._tiled_sets = tiled_sets(self._trainer, "test")

    def _evaluate(self, stage: Literal["val", "test"], batch: Batch, number: int) -> Any:
        """Update the metrics of a stage; detections in tiles are collected until the end of the epoch."""
        if not self._tiled_sets:
            return super()._evaluate(stage, batch, number)
        self._tiled_sets[number].collect(self._detect(batch), batch)
        # An error in a tile need not be one in the merged image.
        return None

    def _score(self, stage: Literal["val", "test"], *metrics: Any) -> tuple[Any, dict[str, Any]]:
        """Return the scores of a stage after logging them; tiles are scored as whole images."""
        self._score_tiles(stage)
        return super()._score(stage, *metrics)

    def _detect(self, batch: Batch) -> list[dict[str, Tensor]]:
        detections = self.forward(batch_images(batch))
        if self.masks and any("masks" not in output for output in detections):
            name = type(self.model).__name__
            raise ValueError(f"masks=True, and {name} gives no masks; give a model that does, such as Mask R-CNN")
        return detections

    def _update(
        self,
        metric: Metric,
        detections: Sequence[Mapping[str, Tensor]],
        targets: Sequence[dict[str, Tensor]],
        is_duplicate: Tensor | Sequence[bool],
    ) -> None:
        detections, targets = _without_unlabelled(detections, targets)
        metric.update(detections, targets, is_duplicate=is_duplicate)

    def _score_tiles(self, stage: Literal["val", "test"]) -> None:
        """Merge the detections in the tiles of each image, and update the metrics with the images."""
        tiled = self._tiled_sets
        self._tiled_sets = []
        num_partial = 0
        for number, tiled_set in enumerate(tiled):
            num_partial += tiled_set.score(
                partial(self._update, self.metric_of_set(stage, number)),
                read_targets=self.read_targets,
                max_detections=self.max_detections,
                device=self.device,
            )
        # The check before training stops after a few batches anyway.
        if num_partial and not self.trainer.sanity_checking:
            rank_zero_info(f"{stage}: {num_partial} images are not scored, because only some of their tiles were seen")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return the detections of each image of a batch as `forward` does, and its ``image_id``."""
        predictions = self.forward(batch_images(batch))
        for prediction, target in zip(predictions, batch_targets(batch), strict=True):
            # A tensor like the other fields, so that predictions of all ranks can be gathered.
            if "image_id" in target:
                prediction["image_id"] = torch.tensor(target["image_id"])
        return predictions

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set `category_ids`, and freeze the batch normalisation layers that were frozen at the save."""
        super().on_load_checkpoint(checkpoint)
        # The task is rebuilt without weights, and torchvision freezes batch normalisation only if it loads weights.
        freeze_batch_norm(self, checkpoint["state_dict"])


def plain_targets(targets: Sequence[Mapping[str, Any]], *, masks: bool = False) -> list[dict[str, Tensor]]:
    """Return the fields of targets that a detector and the metric read, as plain tensors.

    Args:
        targets: One dict an image.
        masks: Also return the masks of objects.

    Raises:
        ValueError: If ``masks`` is True and a target has none.
    """
    if masks and any("masks" not in target for target in targets):
        raise ValueError("masks=True, and the targets have no masks; give the data module masks=True as well")
    fields = ("boxes", "labels", "iscrowd", "unlabelled", *(["masks"] if masks else []))
    return [{key: plain(target[key]) for key in fields if key in target} for target in targets]


def _without_unlabelled(
    detections: Sequence[Mapping[str, Tensor]], targets: Sequence[dict[str, Tensor]]
) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Return detections and targets without classes that their image does not label; remove the targets' field."""
    unlabelled = [target.pop("unlabelled", None) for target in targets]
    # Neither side has the class, so it counts neither for nor against.
    return list(map(drop_unlabelled, detections, unlabelled)), list(map(drop_unlabelled, targets, unlabelled))


def training_targets(targets: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return targets without crowd regions, and without objects of classes that their image does not label.

    Args:
        targets: One dict an image, whose tensors have a row for each object; ``iscrowd`` may be absent. ``unlabelled``
            has the labels of unlabelled classes instead, and may be absent.
    """
    filtered = []
    for target in targets:
        objects = dict(target)
        unlabelled = objects.pop("unlabelled", None)
        # A slice where nothing is marked, since indexing by a mask waits for the device.
        is_single = objects["iscrowd"] == 0 if "iscrowd" in objects else slice(None)
        objects = drop_unlabelled({name: values[is_single] for name, values in objects.items()}, unlabelled)
        filtered.append(objects if unlabelled is None else {**objects, "unlabelled": unlabelled})
    return filtered


def replace_detection_heads(model: nn.Module, num_classes: int, *, num_keypoints: int | None = None) -> None:
    """Replace the layers of a torchvision detector that depend on the number of classes, or of points.

    New layers are initialized as in torchvision; all others keep their weights. New are the box predictor of Faster
    R-CNN, in Mask R-CNN also the last layer of the mask predictor, in Keypoint R-CNN the keypoint predictor if it is
    for another number of points, and in RetinaNet, FCOS, SSD and SSDlite the last layers of the classification head.

    Args:
        model: The detector, modified in place.
        num_classes: Number of classes, including the background.
        num_keypoints: Number of points of an object, or None to keep the keypoint predictor.

    Raises:
        ValueError: If the detector has another architecture, or no points.
    """
    if num_keypoints is not None:
        _replace_keypoint_head(model, num_keypoints)
    if isinstance(model, FasterRCNN):
        heads = model.roi_heads
        # A subclass may have further layers, which a plain predictor would silently drop.
        if type(heads.box_predictor) is FastRCNNPredictor:
            heads.box_predictor = FastRCNNPredictor(heads.box_predictor.cls_score.in_features, num_classes)
            if heads.has_mask():
                # Only the last layer depends on the classes; the deconvolution before it keeps its weights.
                width = heads.mask_predictor.mask_fcn_logits.in_channels
                new_predictor = MaskRCNNPredictor(width, width, num_classes)
                heads.mask_predictor.mask_fcn_logits = new_predictor.mask_fcn_logits
            return
    elif isinstance(model, RetinaNet | FCOS):
        head = model.head.classification_head
        head.cls_logits = _with_classes(head.cls_logits, head.num_classes, num_classes)
        nn.init.normal_(head.cls_logits.weight, std=0.01)
        # Source: Lin et al. 2017, "Focal Loss", section 4.1: at the start every class has a probability of 0.01.
        nn.init.constant_(head.cls_logits.bias, -math.log(99))
        head.num_classes = num_classes
        return
    elif isinstance(model, SSD):
        head = model.head.classification_head
        for level, block in enumerate(head.module_list):
            is_lite = isinstance(block, nn.Sequential)  # SSDlite: a depthwise convolution, then the classification
            new = _with_classes(block[-1] if is_lite else block, head.num_columns, num_classes)
            nn.init.normal_(new.weight, std=0.03) if is_lite else nn.init.xavier_uniform_(new.weight)
            nn.init.zeros_(cast(Tensor, new.bias))
            head.module_list[level] = nn.Sequential(*block[:-1], new) if is_lite else new
        head.num_columns = num_classes
        return
    raise ValueError(
        f"the heads of a {type(model).__name__} can't be replaced for {num_classes} classes: expected torchvision's "
        "Faster R-CNN, Mask R-CNN, RetinaNet, FCOS, SSD or SSDlite; give a builder that takes num_classes and loads "
        "the weights itself, with weights=null"
    )


def _replace_keypoint_head(model: nn.Module, num_keypoints: int) -> None:
    heads: Any = model.roi_heads if isinstance(model, FasterRCNN) else None
    predictor: Any = None if heads is None else heads.keypoint_predictor
    if type(predictor) is not KeypointRCNNPredictor:
        raise ValueError(
            f"the heads of a {type(model).__name__} can't be replaced for {num_keypoints} points: expected "
            "torchvision's Keypoint R-CNN; give a builder that takes num_keypoints and loads the weights itself, with "
            "weights=null"
        )
    # COCO's people keep their trained predictor.
    if predictor.out_channels != num_keypoints:
        in_channels = predictor.kps_score_lowres.in_channels
        heads.keypoint_predictor = KeypointRCNNPredictor(in_channels, num_keypoints)


def _with_classes(conv: nn.Conv2d, old_num_classes: int, num_classes: int) -> nn.Conv2d:
    """Return a new convolution of the same shape for another number of classes per anchor."""
    outputs = conv.out_channels // old_num_classes * num_classes
    # Pairs, which the stubs of Conv2d's constructor do not know.
    kernel_size: Any = conv.kernel_size
    padding: Any = conv.padding
    return nn.Conv2d(conv.in_channels, outputs, kernel_size, padding=padding)


def _as_detections(output: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # FCOS and RetinaNet have an output for the background, which no loss trains.
    is_object = output["labels"] >= FIRST_LABEL
    detections = {name: values[is_object] for name, values in output.items()}
    if "masks" in detections:
        # torchvision returns probabilities with an axis of channels, other models bool masks without one.
        masks = detections["masks"]
        masks = masks[:, 0] if masks.ndim == 4 else masks
        detections["masks"] = masks > 0.5 if masks.is_floating_point() else masks.bool()
    # The layers may compute in lower precision; scores are compared, and boxes measured, in single precision.
    return {name: values.float() if values.is_floating_point() else values for name, values in detections.items()}


def _only_size(model: nn.Module) -> str | None:
    """Return the setting of the one size to which a detector resizes all images, or None."""
    transform = getattr(model, "transform", None)
    if not isinstance(transform, GeneralizedRCNNTransform):
        return None
    if transform.fixed_size is not None:  # of SSD
        return f"size={list(transform.fixed_size)}"
    return f"min_size={transform.min_size[0]}" if len(transform.min_size) == 1 else None


def _check_model_targets(model: nn.Module, *, masks: bool) -> None:
    """Raise ValueError for a model that trains on fields of targets that it would not get."""
    # Other models do not tell which targets they train on; they raise at the first batch.
    if not isinstance(model, FasterRCNN):
        return
    name = type(model).__name__
    if model.roi_heads.has_keypoint():
        raise ValueError(f"{name} trains on keypoints, which DetectionTask does not pass on; use KeypointTask")
    if masks and not model.roi_heads.has_mask():
        raise SettingError("masks", True, f"but {name} predicts no masks", "take maskrcnn_resnet50_fpn_v2")
    if model.roi_heads.has_mask() and not masks:
        rule = f"but {name} trains on masks, which the data module must give as well"
        raise SettingError("masks", False, rule, settings={"masks": True})
