"""Object detectors of Hugging Face's transformers, such as RT-DETR, D-FINE and DETR, for `DetectionTask`."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image

from lit_loader.errors import LitLoaderError, SettingError
from lit_loader.foundation.extras import require
from lit_loader.types import FIRST_LABEL

__all__ = ["TransformersDetector", "transformers_detector"]

# Image processors of the published weights of types for which transformers has no default.
_PROCESSORS: Final = {
    "d_fine": "RTDetrImageProcessor",
    "dab-detr": "ConditionalDetrImageProcessor",
    "rt_detr_v2": "RTDetrImageProcessor",
}
# Layers of the decoder, of denoising queries and of the encoder: `loss_giou_aux_2`, `loss_bbox_3`, `loss_ce_enc`.
_LAYER: Final = re.compile(r"(_aux|_dn|_enc)?(_\d+)?$")


class TransformersDetector(nn.Module):
    """A detector of transformers with the signature of torchvision's detectors.

    Images are resized, normalised and padded here, on their device, by the model's image processor. Boxes are relative
    to the image without padding, as in the published weights of DETR and its successors.

    Args:
        detector: A model of ``AutoModelForObjectDetection``; class ``i`` is label ``i + 1``.
        processor: Its image processor.
    """

    def __init__(self, detector: nn.Module, processor: Any) -> None:
        super().__init__()
        self.detector = detector
        self.processor = processor
        # YOLOS, for one, has no use for the mask of padding.
        self.takes_mask = "pixel_mask" in inspect.signature(detector.forward).parameters

    def forward(self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]] | None = None) -> Any:
        """Return weighted losses if there are targets, else detections.

        Args:
            images: float in [0, 1], ``(3, H, W)`` each, of any sizes.
            targets: One dict an image: ``boxes`` float ``(n, 4)``, xyxy in pixels, ``labels`` int64 ``(n,)`` from 1.

        Returns:
            Losses by name, each summed over the layers, whose sum is the loss that transformers computes; or one dict
            an image with ``boxes`` float ``(n, 4)``, xyxy in pixels of the image, ``labels`` int64 ``(n,)`` from 1 and
            ``scores`` float ``(n,)``.
        """
        inputs = self.processor(images=list(images), do_rescale=False, input_data_format="channels_first")
        if not self.takes_mask:
            inputs.pop("pixel_mask", None)
        if targets is not None:
            labels = [
                {"class_labels": target["labels"] - FIRST_LABEL, "boxes": relative_boxes(target["boxes"], image)}
                for target, image in zip(targets, images, strict=True)
            ]
            losses = weighted_losses(self.detector(**inputs, labels=labels))
            # RT-DETR's denoising is idle in a batch without objects.
            has_objects = any(len(target["labels"]) for target in targets)
            return losses if has_objects else with_all_gradients(losses, self)
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        outputs = self.detector(**inputs)
        rows = self.processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
        return [_detections(fields, size) for fields, size in zip(rows, sizes, strict=True)]


def weighted_losses(outputs: Any) -> dict[str, Tensor]:
    """Return the parts of the loss of a detector with their weights, summed over layers.

    Args:
        outputs: Output of a detector of transformers that was called with labels.
    """
    parts = {name: value for name, value in outputs.loss_dict.items() if value.requires_grad}
    # Some types weight the parts in `loss_dict`, others only in their sum, by settings of their own. The weight of a
    # part in the sum is its derivative; this walks only the few additions between the parts and the sum.
    weights = torch.autograd.grad(outputs.loss, list(parts.values()), retain_graph=True, allow_unused=True)
    named_weights = zip(parts.items(), weights, strict=True)
    return layer_sums({name: weight * value for (name, value), weight in named_weights if weight is not None})


def layer_sums(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum over layers of each kind of loss."""
    sums: dict[str, Tensor] = {}
    for name, value in losses.items():
        kind = _LAYER.sub("", name)
        sums[kind] = sums[kind] + value if kind in sums else value
    return sums


