"""FCOS and heads for its objects' points and attributes on one backbone, which runs once a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.fcos import FCOS
from torchvision.ops import Conv2dNormActivation, MultiScaleRoIAlign

from lit_loader.recipes.network import heatmap_loss, masked_mean, point_loss, soft_argmax

__all__ = ["MultiTaskNet", "ObjectHeads", "ObjectOutputs", "jitter_boxes", "scale_boxes"]

_ROI_SIZE: Final = 8
"""Cells of an object's region along either side; heatmaps have twice as many."""

_BOX_JITTER: Final = 0.1
"""Largest move of an annotated box's edge in training, as a share of the box's side."""

ObjectOutputs: TypeAlias = tuple[Tensor, Tensor | None, dict[str, Tensor]]
"""Of R objects: the regions that were looked at, float ``(R, 4)``, xyxy in pixels of the network's input; the heatmaps'
logits over them, float ``(R, K, h, w)``, or None without points; logits float ``(R, num_values)`` by attribute."""


class MultiTaskNet(FCOS):  # type: ignore[misc] # torchvision has no types
    """FCOS and `ObjectHeads` over the same maps.

    NOTE one backbone. FCOS keeps its backbone's maps to itself, so a hook takes them for the heads, which answer where
    FCOS computes its losses or its detections.

    Args:
        *args: What FCOS takes.
        settings: The hyperparameters of `MultiTaskModule`.
        **kwargs: What FCOS takes by name.
    """

    def __init__(self, *args: Any, settings: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heads = ObjectHeads(
            in_channels=settings["head_channels"],
            strides=settings["strides"],
            num_keypoints=len(settings["keypoint_names"]),
            attributes=settings["attributes"],
        )
        self._maps: dict[str, Tensor] = {}
        self.backbone.register_forward_hook(self._keep_maps)

    def _keep_maps(self, backbone: nn.Module, images: Any, maps: dict[str, Tensor]) -> None:
        self._maps = maps

    def _look_at(self, boxes: Sequence[Tensor]) -> ObjectOutputs:
        maps, self._maps = self._maps, {}  # a kept map would keep the graph of the step
        outputs: ObjectOutputs = self.heads(maps, boxes)
        return outputs

    def compute_loss(self, targets: list[dict[str, Tensor]], *outputs: Any) -> dict[str, Tensor]:
        """Return FCOS's losses and those of the heads, which see annotated boxes, moved a little."""
        losses: dict[str, Tensor] = super().compute_loss(targets, *outputs)
        seen = self._look_at([jitter_boxes(target["boxes"], _BOX_JITTER) for target in targets])
        return losses | self.heads.losses(seen, targets)

    def postprocess_detections(self, *outputs: Any) -> list[dict[str, Tensor]]:
        """Return FCOS's detections with the heads' answers on them, in pixels of the network's input."""
        found: list[dict[str, Tensor]] = super().postprocess_detections(*outputs)
        boxes = [one["boxes"] for one in found]
        for name, values in self.heads.predictions(self._look_at(boxes)).items():
            for one, rows in zip(found, torch.split(values, list(map(len, boxes))), strict=True):
                one[name] = rows
        return found


class ObjectHeads(nn.Module):
    """Points by heatmaps over an object's region, and one linear classifier an attribute.

    An object's region is its box made larger by ``box_scale``, so that points on the box's edge lie inside;
    `MultiScaleRoIAlign` samples it from the maps. Two convolutions serve both heads.

    Args:
        in_channels: Channels of the maps, a multiple of 8 (groups of the heads' normalisation).
        strides: Strides of the maps, finest first.
        num_keypoints: Points K of an object; 0 for no such head.
        attributes: Values of every attribute by its name.
        box_scale: Sides of the region over those of the box.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        strides: Sequence[int],
        num_keypoints: int,
        attributes: Mapping[str, Sequence[str]],
        box_scale: float = 1.3,
    ) -> None:
        super().__init__()
        self.box_scale, self.attribute_names = box_scale, tuple(attributes)
        # An object whose region has about as many cells on a map as are sampled belongs to that map.
        self.pool = MultiScaleRoIAlign(
            [str(stride) for stride in strides],
            output_size=_ROI_SIZE,
            sampling_ratio=2,
            canonical_scale=_ROI_SIZE * strides[0],
            canonical_level=int(math.log2(strides[0])),
        )
        block = partial(Conv2dNormActivation, in_channels, in_channels, norm_layer=partial(nn.GroupNorm, 8))
        self.trunk = nn.Sequential(block(), block())
        upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.points = (
            nn.Sequential(upsample, block(), nn.Conv2d(in_channels, num_keypoints, 1))
            if num_keypoints
            else None
        )
        self.values = nn.ModuleList(nn.Linear(in_channels, len(names)) for names in attributes.values())

    def forward(self, features: Mapping[str, Tensor], boxes: Sequence[Tensor]) -> ObjectOutputs:
        """Return what is seen in all boxes of a batch, see `ObjectOutputs`.

        Args:
            features: The backbone's maps by stride.
            boxes: float ``(N_i, 4)`` an image, xyxy in pixels of the network's input.
        """
        rois = [scale_boxes(rows, self.box_scale) for rows in boxes]
        stride, finest = next(iter(features.items()))
        size = (
            finest.shape[-2] * int(stride),
            finest.shape[-1] * int(stride),
        )  # of the input, padding included
        pooled = self.trunk(self.pool(dict(features), rois, [size] * len(rois)))
        averaged = pooled.mean(dim=(-2, -1))
        logits = {name: head(averaged) for name, head in zip(self.attribute_names, self.values, strict=True)}
        return torch.cat(rois), None if self.points is None else self.points(pooled), logits

    def losses(self, outputs: ObjectOutputs, targets: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return one loss a head, ``keypoints`` and ``attributes/<name>``; what is masked teaches nothing.

        That of the points is ten times their mean absolute error as shares of the region, plus the heatmaps'
        divergence from a Gaussian.

        Args:
            outputs: Of the R boxes.
            targets: One dict an image, R objects in all: ``keypoints`` float ``(N, K, 2)``, pixels of the network's
                input; ``keypoint_mask`` bool ``(N, K)``, points outside of the region being left out as well; every
                attribute int64 ``(N,)``, -1 where an object has none.
        """
        rois, heatmaps, logits = outputs
        found: dict[str, Tensor] = {}
        if heatmaps is not None:
            corner, sides = rois[:, None, :2], rois[:, None, 2:] - rois[:, None, :2]
            wanted = (torch.cat([target["keypoints"] for target in targets]) - corner) / sides
            inside = ((wanted >= 0) & (wanted <= 1)).all(dim=-1)
            mask = torch.cat([target["keypoint_mask"] for target in targets]) & inside
            points, _ = soft_argmax(heatmaps)
            divergence = heatmap_loss(heatmaps, wanted, mask)
            found["keypoints"] = 10 * point_loss(points, wanted, mask) + divergence
        for name, each in logits.items():
            ids = torch.cat([target[name] for target in targets])
            losses = functional.cross_entropy(each.float(), ids.clamp(min=0), reduction="none")
            found[f"attributes/{name}"] = masked_mean(losses, ids >= 0)
        return found

    def predictions(self, outputs: ObjectOutputs) -> dict[str, Tensor]:
        """Return points in pixels of the network's input, and attributes by name with their probabilities."""
        rois, heatmaps, logits = outputs
        found: dict[str, Tensor] = {}
        if heatmaps is not None:
            points, found["keypoint_scores"] = soft_argmax(heatmaps)
            found["keypoints"] = rois[:, None, :2] + points * (rois[:, None, 2:] - rois[:, None, :2])
        for name, each in logits.items():
            found[f"{name}_probabilities"] = each.float().softmax(dim=1)
            found[name] = each.argmax(dim=1)
        return found


def scale_boxes(boxes: Tensor, scale: float) -> Tensor:
    """Return boxes made larger around their middles; xyxy, shape ``(N, 4)``."""
    middles, halves = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) * (scale / 2)
    return torch.cat([middles - halves, middles + halves], dim=1)


def jitter_boxes(boxes: Tensor, amount: float) -> Tensor:
    """Return boxes whose edges are moved by up to a share of the box's sides, as a detector's are.

    Args:
        boxes: float ``(N, 4)``, xyxy.
        amount: Largest share, below 0.5, so that no box turns inside out.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + (torch.rand_like(boxes) * 2 - 1) * amount * sides
