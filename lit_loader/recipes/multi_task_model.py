"""A detector and heads for its objects' points and attributes on one backbone, which runs once a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation, MultiScaleRoIAlign

from lit_loader.recipes.losses import LandmarkLoss, labelled_cross_entropy
from lit_loader.recipes.network import filled_pair, soft_argmax

_ROI_SIZE: Final = 8
"""Cells of an object's region along either side; heatmaps have twice as many."""

_BOX_JITTER: Final = 0.1
"""Largest move of an annotated box's edge in training, as a share of the box's side."""

_EXTRA_MAPS: Final = ("pool", "p6", "p7")
"""Maps that torchvision's pyramids add for large anchors; they are too coarse for the heads."""

ObjectOutputs: TypeAlias = tuple[Tensor, Tensor | None, dict[str, Tensor]]
"""For R objects: their regions, float ``(R, 4)``, xyxy in pixels of the network's input; the heatmaps' logits over
them, float ``(R, K, h, w)``, or None without points; logits float ``(R, num_values)`` by attribute."""


class MultiTaskModel(nn.Module):
    """A detector, and `ObjectHeads` over the maps of its backbone.

    In training it takes images and targets and returns the losses of both; the heads use annotated boxes with a small
    random shift. In evaluation it takes images and returns the detections with the outputs of the heads, in pixels of
    the images.

    Args:
        detector: One with torchvision's ``transform`` and ``backbone``, such as Faster R-CNN, RetinaNet or FCOS.
        num_keypoints: Points K of an object; 0 for no such head.
        attributes: Values of every attribute by its name.

    Raises:
        ValueError: If the detector is of another kind, such as SSD, or has a head for masks or points.
    """

    def __init__(self, detector: nn.Module, *, num_keypoints: int, attributes: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        channels = getattr(getattr(detector, "backbone", None), "out_channels", None)
        roi_heads: Any = getattr(detector, "roi_heads", None)
        has_more = roi_heads is not None and (roi_heads.has_mask() or roi_heads.has_keypoint())
        if channels is None or not hasattr(detector, "transform") or has_more:
            name = type(detector).__name__
            raise ValueError(f"expected a detector of boxes, got a {name}; give Faster R-CNN, RetinaNet or FCOS")
        self.detector = detector
        self.heads = ObjectHeads(channels, num_keypoints=num_keypoints, attributes=attributes)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        """Return losses by name in training, one dict of detections an image in evaluation.

        Args:
            images: float in [0, 1], ``(3, H, W)`` each.
            targets: In training, the targets of the detector and of `ObjectHeads.losses`.
        """
        # Hooks, since the detector does not return its inputs and maps.
        intermediate: dict[str, Any] = {}
        hooks = [
            getattr(self.detector, name).register_forward_hook(partial(_store_output, intermediate, name))
            for name in ("transform", "backbone")
        ]
        try:
            outputs = self.detector(images, targets)
        finally:
            # An error in the detector must not leave hooks behind, which would keep its last tensors.
            for hook in hooks:
                hook.remove()
        inputs, resized_targets = intermediate["transform"]
        maps = intermediate["backbone"]
        maps = {"0": maps} if isinstance(maps, Tensor) else maps
        run_heads = partial(self.heads, maps, inputs.tensors.shape[-2:])
        if self.training:
            # The heads learn from boxes that are as imprecise as detected ones.
            boxes = [jitter_boxes(target["boxes"], _BOX_JITTER) for target in resized_targets]
            return outputs | self.heads.losses(run_heads(boxes), resized_targets)
        # Factors from the image to the network's input, x and y.
        scales = [
            filled_pair(width / image.shape[-1], height / image.shape[-2], like=output["boxes"])
            for output, (height, width), image in zip(outputs, inputs.image_sizes, images, strict=True)
        ]
        boxes = [output["boxes"] * scale.repeat(2) for output, scale in zip(outputs, scales, strict=True)]
        # The detector returns boxes in pixels of the images, and regions are pooled in pixels of its input.
        for name, values in self.heads.predictions(run_heads(boxes)).items():
            parts = torch.split(values, list(map(len, boxes)))
            for output, part, scale in zip(outputs, parts, scales, strict=True):
                output[name] = part / scale if name == "keypoints" else part
        return outputs


class ObjectHeads(nn.Module):
    """Points by heatmaps over an object's region, and one linear classifier an attribute.

    An object's region is its box enlarged by ``box_scale``, so that it contains points on the edge of the box. It is
    sampled from the map on which it has about as many cells as are sampled. Both heads share two convolutions.

    Args:
        in_channels: Channels of the maps.
        num_keypoints: Points K of an object; 0 for no such head.
        attributes: Values of every attribute by its name.
        box_scale: Ratio of the region's sides to the box's.
    """

    def __init__(
        self, in_channels: int, *, num_keypoints: int, attributes: Mapping[str, Sequence[str]], box_scale: float = 1.3
    ) -> None:
        super().__init__()
        self.box_scale = box_scale
        self.attribute_names = tuple(attributes)
        # Ten times less than for crops, because the backbone also has to learn the boxes.
        self.point_loss = LandmarkLoss(point_weight=10.0)
        # Not batch normalisation: a batch has as many regions as objects, perhaps a single one. At most 8 groups.
        norm = partial(nn.GroupNorm, math.gcd(8, in_channels))
        block = partial(Conv2dNormActivation, in_channels, in_channels, norm_layer=norm)
        self.trunk = nn.Sequential(block(), block())
        upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        points = (upsample, block(), nn.Conv2d(in_channels, num_keypoints, 1)) if num_keypoints else ()
        self.points = nn.Sequential(*points) if points else None
        self.values = nn.ModuleList(nn.Linear(in_channels, len(names)) for names in attributes.values())

    def forward(self, maps: Mapping[str, Tensor], size: Sequence[int], boxes: Sequence[Tensor]) -> ObjectOutputs:
        """Return the outputs for all boxes of a batch, see `ObjectOutputs`.

        Args:
            maps: The backbone's maps by name, finest first; strides are powers of 2.
            size: Height and width of the network's input, padding included.
            boxes: float ``(N_i, 4)`` an image, xyxy in pixels of the network's input.
        """
        names = [name for name in maps if name not in _EXTRA_MAPS]
        # Created for each batch, because torchvision's pooler keeps the scales of the first images it has seen.
        # The level at which a region of side s has 8 cells is log2(s / 8).
        pool = MultiScaleRoIAlign(names, _ROI_SIZE, 2, canonical_scale=_ROI_SIZE, canonical_level=0)
        rois = [scale_boxes(rows, self.box_scale) for rows in boxes]
        pooled = self.trunk(pool(dict(maps), rois, [(size[0], size[1])] * len(rois)))
        averaged = pooled.mean(dim=(-2, -1))
        logits = {name: head(averaged) for name, head in zip(self.attribute_names, self.values, strict=True)}
        return torch.cat(rois), None if self.points is None else self.points(pooled), logits

    def losses(self, outputs: ObjectOutputs, targets: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return one loss per head, ``keypoints`` and ``attributes/<name>``; masked values do not contribute.

        The loss of the points is ten times their mean absolute error as fractions of the region, plus the divergence of
        the heatmaps from a Gaussian.

        Args:
            outputs: Outputs for the R boxes.
            targets: One dict an image, R objects in all: ``keypoints`` float ``(N, K, 2)``, pixels of the network's
                input; ``keypoint_mask`` bool ``(N, K)``, where points outside of the region are masked as well; every
                attribute int64 ``(N,)``, -1 where an object has none.
        """
        rois, heatmaps, logits = outputs
        losses: dict[str, Tensor] = {}
        if heatmaps is not None:
            corners = rois[:, None, :2]
            sides = rois[:, None, 2:] - corners
            # No side is 0: `DetectionTask.training_step` refuses boxes without area.
            truth = (torch.cat([target["keypoints"] for target in targets]) - corners) / sides
            is_inside = ((truth >= 0) & (truth <= 1)).all(dim=-1)
            mask = torch.cat([target["keypoint_mask"] for target in targets]) & is_inside
            points, _ = soft_argmax(heatmaps)
            losses["keypoints"] = self.point_loss.points(points, truth, mask)
            losses["keypoints"] += self.point_loss.heatmaps(heatmaps, truth, mask)
        for name, attribute_logits in logits.items():
            ids = torch.cat([target[name] for target in targets])
            losses[f"attributes/{name}"] = labelled_cross_entropy(attribute_logits, ids)
        return losses

    def predictions(self, outputs: ObjectOutputs) -> dict[str, Tensor]:
        """Return points in pixels of the network's input, and attributes by name with their probabilities."""
        rois, heatmaps, logits = outputs
        predictions: dict[str, Tensor] = {}
        if heatmaps is not None:
            points, predictions["keypoint_scores"] = soft_argmax(heatmaps)
            predictions["keypoints"] = rois[:, None, :2] + points * (rois[:, None, 2:] - rois[:, None, :2])
        for name, attribute_logits in logits.items():
            predictions[f"{name}_probabilities"] = attribute_logits.float().softmax(dim=1)
            predictions[name] = attribute_logits.argmax(dim=1)
        return predictions


def scale_boxes(boxes: Tensor, scale: float) -> Tensor:
    """Scale boxes around their centres; xyxy, shape ``(N, 4)``."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    halves = (boxes[:, 2:] - boxes[:, :2]) * (scale / 2)
    return torch.cat([centres - halves, centres + halves], dim=1)


def jitter_boxes(boxes: Tensor, amount: float) -> Tensor:
    """Move the edges of boxes by up to a fraction of their sides, to imitate detected boxes.

    Args:
        boxes: float ``(N, 4)``, xyxy.
        amount: Largest fraction; below 0.5, so that no box turns inside out.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + (torch.rand_like(boxes) * 2 - 1) * amount * sides


def _store_output(outputs: dict[str, Any], name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    outputs[name] = output
