"""Mask R-CNN and Keypoint R-CNN on a small pyramid, for training from scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNN, KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from lit_loader.recipes.network import IMAGE_MEAN, IMAGE_STD, PyramidBackbone

__all__ = ["keypointrcnn_small", "maskrcnn_small"]


def maskrcnn_small(
    *,
    num_classes: int,
    channels: int = 48,
    head_channels: int = 64,
    strides: Sequence[int] = (8, 16, 32),
    anchor_sizes: Sequence[float] = (32, 64, 128),
    min_size: int | Sequence[int] = 320,
    max_size: int = 640,
    score_thresh: float = 0.05,
    nms_thresh: float = 0.5,
    detections_per_img: int = 100,
) -> MaskRCNN:
    """Return torchvision's Mask R-CNN on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_classes: Classes and the background; labels count from 1.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of the pyramid and of the mask head; the box head has twice this width.
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        anchor_sizes: Side of an anchor for each map, in pixels of the resized image; objects should have half to twice
            the size of one.
        min_size: Images are resized so that the shorter side has this many pixels, or one of several sizes, drawn for
            each training image; evaluation has the last...
        max_size: ... unless the longer side would exceed this many.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image.

    Raises:
        ValueError: If an argument is out of range.
    """
    shared = _shared_arguments(
        num_classes=num_classes,
        channels=channels,
        head_channels=head_channels,
        strides=strides,
        anchor_sizes=anchor_sizes,
        min_size=min_size,
        max_size=max_size,
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        detections_per_img=detections_per_img,
    )
    return MaskRCNN(
        **shared,
        mask_roi_pool=_pooler(strides, 14),
        mask_head=MaskRCNNHeads(head_channels, (head_channels,) * 2, 1),
        mask_predictor=MaskRCNNPredictor(head_channels, head_channels, num_classes),
    )


def keypointrcnn_small(
    *,
    num_classes: int,
    num_keypoints: int,
    channels: int = 48,
    head_channels: int = 64,
    strides: Sequence[int] = (8, 16, 32),
    anchor_sizes: Sequence[float] = (32, 64, 128),
    min_size: int | Sequence[int] = 320,
    max_size: int = 640,
    score_thresh: float = 0.05,
    nms_thresh: float = 0.5,
    detections_per_img: int = 20,
) -> KeypointRCNN:
    """Return torchvision's Keypoint R-CNN on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_classes: Classes and the background; labels count from 1.
        num_keypoints: Points of an object.
        channels: As in `maskrcnn_small`.
        head_channels: Width of the pyramid and of the keypoint head; the box head has twice this width.
        strides: As in `maskrcnn_small`.
        anchor_sizes: As in `maskrcnn_small`.
        min_size: As in `maskrcnn_small`.
        max_size: As in `maskrcnn_small`.
        score_thresh: As in `maskrcnn_small`.
        nms_thresh: As in `maskrcnn_small`.
        detections_per_img: Most detections of one image; points are predicted for each.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check_count("num_keypoints", num_keypoints)
    shared = _shared_arguments(
        num_classes=num_classes,
        channels=channels,
        head_channels=head_channels,
        strides=strides,
        anchor_sizes=anchor_sizes,
        min_size=min_size,
        max_size=max_size,
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        detections_per_img=detections_per_img,
    )
    return KeypointRCNN(
        **shared,
        keypoint_roi_pool=_pooler(strides, 14),
        keypoint_head=KeypointRCNNHeads(head_channels, (head_channels,) * 3),
        keypoint_predictor=KeypointRCNNPredictor(head_channels, num_keypoints),
    )


def _shared_arguments(
    *,
    num_classes: int,
    channels: int,
    head_channels: int,
    strides: Sequence[int],
    anchor_sizes: Sequence[float],
    min_size: int | Sequence[int],
    max_size: int,
    score_thresh: float,
    nms_thresh: float,
    detections_per_img: int,
) -> dict[str, Any]:
    """Return the arguments of torchvision's R-CNNs for sizes, backbone, anchors, proposals and boxes."""
    _check_count("num_classes", num_classes, least=2)
    _check_count("head_channels", head_channels)
    _check_count("detections_per_img", detections_per_img)
    if not all(0 < size < math.inf for size in anchor_sizes):
        raise ValueError(f"anchor_sizes={list(anchor_sizes)} must be above 0, pixels of the resized image")
    if len(anchor_sizes) != len(strides):
        sizes = f"anchor_sizes={list(anchor_sizes)} and strides={list(strides)}"
        raise ValueError(f"{sizes} differ in length; give one size for each stride")
    # torchvision's 2000 and 1000 proposals take longer than a small network.
    num_candidates = max(300, detections_per_img)
    num_proposals = max(200, detections_per_img)
    return {
        "backbone": PyramidBackbone(channels=channels, out_channels=head_channels, strides=tuple(strides)),
        "min_size": min_size,
        "max_size": max_size,
        "image_mean": [IMAGE_MEAN] * 3,
        "image_std": [IMAGE_STD] * 3,
        "rpn_anchor_generator": AnchorGenerator(
            tuple((size,) for size in anchor_sizes), ((0.5, 1.0, 2.0),) * len(strides)
        ),
        "rpn_pre_nms_top_n_train": num_candidates,
        "rpn_pre_nms_top_n_test": num_candidates,
        "rpn_post_nms_top_n_train": num_proposals,
        "rpn_post_nms_top_n_test": num_proposals,
        "box_roi_pool": _pooler(strides, 7),
        "box_head": TwoMLPHead(head_channels * 7**2, 2 * head_channels),
        "box_predictor": FastRCNNPredictor(2 * head_channels, num_classes),
        "box_score_thresh": score_thresh,
        "box_nms_thresh": nms_thresh,
        "box_detections_per_img": detections_per_img,
        # Images for a small model have few objects, so most of torchvision's 512 would be background.
        "box_batch_size_per_image": 64,
    }


def _pooler(strides: Sequence[int], cells: int) -> MultiScaleRoIAlign:
    # Regions of 64 pixels are pooled from the map at stride 16, smaller ones from finer maps.
    return MultiScaleRoIAlign(
        [str(stride) for stride in strides], cells, sampling_ratio=2, canonical_scale=64, canonical_level=4
    )


def _check_count(name: str, value: int, *, least: int = 1) -> None:
    if not value >= least:
        raise ValueError(f"{name}={value} must be at least {least}")
