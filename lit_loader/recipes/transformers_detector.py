"""Object detectors of Hugging Face's transformers, such as RT-DETR, D-FINE and DETR, for `DetectionTask`."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image

from lit_loader.errors import LitLoaderError, SettingError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.recipes.weights import differ_in_outputs
from lit_loader.types import FIRST_LABEL

__all__ = ["TransformersDetector", "transformers_detector"]

# Image processors of the published weights of types for which transformers has no default.
_PROCESSORS: Final = {
    "d_fine": "RTDetrImageProcessor",
    "dab-detr": "ConditionalDetrImageProcessor",
    "rt_detr_v2": "RTDetrImageProcessor",
}
# Types that the tests train.
_TRIED: Final = "rt_detr, rt_detr_v2, d_fine, detr, conditional_detr, deformable_detr, dab-detr or yolos"
# Types whose image processor does not pad, so that images need one size; it is divided five times by 2.
_SQUARE: Final = ("rt_detr", "rt_detr_v2", "d_fine")
_STEP: Final = 32
_PROCESSOR_SETTINGS: Final = (
    "size",
    "do_resize",
    "resample",
    "do_normalize",
    "image_mean",
    "image_std",
    "do_pad",
    "pad_size",
)
# Limits of settings from files, far above any published model.
_MAX_NUMBER: Final = 100_000
_MAX_PIXELS: Final = 4096
_MAX_WEIGHTS: Final = 2_000_000_000
_MIN_TENSOR: Final = 200_000
_MAX_TEXT: Final = 300  # characters of another package's error
# Layers of the decoder, of denoising queries and of the encoder: `loss_giou_aux_2`, `loss_bbox_3`, `loss_ce_enc`.
_LAYER: Final = re.compile(r"(_aux|_dn|_enc)?(_\d+)?$")


class TransformersDetector(nn.Module):
    """A detector of transformers with the signature of torchvision's detectors.

    Images are resized, normalised and padded here, on their device, by the model's image processor. Boxes are relative
    to the image without padding, as in the published weights of DETR and its successors. With several devices, each
    divides its losses by the number of boxes in its own batch, as transformers does without accelerate.

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
        check_single_precision(self)
        inputs = self.processor(images=list(images), do_rescale=False, input_data_format="channels_first")
        if not self.takes_mask:
            inputs.pop("pixel_mask", None)
        if targets is not None:
            labels = [
                {"class_labels": target["labels"] - FIRST_LABEL, "boxes": relative_boxes(target["boxes"], image)}
                for target, image in zip(targets, images, strict=True)
            ]
            # RT-DETR's denoising is idle in a batch without objects, and its heads of layers without auxiliary losses.
            return with_all_gradients(weighted_losses(self.detector(**inputs, labels=labels)), self)
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        outputs = self.detector(**inputs)
        # In bfloat16, scores would tie, and coordinates above 256 would be rounded to 2 pixels.
        outputs.logits = outputs.logits.float()
        outputs.pred_boxes = outputs.pred_boxes.float()
        rows = self.processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
        return [_detections(fields, size) for fields, size in zip(rows, sizes, strict=True)]

    def convert_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file that this module wrote.

        Raises:
            ValueError: If the names are transformers' own, which only transformers can convert.
        """
        if any(name.startswith("detector.") for name in state):
            return dict(state)
        raise ValueError(
            "the file is none of this package: for the model.safetensors of a folder, give the folder as the "
            "builder's name (model.model.name=FOLDER), and weights=DEFAULT"
        )


def check_single_precision(model: nn.Module) -> None:
    """Refuse a model in half precision: the costs of matching boxes exist in single precision only."""
    dtypes = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
    if dtypes:
        raise ValueError(
            f"expected a {type(model).__name__} in float32, got {dtypes.pop()}; pass precision='bf16-mixed' or "
            "'32-true' to the trainer (trainer.precision=bf16-mixed)"
        )


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
    revision: str | None = None,
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
        revision: Branch, tag or commit of a name on the hub; None for its newest version.
        image_size: Height and width to which images are resized, in pixels; None for the size of the image processor.
        config: Settings of the model that differ, by the names of its configuration class, such as ``num_queries``.
        processor: Settings of the image processor that differ, such as ``size``, ``do_normalize`` or ``image_mean``.

    Raises:
        SettingError: If a setting is unknown, or does not fit the others.
        LitLoaderError: If the folder or the name cannot be read, holds pickles instead of safetensors, the weights of
            another model, or settings beyond all published models.
        ImportError: If transformers is not installed.
    """
    transformers = require("transformers", "transformers")
    is_type = name in transformers.CONFIG_MAPPING
    _check_weights(weights, name, is_type=is_type)
    if revision is not None and (is_type or Path(name).is_dir()):
        raise SettingError("revision", revision, f"is for names on the hub, and name={name!r} is none")
    with _reading(name, "config.json", is_type=is_type):
        model_config = _model_config(transformers, name, revision, config or {}, is_type=is_type)
        model_config.num_labels = num_classes - FIRST_LABEL
        if not is_type:
            _check_memory(transformers, model_config)
    with _reading(name, "preprocessor_config.json", is_type=is_type):
        image_processor = _image_processor(
            transformers, name, revision, model_config, _processor_settings(processor or {}, image_size)
        )
    _check_size(image_processor.size, model_config.model_type, image_size)
    with _reading(name, "config.json" if weights is None else "model.safetensors", is_type=is_type):
        detector = _build(transformers, name, revision, model_config, loads=weights is not None)
    return TransformersDetector(detector, image_processor)


