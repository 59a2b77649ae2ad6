"""FCOS and heads for its objects' points and attributes on one backbone, which runs once a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.fcos import FCOS
from torchvision.ops import Conv2dNormActivation, MultiScaleRoIAlign

from lit_loader.recipes.network import check_range, heatmap_loss, masked_mean, point_loss, soft_argmax

__all__ = ["MultiTaskNet", "ObjectHeads", "ObjectOutputs", "jitter_boxes", "scale_boxes"]


class MultiTaskNet(nn.Module):
    """FCOS and `ObjectHeads` over the same maps.

    NOTE one backbone. FCOS's ``forward`` resizes, runs its backbone and keeps the maps to itself, so this
    one calls FCOS's own parts in FCOS's own order and gives the maps to the heads as well.

    Args:
        detector: Labels of its targets and detections count from 0.
        heads: They see annotated boxes, jittered, in training and the detector's boxes in evaluation.
        box_jitter: Largest move of an annotated box's edge, as a share of the box's side.
        heatmap_sigma: Width of the heatmaps' Gaussian in cells.
    """

    def __init__(
        self, detector: FCOS, heads: ObjectHeads, *, box_jitter: float = 0.1, heatmap_sigma: float = 1.0
    ) -> None:
        super().__init__()
        self.detector, self.heads = detector, heads
        self.box_jitter, self.heatmap_sigma = box_jitter, heatmap_sigma

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return losses by name in training, detections of every image in evaluation.

        Args:
            images: float ``(3, H, W)`` in [0, 1] each.
            targets: In training one dict an image of N objects: ``boxes`` (N, 4), ``labels`` (N,) from 0,
                ``keypoints`` (N, K, 2), ``keypoint_mask`` bool (N, K), every attribute int64 (N,).
        """
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        given = None if targets is None else [dict(target) for target in targets]
        batch, resized = self.detector.transform(list(images), given)
        features = self.detector.backbone(batch.tensors)
        maps = list(features.values())
        outputs = self.detector.head(maps)
        anchors = self.detector.anchor_generator(batch, maps)
        counts = [level.shape[-2] * level.shape[-1] for level in maps]
        padded = (int(batch.tensors.shape[-2]), int(batch.tensors.shape[-1]))
        if self.training:
            assert resized is not None
            losses: dict[str, Tensor] = self.detector.compute_loss(resized, outputs, anchors, counts)
            boxes = [jitter_boxes(target["boxes"], self.box_jitter) for target in resized]
            seen = self.heads(features, boxes, padded)
            return {**losses, **self.heads.losses(seen, resized, heatmap_sigma=self.heatmap_sigma)}
        found: list[dict[str, Any]] = self.detector.postprocess_detections(
            {name: list(output.split(counts, dim=1)) for name, output in outputs.items()},
            [list(rows.split(counts)) for rows in anchors],
            batch.image_sizes,
        )
        seen = self.heads(features, [one["boxes"] for one in found], padded)
        lengths = [len(one["boxes"]) for one in found]
        for name, values in self.heads.predictions(seen).items():
            for one, rows in zip(found, torch.split(values, lengths), strict=True):
                one[name] = rows
        detections: list[dict[str, Tensor]] = self.detector.transform.postprocess(
            found, batch.image_sizes, sizes
        )
        return detections


class ObjectOutputs(NamedTuple):
    """Outputs of the heads for R objects.

    Attributes:
        rois: float ``(R, 4)``, xyxy in pixels of the network's input: the regions that were looked at.
        heatmaps: Logits float ``(R, K, h, w)`` over the regions, or None without points.
        attributes: Logits float ``(R, num_values)`` by the attribute's name.
    """

    rois: Tensor
    heatmaps: Tensor | None
    attributes: dict[str, Tensor]


