"""Classes that an image does not label: their objects may be visible in it, so they are neither trained nor scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.ssd import SSD

from lit_loader.errors import LitLoaderError
from lit_loader.recipes.multi_task_model import MultiTaskModel

__all__ = ["drop_unlabelled", "training_losses"]

# Its sigmoid and its exponential are 0 in single precision, and it is finite in half precision.
_LOGIT: Final = -1e4


def drop_unlabelled(rows: Mapping[str, Tensor], unlabelled: Tensor | None) -> dict[str, Tensor]:
    """Return the rows of detections or objects whose class an image labels.

    Args:
        rows: Tensors with one row for each detection or object, among them ``labels``, int64 ``(N,)``.
        unlabelled: Labels of the classes that the image does not label, int64 ``(U,)``, or None for none.
    """
    if unlabelled is None:
        return dict(rows)
    is_labelled = ~torch.isin(rows["labels"], unlabelled)
    return {name: values[is_labelled] for name, values in rows.items()}


def training_losses(
    model: nn.Module,
    images: Sequence[Tensor],
    targets: Sequence[Mapping[str, Tensor]],
    *,
    class_names: Sequence[str],
    compiled: bool = False,
) -> dict[str, Tensor]:
    """Return the losses of a detector, to which the scores of unlabelled classes contribute neither value nor gradient.

    On an image that does not label a class, the class's logit becomes ``-1e4`` in every place: the focal loss of a
    place without an object is then 0, and a softmax is over the other classes. The logits of other images and classes
    stay the same.

    Args:
        model: A detector in training mode, or a `MultiTaskModel`.
        images: float in [0, 1], ``(3, H, W)`` each.
        targets: Targets of the model; ``unlabelled``, int64 ``(U,)``, has the labels of the classes that an image does
            not label. It may be absent, and no object of these classes may be among the others.
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        compiled: Whether the model is compiled; it then runs uncompiled where an image has unlabelled classes.

    Raises:
        LitLoaderError: If a class is unlabelled, and the model is not one of torchvision's that are known here.
    """
    unlabelled = [target.get("unlabelled") for target in targets]
    losses: dict[str, Tensor]
    if all(labels is None for labels in unlabelled):
        losses = model(images, targets)
        return losses
    fields = [{name: values for name, values in target.items() if name != "unlabelled"} for target in targets]
    detector = model.detector if isinstance(model, MultiTaskModel) else model
    # Compiled code does not look for hooks that were added later.
    eager: Any = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with eager, _filled_logits(detector, unlabelled, class_names):
        losses = model(images, fields)
    return losses


@contextmanager
def _filled_logits(
    detector: nn.Module, unlabelled: Sequence[Tensor | None], class_names: Sequence[str]
) -> Iterator[None]:
    """Fill the logits of unlabelled classes of each image while the detector runs.

    Args:
        detector: The detector, without the heads of other tasks.
        unlabelled: Labels of the unlabelled classes of each image, or None.
        class_names: Names of the classes, for the message.

    Raises:
        LitLoaderError: If the detector is of an unknown kind.
    """
    has_filled = False
    counts: list[int] = []

    def fill_dense(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        nonlocal has_filled
        has_filled = True
        # Logits (B, anchors, classes).
        return logits.masked_fill(_class_mask(logits, unlabelled)[:, None], _LOGIT)

    def count_proposals(module: nn.Module, inputs: Any) -> None:
        # Arguments of torchvision's poolers: feature maps, boxes of each image, sizes of images.
        counts[:] = map(len, inputs[1])

    def fill_proposals(module: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal has_filled
        has_filled = True
        logits, regression = outputs
        # Logits (proposals of all images, classes). Not repeat_interleave, which waits for the device.
        rows = [row.expand(count, -1) for row, count in zip(_class_mask(logits, unlabelled), counts, strict=True)]
        return logits.masked_fill(torch.cat(rows), _LOGIT), regression

    if isinstance(detector, FasterRCNN):
        heads = detector.roi_heads
        hooks = [
            heads.box_roi_pool.register_forward_pre_hook(count_proposals),
            heads.box_predictor.register_forward_hook(fill_proposals),
        ]
    elif isinstance(detector, RetinaNet | FCOS | SSD):
        hooks = [detector.head.classification_head.register_forward_hook(fill_dense)]
    else:
        names = [class_names[i - 1] for labels in unlabelled if labels is not None for i in labels.tolist()]
        raise _unknown_detector(detector, names)
    try:
        yield
    finally:
        # Hooks for one call only: a checkpoint, a copy or a pickle of the model has none.
        for hook in hooks:
            hook.remove()
    if not has_filled:
        raise RuntimeError(
            f"a hook of {type(detector).__name__} was not called, so unlabelled classes would be trained as absent; "
            "give the task compile=True instead of compiling parts of the model"
        )


def _unknown_detector(detector: nn.Module, unlabelled_names: Sequence[str]) -> LitLoaderError:
    """Return the error of a detector whose logits cannot be filled."""
    return LitLoaderError(
        f"{type(detector).__name__} trains on every class in every image, and an image does not label "
        f"{sorted(set(unlabelled_names))}",
        remedy="take torchvision's Faster R-CNN, Mask R-CNN, RetinaNet, FCOS, SSD or SSDlite, or fcos_small",
        settings={"missing": "absent"},
    )


def _class_mask(logits: Tensor, unlabelled: Sequence[Tensor | None]) -> Tensor:
    """Return a mask of unlabelled classes, bool ``(B, classes)`` on the device of the logits."""
    mask = torch.zeros(len(unlabelled), logits.shape[-1], dtype=torch.bool, device=logits.device)
    for row, labels in zip(mask, unlabelled, strict=True):
        if labels is not None:
            row.index_fill_(0, labels, True)
    return mask
