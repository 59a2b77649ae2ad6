"""Every task of the package on a net small enough to train in a test."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lit_loader.recipes import (
    ClassificationTask,
    DetectionTask,
    LandmarkTask,
    MultiTask,
    classifier_small,
    fcos_small,
    heatmaps_small,
)
from tests.support.drawn_batches import (
    CLASSES,
    CORNERS,
    FINISH,
    classification_batch,
    detection_batch,
    landmark_batch,
    multi_task_batch,
)

# By name: the task, the builder of its net, the net's arguments, the task's arguments, and a function of batches.
TASKS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], Any]] = {
    "detection": (
        DetectionTask,
        fcos_small,
        {"channels": 16, "head_channels": 32, "min_size": 64},
        {"class_names": CLASSES},
        detection_batch,
    ),
    "classification": (
        ClassificationTask,
        classifier_small,
        {"channels": 16, "head_channels": 16},
        {"class_names": CLASSES},
        classification_batch,
    ),
    "landmarks": (
        LandmarkTask,
        heatmaps_small,
        {"channels": 16, "head_channels": 16},
        {"keypoint_names": CORNERS},
        landmark_batch,
    ),
    "multi_task": (
        MultiTask,
        fcos_small,
        {"channels": 16, "head_channels": 32, "strides": (4, 8), "min_size": 64},
        {"class_names": CLASSES, "keypoint_names": CORNERS, "attributes": {"finish": FINISH}},
        multi_task_batch,
    ),
}


def small_builder(kind: str, net: dict[str, Any] | None = None) -> Any:
    """Return the builder of a task's net, with some arguments of the net replaced."""
    _, builder, arguments, _, _ = TASKS[kind]
    return partial(builder, **arguments | (net or {}))


def small_task(kind: str, net: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Return a task with the same initial weights at every call.

    Args:
        kind: A key of `TASKS`.
        net: Arguments of the net that replace the small ones.
        settings: Arguments of the task.
    """
    torch.manual_seed(0)
    task, _, _, arguments, _ = TASKS[kind]
    return task(small_builder(kind, net), **arguments | settings)


def constant_builder(output: Any, **attributes: Any) -> Any:
    """Return a builder of models that return ``output`` for every batch, and have further attributes."""

    class Constant(nn.Module):
        def __init__(self, **counts: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Any:
            return output

    for name, value in attributes.items():
        setattr(Constant, name, value)
    return Constant