class ObjectHeads(nn.Module):
    """Points by heatmaps over an object's region, and one linear classifier an attribute.

    An object's region is its box made larger by ``box_scale``, so that points on the box's edge lie inside;
    `MultiScaleRoIAlign` samples it from the maps. Two convolutions serve both heads.

    Args:
        in_channels: Channels of the maps, a multiple of 8 (groups of the heads' normalisation).
        strides: Strides of the maps, finest first.
        num_keypoints: Points K of an object; 0 for no such head.
        attributes: Values of every attribute by its name.
        roi_size: Cells of a region along either side; heatmaps have twice as many.
        box_scale: Sides of the region over those of the box.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        strides: Sequence[int],
        num_keypoints: int,
        attributes: Mapping[str, Sequence[str]],
        roi_size: int = 8,
        box_scale: float = 1.3,
    ) -> None:
        super().__init__()
        check_range(2, math.inf, roi_size=roi_size)
        check_range(1, 3, box_scale=box_scale)
        self.box_scale, self.attribute_names = box_scale, tuple(attributes)
        # An object whose region has about as many cells on a map as are sampled belongs to that map.
        self.pool = MultiScaleRoIAlign(
            [str(stride) for stride in strides],
            output_size=roi_size,
            sampling_ratio=2,
            canonical_scale=roi_size * strides[0],
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

    def forward(
        self, features: Mapping[str, Tensor], boxes: Sequence[Tensor], size: tuple[int, int]
    ) -> ObjectOutputs:
        """Return heatmaps and attribute logits of all boxes of a batch.

        Args:
            features: The backbone's maps by stride.
            boxes: float ``(N_i, 4)`` an image, xyxy in pixels of the network's input.
            size: Height and width of the network's input, padding included.
        """
        rois = [scale_boxes(rows, self.box_scale) for rows in boxes]
        pooled = self.trunk(self.pool(dict(features), rois, [size] * len(rois)))
        averaged = pooled.mean(dim=(-2, -1))
        logits = {name: head(averaged) for name, head in zip(self.attribute_names, self.values, strict=True)}
        return ObjectOutputs(torch.cat(rois), None if self.points is None else self.points(pooled), logits)

    def losses(
        self, outputs: ObjectOutputs, targets: Sequence[Mapping[str, Tensor]], *, heatmap_sigma: float
    ) -> dict[str, Tensor]:
        """Return one loss a head, ``keypoints`` and ``attributes/<name>``; what is masked teaches nothing.

        That of the points is ten times their mean absolute error as shares of the region, plus the heatmaps'
        divergence from a Gaussian.

        Args:
            outputs: Of the R boxes.
            targets: One dict an image, R objects in all: ``keypoints`` float ``(N, K, 2)``, pixels of the network's
                input; ``keypoint_mask`` bool ``(N, K)``, points outside of the region being left out as well; every
                attribute int64 ``(N,)``, -1 where an object has none.
            heatmap_sigma: Width of the heatmaps' Gaussian in cells.
        """
        found: dict[str, Tensor] = {}
        if outputs.heatmaps is not None:
            corner, sides = outputs.rois[:, None, :2], outputs.rois[:, None, 2:] - outputs.rois[:, None, :2]
            wanted = (torch.cat([target["keypoints"] for target in targets]) - corner) / sides
            inside = ((wanted >= 0) & (wanted <= 1)).all(dim=-1)
            mask = torch.cat([target["keypoint_mask"] for target in targets]) & inside
            points, _ = soft_argmax(outputs.heatmaps)
            divergence = heatmap_loss(outputs.heatmaps, wanted, mask, sigma=heatmap_sigma)
            found["keypoints"] = 10 * point_loss(points, wanted, mask) + divergence
        for name, logits in outputs.attributes.items():
            ids = torch.cat([target[name] for target in targets])
            each = functional.cross_entropy(logits.float(), ids.clamp(min=0), reduction="none")
            found[f"attributes/{name}"] = masked_mean(each, ids >= 0)
        return found

    def predictions(self, outputs: ObjectOutputs) -> dict[str, Tensor]:
        """Return points in pixels of the network's input, and attributes by name with their probabilities."""
        found: dict[str, Tensor] = {}
        if outputs.heatmaps is not None:
            corner, sides = outputs.rois[:, None, :2], outputs.rois[:, None, 2:] - outputs.rois[:, None, :2]
            points, found["keypoint_scores"] = soft_argmax(outputs.heatmaps)
            found["keypoints"] = corner + points * sides
        for name, logits in outputs.attributes.items():
            found[f"{name}_probabilities"] = logits.float().softmax(dim=1)
            found[name] = logits.argmax(dim=1)
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
