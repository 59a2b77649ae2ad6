"""Train your own detector, here a small DETR, with lit_loader's data module, metric and task.

    python examples/own_detector.py
    python examples/own_detector.py 30  # epochs instead of 10

`DetectionTask` takes any builder of a module with two modes: in training, ``model(images, targets)`` returns a dict of
losses; in evaluation, ``model(images)`` returns a dict of boxes, labels and scores per image. Images are floats in
[0, 1] of any size; labels start at 1. In a config: ``_target_: lit_loader.recipes.DetectionTask``, ``model: {_target_:
PACKAGE.SmallDETR, _partial_: true}``. Prints the progress, and after 10 epochs ``mAP@50 after 1880 steps: 0.231``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import Conv2dNormActivation, box_convert, generalized_box_iou, generalized_box_iou_loss

from lit_loader import DetectionDataModule
from lit_loader.datasets import ShapesSource
from lit_loader.recipes import DetectionTask


class SmallDETR(nn.Module):
    """A transformer whose queries each predict a class (0 for no object) and a box (Carion et al. 2020)."""

    def __init__(self, num_classes: int, num_queries: int = 12, channels: int = 64, size: int = 96) -> None:
        super().__init__()
        self.size = size
        widths = ((3, 16), (16, 32), (32, channels), (channels, channels))
        self.backbone = nn.Sequential(*(Conv2dNormActivation(*pair, stride=2) for pair in widths))
        self.positions = nn.Parameter(torch.randn((size // 16) ** 2, channels) * 0.1)
        self.queries = nn.Parameter(torch.randn(num_queries, channels))
        settings: dict[str, Any] = {"dim_feedforward": 2 * channels, "dropout": 0.0, "batch_first": True}
        self.transformer = nn.Transformer(channels, 4, 1, 2, **settings)
        self.classes = nn.Linear(channels, num_classes)
        self.boxes = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 4))

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        """Return losses in training, detections in evaluation."""
        # The data module keeps the size of each image, and this model needs one size.
        inputs = [functional.interpolate(image[None], (self.size, self.size)) for image in images]
        features = self.backbone((torch.cat(inputs) - 0.5) / 0.25)
        cells = features.flatten(2).transpose(1, 2) + self.positions
        outputs = self.transformer(cells, self.queries.expand(len(images), -1, -1))
        logits = self.classes(outputs)
        boxes = box_convert(self.boxes(outputs).sigmoid(), "cxcywh", "xyxy")  # relative to the image's size
        scales = [image.new_tensor(image.shape[-2:]).flip(0).repeat(2) for image in images]
        if targets is not None:
            return self.losses(logits, boxes, targets, scales)
        scores, labels = logits.softmax(dim=-1)[..., 1:].max(dim=-1)
        outputs = zip(boxes, labels + 1, scores, scales, strict=True)
        return [{"boxes": b * scale, "labels": label, "scores": s} for b, label, s, scale in outputs]

    def losses(self, logits: Tensor, boxes: Tensor, targets: Any, scales: list[Tensor]) -> dict[str, Tensor]:
        """Return the losses of the queries; each is matched to at most one object."""
        classes = torch.zeros(logits.shape[:2], dtype=torch.int64, device=logits.device)
        pairs: list[tuple[Tensor, Tensor]] = []
        for i, (target, scale) in enumerate(zip(targets, scales, strict=True)):
            true_boxes = target["boxes"] / scale
            # The matching is a choice and has no gradient; its costs have the weights of the losses below.
            with torch.no_grad():
                cost = 5 * torch.cdist(boxes[i], true_boxes, p=1) - 2 * generalized_box_iou(boxes[i], true_boxes)
                cost -= logits[i].softmax(dim=-1)[:, target["labels"]]
            rows, columns = map(torch.as_tensor, linear_sum_assignment(cost.cpu()))
            classes[i, rows] = target["labels"][columns]
            pairs.append((boxes[i, rows], true_boxes[columns]))
        weights = logits.new_ones(logits.shape[-1])
        weights[0] = 0.1  # most queries have no object
        predicted, matched = map(torch.cat, zip(*pairs, strict=True))
        count = max(1, len(predicted))
        return {
            "classification": functional.cross_entropy(logits.flatten(0, 1), classes.flatten(), weights),
            "box": 5 * functional.l1_loss(predicted, matched, reduction="sum") / count,
            "giou": 2 * generalized_box_iou_loss(predicted, matched, reduction="sum") / count,
        }


def main(epochs: int = 10, **source: Any) -> None:
    """Train on the embedded scenes, and print the test score."""
    datamodule = DetectionDataModule(ShapesSource(**source), batch_size=16, seed=0)
    datamodule.prepare_data()
    torch.manual_seed(0)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    model = DetectionTask(SmallDETR, class_names=datamodule.class_names, optimizer=optimizer)
    trainer = Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    print(f"mAP@50 after {trainer.global_step} steps: {model.test_scores.map_50:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