def with_all_gradients(losses: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return losses that depend on every trained parameter, since DDP waits for the gradient of each."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    zero = 0.0 * torch.stack([parameter.sum() for parameter in parameters]).sum()
    return {name: value + zero for name, value in losses.items()}


def transformers_detector(
    *,
    num_classes: int,
    name: str = "rt_detr",
    weights: str | None = None,
    image_size: int | None = None,
    config: Mapping[str, Any] | None = None,
    processor: Mapping[str, Any] | None = None,
) -> TransformersDetector:
    """Return an object detector of transformers; nothing from its files is executed.

    Args:
        num_classes: Classes and the background, which these models do not count.
        name: Type of the model, such as ``rt_detr``, ``d_fine``, ``detr`` or ``deformable_detr``; or the folder of a
            model in safetensors, or its name on Hugging Face's hub. A folder or a name brings the settings of the model
            and of its images.
        weights: ``"DEFAULT"`` loads the weights of the folder or of the name, whose head may have other classes; None
            gives random ones, and downloads no weights.
        image_size: Height and width to which images are resized, in pixels; None for the size of the image processor.
        config: Settings of the model that differ, by the names of its configuration class, such as ``num_queries``.
        processor: Settings of the image processor that differ, such as ``size``, ``do_normalize`` or ``image_mean``.

    Raises:
        SettingError: If a setting is unknown, or does not fit the others.
        LitLoaderError: If the folder or the name cannot be read, or holds pickles instead of safetensors.
        ImportError: If transformers is not installed.
    """
    transformers = require("transformers", "transformers")
    _check_weights(weights, name, is_type=name in transformers.CONFIG_MAPPING)
    overrides = dict(processor or {})
    if image_size is not None:
        overrides["size"] = {"height": image_size, "width": image_size}
    try:
        model_config = _model_config(transformers, name, config or {})
        image_processor = _image_processor(transformers, name, model_config, overrides)
        model_config.num_labels = num_classes - FIRST_LABEL
        detector = _build(transformers, name, model_config, loads=weights is not None)
    except OSError as error:
        raise LitLoaderError(
            f"name={name!r} is neither a type of transformers, nor can it be read as the folder of a model, or from "
            f"Hugging Face's hub: {_first_line(error)}",
            remedy="give the folder of a model with config.json, preprocessor_config.json and model.safetensors, such "
            "as one downloaded on a machine with a network, or a type such as rt_detr",
        ) from error
    return TransformersDetector(detector, image_processor)


def _check_weights(weights: str | None, name: str, *, is_type: bool) -> None:
    """Refuse weights that do not exist, or that are pickles."""
    if weights is None:
        return
    if weights != "DEFAULT":
        raise SettingError("weights", weights, "and the weights of the folder or the name are called DEFAULT")
    if is_type:
        rule = f"and {name} is a type of model, which has no weights"
        remedy = (
            "take the folder of a model as the builder's name, or its name on the hub, such as PekingU/rtdetr_r50vd"
        )
        raise SettingError("weights", weights, rule, remedy, settings={"weights": None})
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        raise LitLoaderError(
            f"the folder {name!r} has no weights in safetensors" + (f", only pickles: {pickles}" if pickles else ""),
            remedy="load the model with transformers where you trust its files, and call save_pretrained(FOLDER), "
            "which writes safetensors",
            settings={"weights": None},
        )


def _model_config(transformers: Any, name: str, overrides: Mapping[str, Any]) -> Any:
    """Return the configuration of a type, a folder or a name, with settings that differ.

    Raises:
        SettingError: If a setting is unknown, or the model detects no objects.
        OSError: If the folder or the name cannot be read.
    """
    if name in transformers.CONFIG_MAPPING:
        default = transformers.AutoConfig.for_model(name)
        _check_settings("config", overrides, default)
        config = transformers.AutoConfig.for_model(name, **overrides)
    else:
        try:
            default = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        except ValueError as error:  # code in the folder, or a type that this version does not know
            raise SettingError("name", name, f"cannot be read without its own code: {_first_line(error)}") from error
        _check_settings("config", overrides, default)
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **overrides)
    if type(config) not in transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING:
        types = ", ".join(sorted(kind.model_type for kind in transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING))
        raise SettingError("name", name, f"and {config.model_type} models detect no objects", f"take one of {types}")
    if getattr(config, "quantization_config", None) is not None:
        raise SettingError("name", name, "and its weights are quantized, so that they cannot be trained")
    return config


def _image_processor(transformers: Any, name: str, config: Any, overrides: Mapping[str, Any]) -> Any:
    """Return the image processor of a folder or a name, or the default one of a type, with settings that differ."""
    if name in transformers.CONFIG_MAPPING:
        if config.model_type in _PROCESSORS:
            processor = getattr(transformers, _PROCESSORS[config.model_type])()
        else:
            processor = transformers.IMAGE_PROCESSOR_MAPPING[type(config)]["torchvision"]()
    else:
        processor = transformers.AutoImageProcessor.from_pretrained(
            name, trust_remote_code=False, backend="torchvision"
        )
    if not overrides:
        return processor
    _check_settings("processor", overrides, processor)
    return type(processor).from_dict({**processor.to_dict(), **overrides})


def _build(transformers: Any, name: str, config: Any, *, loads: bool) -> nn.Module:
    # transformers' own attention: a configuration can name a kernel, code that would be downloaded. Single precision:
    # a configuration can name the half precision in which weights were saved.
    settings: dict[str, Any] = {"attn_implementation": None, "dtype": torch.float32, "trust_remote_code": False}
    auto = transformers.AutoModelForObjectDetection
    detector: nn.Module
    if not loads:
        detector = auto.from_config(config, **settings)
        return detector
    detector = auto.from_pretrained(name, config=config, use_safetensors=True, ignore_mismatched_sizes=True, **settings)
    # In evaluation mode after loading, as opposed to all other builders' models.
    return detector.train()


def _check_settings(argument: str, overrides: Mapping[str, Any], owner: Any) -> None:
    """Refuse settings that the owner does not have: transformers would store them, and never read them."""
    for key in overrides:
        if not hasattr(owner, key):
            matches = difflib.get_close_matches(key, [name for name in vars(owner) if name[0] != "_"], n=1)
            suggestion = f"did you mean {matches[0]}?" if matches else ""
            raise SettingError(
                f"{argument}.{key}", overrides[key], f"and {type(owner).__name__} has no such setting", suggestion
            )


def relative_boxes(boxes: Tensor, image: Tensor) -> Tensor:
    """Return boxes as centre and size in fractions of an image.

    Args:
        boxes: float ``(n, 4)``, xyxy in pixels.
        image: ``(3, H, W)``.
    """
    height, width = image.shape[-2:]
    x, y, box_width, box_height = box_convert(boxes.float(), "xyxy", "cxcywh").unbind(dim=1)
    return torch.stack([x / width, y / height, box_width / width, box_height / height], dim=1)


def _detections(fields: Mapping[str, Tensor], size: tuple[int, int]) -> dict[str, Tensor]:
    boxes = clip_boxes_to_image(fields["boxes"].float(), size)
    return {"boxes": boxes, "labels": fields["labels"] + FIRST_LABEL, "scores": fields["scores"].float()}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
