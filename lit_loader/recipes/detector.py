"""FCOS small enough to learn on two CPU cores; what the recipes that detect are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS, FCOSHead

from lit_loader.recipes.backbone import PyramidBackbone
from lit_loader.recipes.names import check_labels
from lit_loader.recipes.pixels import IMAGE_MEAN, IMAGE_STD, plain
from lit_loader.types import FIRST_LABEL

__all__ = ["labels_from_zero", "plain_targets", "small_fcos"]


def small_fcos(
    *,
    num_classes: int,
    channels: int,
    head_channels: int,
    head_convs: int,
    strides: Sequence[int],
    min_size: int,
    max_size: int,
    score_thresh: float,
    nms_thresh: float,
    detections_per_img: int,
) -> FCOS:
    """Return torchvision's FCOS on a `PyramidBackbone`.

    Args:
        num_classes: Classes without background: one sigmoid for each.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head, a multiple of 32 (groups of its normalisation).
        head_convs: Convolutions in each of the head's two branches before the last.
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        min_size: Images are resized so that the shorter side has this many pixels...
        max_size: ... unless the longer side would exceed this many.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image, at most 100 (what the metric counts).

    Raises:
        ValueError: If an argument is out of range.
    """
    if head_channels <= 0 or head_channels % 32:
        raise ValueError(f"head_channels={head_channels} must be a multiple of 32, its groups; give 64")
    if not 1 <= detections_per_img <= 100:
        raise ValueError(f"detections_per_img={detections_per_img} must be 1 to 100, what the metric counts")
    if head_convs < 0:
        raise ValueError(f"head_convs={head_convs} is negative; give 0 or more")
    return FCOS(
        PyramidBackbone(channels=channels, out_channels=head_channels, strides=tuple(strides)),
        num_classes=num_classes,
        min_size=min_size,
        max_size=max_size,
        image_mean=[IMAGE_MEAN] * 3,
        image_std=[IMAGE_STD] * 3,
        anchor_generator=AnchorGenerator(tuple((s,) for s in strides), ((1.0,),) * len(strides)),
        head=FCOSHead(head_channels, 1, num_classes, head_convs),
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        detections_per_img=detections_per_img,
        topk_candidates=300,
    )


def labels_from_zero(
    targets: Sequence[Mapping[str, Any]], class_names: Sequence[str]
) -> list[dict[str, Tensor]]:
    """Return what the detector uses of the targets, with labels that count from 0, as its outputs do.

    Raises:
        ValueError: If a label stands for none of the classes.
    """
    labels = torch.cat([plain(target["labels"]) for target in targets])
    check_labels(labels, class_names, argument="class_names", first=FIRST_LABEL, note=" (0 is background)")
    return [{**target, "labels": target["labels"] - 1} for target in plain_targets(targets)]


def plain_targets(targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
    """Return what the detector and the metric use of the targets, as plain tensors."""
    kept = ("boxes", "labels", "iscrowd")
    return [{key: plain(target[key]) for key in kept if key in target} for target in targets]
