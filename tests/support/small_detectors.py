"""torchvision's detectors of every kind, small enough to train in a test; built with ``num_classes``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection.anchor_utils import AnchorGenerator

from lit_loader.recipes import PyramidBackbone, fcos_small
from tests.datasets.test_masks import mask_rcnn

__all__ = ["OwnDetector", "faster_rcnn", "fcos", "mask_rcnn", "retinanet", "ssd", "ssdlite"]


def fcos(num_classes: int) -> nn.Module:
    return fcos_small(num_classes=num_classes, channels=16, head_channels=32, strides=(8, 16))


def retinanet(num_classes: int) -> nn.Module:
    backbone = PyramidBackbone(channels=16, out_channels=32, strides=(8, 16))
    anchors = AnchorGenerator(((16,), (32,)), ((0.5, 1.0),) * 2)
    return models.detection.RetinaNet(backbone, num_classes, anchor_generator=anchors, min_size=64)


def ssdlite(num_classes: int) -> nn.Module:
    return models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)


def ssd(num_classes: int) -> nn.Module:
    model = ssdlite(num_classes)
    channels = [block[0][0].in_channels for block in model.head.classification_head.module_list]
    anchors = model.anchor_generator.num_anchors_per_location()
    model.head = models.detection.ssd.SSDHead(channels, anchors, num_classes)
    return model


def faster_rcnn(num_classes: int) -> nn.Module:
    return models.detection.FasterRCNN(
        PyramidBackbone(channels=16, out_channels=32, strides=(8,)),
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        box_roi_pool=models.detection.faster_rcnn.MultiScaleRoIAlign(["8"], 3, 2),
        box_head=models.detection.faster_rcnn.TwoMLPHead(32 * 9, 32),
        box_predictor=models.detection.faster_rcnn.FastRCNNPredictor(32, num_classes),
        min_size=64,
    )


class OwnDetector(nn.Module):
    """A detector of a user's own, which the package cannot change."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_classes))

    def forward(self, images: Any, targets: Any) -> dict[str, Tensor]:
        return {"loss": self.weight.sum()}