@contextmanager
def _reading(name: str, file: str, *, is_type: bool) -> Iterator[None]:
    """Name the file in errors of any type: transformers and its packages raise a dozen for damaged or hostile files."""
    try:
        yield
    except (SettingError, LitLoaderError, ImportError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {printable(' '.join(str(error).split())[:_MAX_TEXT])}"
        if is_type:
            raise LitLoaderError(f"config or processor does not fit the type {name}: {text}") from error
        if Path(name).is_dir():
            raise LitLoaderError(f"{file} of the folder {name!r} cannot be read: {text}") from error
        raise LitLoaderError(
            f"name={name!r} is neither a type of transformers nor a folder, and {file} cannot be read from Hugging "
            f"Face's hub: {text}",
            remedy="give the folder of a model with config.json, preprocessor_config.json and model.safetensors, such "
            "as one downloaded on a machine with a network, or a type such as rt_detr",
        ) from error


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


def _model_config(
    transformers: Any, name: str, revision: str | None, overrides: Mapping[str, Any], *, is_type: bool
) -> Any:
    """Return the configuration of a type, a folder or a name, with settings that differ."""
    if is_type:
        configure = partial(transformers.AutoConfig.for_model, name)
    else:
        values, _ = transformers.PretrainedConfig.get_config_dict(name, revision=revision)
        _check_values("config.json", values, _MAX_NUMBER)
        configure = partial(transformers.AutoConfig.from_pretrained, name, revision=revision, trust_remote_code=False)
    config = configure()
    if type(config) not in transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING:
        raise SettingError("name", name, f"and {config.model_type} models detect no objects", f"take {_TRIED}")
    if config.model_type == "rf_detr":
        raise SettingError("name", name, "is an RF-DETR", "build it with rfdetr_detector (model=rfdetr)")
    if getattr(config, "quantization_config", None) is not None:
        raise SettingError("name", name, "and its weights are quantized, so that they cannot be trained")
    # Settings that all configurations have are set here, such as classes and precision, or change no detector.
    names = {key for key in vars(config).keys() - vars(transformers.PretrainedConfig()).keys() if key[0] != "_"}
    _check_names("config", overrides, names | config.attribute_map.keys(), type(config).__name__)
    config = configure(**overrides)
    # The weights of the folder include the backbone; timm would download others.
    if "backbone_config" not in overrides and hasattr(config, "backbone_config"):
        backbone = config.backbone_config
        if getattr(backbone, "use_pretrained_backbone", False):
            backbone.use_pretrained_backbone = False
    return config


def _processor_settings(settings: Mapping[str, Any], image_size: int | None) -> dict[str, Any]:
    """Return the settings of an image processor that differ."""
    _check_names("processor", settings, _PROCESSOR_SETTINGS, "an image processor")
    if image_size is None:
        return dict(settings)
    if "size" in settings:
        raise SettingError("processor.size", settings["size"], f"and image_size={image_size} set the same size")
    return {**settings, "size": {"height": image_size, "width": image_size}}


def _image_processor(
    transformers: Any, name: str, revision: str | None, config: Any, overrides: Mapping[str, Any]
) -> Any:
    """Return the image processor of a folder or a name, or the default one of a type, with settings that differ."""
    if name not in transformers.CONFIG_MAPPING:
        processor = transformers.AutoImageProcessor.from_pretrained(
            name, revision=revision, trust_remote_code=False, backend="torchvision"
        )
    elif config.model_type in _PROCESSORS:
        processor = getattr(transformers, _PROCESSORS[config.model_type])()
    else:
        processor = transformers.IMAGE_PROCESSOR_MAPPING[type(config)]["torchvision"]()
    if not hasattr(processor, "post_process_object_detection"):
        raise LitLoaderError(
            f"preprocessor_config.json of {name!r} names a {type(processor).__name__}, which is for no detector"
        )
    if overrides:
        processor = type(processor).from_dict({**processor.to_dict(), **overrides})
    _check_values("preprocessor_config.json", processor.to_dict(), _MAX_PIXELS)
    return processor


def _check_size(size: Any, model_type: str, image_size: int | None) -> None:
    """Refuse sizes of images that the model cannot take."""
    pixels = {key: value for key, value in dict(size).items() if value is not None}
    argument = "processor.size" if image_size is None else "image_size"
    value = pixels if image_size is None else image_size
    if min(pixels.values(), default=0) < _STEP:
        raise SettingError(argument, value, f"must be at least {_STEP} pixels")
    is_square = pixels.keys() == {"height", "width"} and all(number % _STEP == 0 for number in pixels.values())
    if model_type in _SQUARE and not is_square:
        raise SettingError(argument, value, f"must be a height and a width in multiples of {_STEP} for {model_type}")


def _check_memory(transformers: Any, config: Any) -> None:
    """Refuse a model that would take unbounded memory, by building it without memory for its weights."""
    total = 0

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        """Stop while the model is built, since a million small layers also take gigabytes."""
        nonlocal total
        total += max(parameter.numel() if parameter is not None else 0, _MIN_TENSOR)
        if total > _MAX_WEIGHTS:
            raise LitLoaderError(f"config.json describes a model of more than {_MAX_WEIGHTS:,} weights")

    handle = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            transformers.AutoModelForObjectDetection.from_config(config, attn_implementation=None)
    finally:
        handle.remove()


def _build(transformers: Any, name: str, revision: str | None, config: Any, *, loads: bool) -> nn.Module:
    # transformers' own attention: a configuration can name a kernel, code that would be downloaded. Single precision:
    # a configuration can name the half precision in which weights were saved.
    settings: dict[str, Any] = {"attn_implementation": None, "dtype": torch.float32, "trust_remote_code": False}
    auto = transformers.AutoModelForObjectDetection
    detector: nn.Module
    if not loads:
        detector = auto.from_config(config, **settings)
        return detector
    settings |= {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    detector, info = auto.from_pretrained(name, config=config, revision=revision, **settings)
    # Files from before torch 0.4.1 have no counts of batches.
    missing = sorted(key for key in info["missing_keys"] if not key.endswith("num_batches_tracked"))
    mismatches = [key for key, *shapes in info["mismatched_keys"] if not differ_in_outputs(*shapes, dim=0)]
    # transformers itself warns of unexpected tensors, such as the denoising of RT-DETR with num_denoising=0.
    problems = {"missing": missing, "of another shape": sorted(mismatches)}
    parts = [f"{len(keys)} tensors are {problem}, such as {keys[0]}" for problem, keys in problems.items() if keys]
    if parts:
        raise LitLoaderError(
            f"the weights of name={name!r} do not fit a {type(detector).__name__} with these settings: "
            f"{printable('; '.join(parts))}",
            remedy="give the weights that belong to config.json",
        )
    # In evaluation mode after loading, as opposed to all other builders' models.
    return detector.train()


def _check_names(argument: str, overrides: Mapping[str, Any], names: Collection[str], owner: str) -> None:
    """Refuse settings that do nothing: transformers would store them, and never read them."""
    for key in overrides:
        if key not in names:
            matches = difflib.get_close_matches(key, names, n=1)
            remedy = f"did you mean {matches[0]}?" if matches else f"give one of {', '.join(sorted(names))}"
            raise SettingError(f"{argument}.{key}", overrides[key], f"and {owner} has no such setting", remedy)


def _check_values(file: str, values: Any, limit: int) -> None:
    """Refuse numbers in a file beyond any real model, and backbones from other folders or names."""
    if isinstance(values, Mapping):
        backbone = values.get("backbone")
        # Names of timm's architectures have no slash or colon, as opposed to local-dir:FOLDER and hf_hub:NAME.
        is_timm = isinstance(backbone, str) and re.fullmatch(r"[\w.]+", backbone) is not None
        if backbone is not None and not (is_timm and values.get("use_timm_backbone", True)):
            rule = "expected an architecture of timm"
            raise LitLoaderError(f"{file} names the backbone {printable(str(backbone))!r} of another model; {rule}")
    if isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            _check_values(file, value, limit)
    elif isinstance(values, int | float) and abs(values) > limit:
        raise LitLoaderError(f"{file} contains the number {values}; expected at most {limit:,}")


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
