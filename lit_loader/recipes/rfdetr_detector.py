"""RF-DETR, the detector of the package rfdetr, for `DetectionTask`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import clip_boxes_to_image
from torchvision.transforms.v2.functional import normalize

from lit_loader.errors import SettingError
from lit_loader.foundation.extras import require
from lit_loader.recipes.transformers_detector import (
    check_single_precision,
    layer_sums,
    relative_boxes,
    with_all_gradients,
)
from lit_loader.recipes.weights import IMAGENET_MEAN, IMAGENET_STD
from lit_loader.types import FIRST_LABEL

__all__ = ["RFDETRDetector", "rfdetr_detector"]

# The sizes under the Apache licence.
_CONFIGS: Final = {
    "nano": "RFDETRNanoConfig",
    "small": "RFDETRSmallConfig",
    "medium": "RFDETRMediumConfig",
    "base": "RFDETRBaseConfig",
    "large": "RFDETRLargeConfig",
}
_PREFIX: Final = "detector."
# Settings of rfdetr that are set elsewhere, with the place.
_ELSEWHERE: Final = {
    "num_classes": "the data has the classes",
    "pretrain_weights": "give weights=FILE to DetectionTask (model.weights)",
    "resolution": "give image_size (model.model.image_size)",
    "device": "the trainer chooses the device (trainer.accelerator)",
    "segmentation_head": "masks are not supported",
    "use_grouppose_keypoints": "keypoints are not supported",
}


class RFDETRDetector(nn.Module):
    """RF-DETR with the signature of torchvision's detectors; images are resized and normalised here, on their device.

    Args:
        detector: The network; class ``i`` is label ``i + 1``, and its last output is for no object.
        criterion: Its losses, with their weights in ``weight_dict``.
        postprocess: Turns its outputs into boxes, classes and scores.
        image_size: Height and width of the images that the network sees, in pixels.
        positions: Patches along the side of the grid of the position embeddings.
    """

    def __init__(
        self, detector: nn.Module, criterion: nn.Module, postprocess: nn.Module, *, image_size: int, positions: int
    ) -> None:
        super().__init__()
        self.detector = detector
        self.criterion = criterion
        self.postprocess = postprocess
        self.image_size = image_size
        self.positions = positions

    def forward(self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]] | None = None) -> Any:
        """Return weighted losses if there are targets, else detections.

        Args:
            images: float in [0, 1], ``(3, H, W)`` each, of any sizes.
            targets: One dict an image: ``boxes`` float ``(n, 4)``, xyxy in pixels, ``labels`` int64 ``(n,)`` from 1.

        Returns:
            Losses by name, each summed over the layers; or one dict an image with ``boxes`` float ``(n, 4)``, xyxy in
            pixels of the image, ``labels`` int64 ``(n,)`` from 1 and ``scores`` float ``(n,)``.
        """
        check_single_precision(self)
        size = (self.image_size, self.image_size)
        # Without antialiasing, like rfdetr itself.
        squares = [functional.interpolate(image[None], size, mode="bilinear") for image in images]
        outputs = self.detector(normalize(torch.cat(squares), list(IMAGENET_MEAN), list(IMAGENET_STD)))
        if targets is not None:
            labels = [
                {"labels": target["labels"] - FIRST_LABEL, "boxes": relative_boxes(target["boxes"], image)}
                for target, image in zip(targets, images, strict=True)
            ]
            weights: Any = self.criterion.weight_dict
            parts = self.criterion(outputs, labels)
            losses = layer_sums({name: weights[name] * value for name, value in parts.items() if name in weights})
            # No output depends on the encoder's token for masks, and in base not on its last layer.
            return with_all_gradients(losses, self)
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        no_object = outputs["pred_logits"].shape[-1] - 1
        # In bfloat16, scores would tie, and coordinates above 256 would be rounded to 2 pixels.
        outputs = {key: outputs[key].float() for key in ("pred_logits", "pred_boxes")}
        rows = self.postprocess(outputs, torch.tensor(sizes, device=images[0].device))
        return [_detections(fields, size, no_object) for fields, size in zip(rows, sizes, strict=True)]

    def convert_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file of rfdetr with the names of this module, and its position embeddings resized."""
        if any(name.startswith(_PREFIX) for name in state):
            return dict(state)
        converted = dict(state)
        require("rfdetr.models.weights", "rfdetr").interpolate_position_embeddings(converted, self.positions)
        return {_PREFIX + name: value for name, value in converted.items()}


def rfdetr_detector(
    *,
    num_classes: int,
    size: Literal["nano", "small", "medium", "base", "large"] = "small",
    image_size: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> RFDETRDetector:
    """Return RF-DETR with random weights; nothing is downloaded.

    Args:
        num_classes: Classes and the background.
        size: Size of the model.
        image_size: Height and width to which images are resized, in pixels; None for the 384 of nano, 512 of small, 576
            of medium, 560 of base or 704 of large.
        config: Settings of the model that differ, by the names of rfdetr's ``ModelConfig``, such as ``num_queries``.

    Raises:
        SettingError: If the size is unknown, ``config`` has a setting that belongs elsewhere, or ``image_size`` cannot
            be divided into patches and windows.
        ValueError: If a setting in ``config`` is unknown or of the wrong type.
        ImportError: If rfdetr is not installed.
    """
    if size not in _CONFIGS:
        raise SettingError("size", size, f"must be one of {', '.join(_CONFIGS)}")
    configs = require("rfdetr.config", "rfdetr")
    models = require("rfdetr.models", "rfdetr")
    settings = dict(config or {})
    for key in settings.keys() & _ELSEWHERE.keys():
        raise SettingError(f"config.{key}", settings[key], "is set elsewhere", _ELSEWHERE[key])
    if image_size is not None and image_size <= 0:
        raise SettingError("image_size", image_size, "must be positive")
    if image_size is not None:
        settings["resolution"] = image_size
    # A name of weights, which are not read here: without one, rfdetr would download a backbone.
    settings["pretrain_weights"] = "none.pth"
    settings["num_classes"] = num_classes - FIRST_LABEL
    model_config = getattr(configs, _CONFIGS[size])(**settings, device="cpu")
    step = model_config.patch_size * model_config.num_windows
    if model_config.resolution % step:
        raise SettingError("image_size", model_config.resolution, f"must be a multiple of {step} for {size}")
    train_config = configs.TrainConfig(dataset_dir=".", output_dir=".")
    criterion, postprocess = models.build_criterion_from_config(model_config, train_config)
    return RFDETRDetector(
        models.build_model_from_config(model_config, train_config),
        criterion,
        postprocess,
        image_size=model_config.resolution,
        positions=model_config.positional_encoding_size,
    )


def _detections(fields: Mapping[str, Tensor], size: tuple[int, int], no_object: int) -> dict[str, Tensor]:
    is_object = fields["labels"] < no_object
    boxes = clip_boxes_to_image(fields["boxes"][is_object].float(), size)
    return {
        "boxes": boxes,
        "labels": fields["labels"][is_object] + FIRST_LABEL,
        "scores": fields["scores"][is_object].float(),
    }
