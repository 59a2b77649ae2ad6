"""A detector and heads for its objects on one backbone, which runs once a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.fcos import FCOS

from lit_loader.recipes.object_heads import ObjectHeads, jitter_boxes

__all__ = ["MultiTaskNet"]


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
            return {**losses, **self._object_losses(features, resized, padded)}
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

    def _object_losses(
        self, features: Mapping[str, Tensor], targets: Sequence[Mapping[str, Tensor]], padded: tuple[int, int]
    ) -> dict[str, Tensor]:
        boxes = [jitter_boxes(target["boxes"], self.box_jitter) for target in targets]
        return self.heads.losses(
            self.heads(features, boxes, padded),
            keypoints=torch.cat([target["keypoints"] for target in targets]),
            keypoint_mask=torch.cat([target["keypoint_mask"] for target in targets]),
            attributes={
                name: torch.cat([target[name] for target in targets]) for name in self.heads.attribute_names
            },
            heatmap_sigma=self.heatmap_sigma,
        )
