"""Tasks that detect the annotated objects of a batch, exactly or with errors that depend on the sample alone."""

from __future__ import annotations

import torch

from lit_loader.collate import batch_targets
from lit_loader.recipes import DetectionTask, MultiTask
from tests.support.small_tasks import constant_builder, small_builder


class _Echo:
    """Overrides `forward` of a task, which gets images only, by the annotations of the current batch.

    Attributes:
        noise: Standard deviation of the boxes' sides, in pixels; with noise a quarter of the objects is missed.
    """

    noise = 0.0

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.batch = batch
        super().validation_step(batch, batch_idx, dataloader_idx)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.batch = batch
        super().test_step(batch, batch_idx, dataloader_idx)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        self.batch = batch
        return super().predict_step(batch, batch_idx, dataloader_idx)

    def forward(self, images):
        return [self.echo(target) for target in batch_targets(self.batch)]

    def echo(self, target):
        names = ("boxes", "labels", "masks", "keypoints", *getattr(self, "attributes", ()))
        is_single = target["iscrowd"] == 0
        detections = {name: torch.as_tensor(target[name])[is_single] for name in names if name in target}
        detections = {name: values.as_subclass(torch.Tensor) for name, values in detections.items()}
        if "masks" in detections:
            detections["masks"] = detections["masks"].bool()
        count = len(detections["labels"])
        generator = torch.Generator().manual_seed(target["image_id"])
        detections["scores"] = torch.rand(count, generator=generator) * 0.5 + 0.5
        if not self.noise:
            return detections
        detections["boxes"] = detections["boxes"] + torch.randn(count, 4, generator=generator) * self.noise
        is_detected = torch.rand(count, generator=generator) > 0.25
        return {name: values[is_detected] for name, values in detections.items()}


class EchoDetection(_Echo, DetectionTask):
    """Detects the annotated boxes, and masks."""

    def __init__(self, class_names, **settings):
        super().__init__(constant_builder([]), class_names=class_names, **settings)


class EchoMultiTask(_Echo, MultiTask):
    """Detects the annotated boxes, points and attributes."""

    def __init__(self, class_names, **settings):
        super().__init__(small_builder("multi_task"), class_names=class_names, **settings)
