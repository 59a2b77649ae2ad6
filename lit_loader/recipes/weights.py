"""Models by name or by callable, with weights by name or from a file."""

from __future__ import annotations

import argparse
import difflib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.ops.misc import FrozenBatchNorm2d

from lit_loader.errors import SettingError
from lit_loader.foundation.extras import require

__all__ = [
    "ModelBuilder",
    "build_model",
    "freeze_batch_norm",
    "image_mean_std",
    "load_weights",
    "model_builder",
    "takes_argument",
]

_log = logging.getLogger(__name__)

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
_COUNT: Final = ".num_batches_tracked"

ModelBuilder: TypeAlias = Callable[..., nn.Module]
"""Called with ``num_classes=`` and, where it has them, ``weights=`` and ``weights_backbone=``, as torchvision's are."""


def model_builder(model: str | ModelBuilder, own: Mapping[str, ModelBuilder]) -> ModelBuilder:
    """Return the builder of a model.

    Args:
        model: A builder, which is returned as it is; a name of torchvision's, as ``torchvision.models.list_models()``
            has it; ``timm/NAME``; or a name among ``own``.
        own: This package's builders by name.

    Raises:
        ValueError: If there is no model of that name.
        ImportError: If timm is not installed.
    """
    if not isinstance(model, str):
        return model
    if model in own:
        return own[model]
    if model.startswith("timm/"):
        require("timm", "timm")
        return partial(_timm_model, model.removeprefix("timm/"))
    known = [*own, *models.list_models()]
    if model not in known:
        close = difflib.get_close_matches(model, known, n=3)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(
            f"model={model!r} is not known; {meant}give a name of torchvision.models.list_models(), timm/NAME, or one "
            f"of {', '.join(own)}"
        )
    builder: ModelBuilder = models.get_model_builder(model)
    return builder


def build_model(
    builder: ModelBuilder,
    *,
    num_classes: int,
    weights: str | None,
    replace_heads: Callable[[nn.Module, int], None],
) -> nn.Module:
    """Return a model for a number of classes.

    Args:
        builder: See `ModelBuilder`.
        num_classes: Classes, with the background where the builder counts it.
        weights: A name of the builder's weights, such as ``DEFAULT`` or ``COCO_V1``, which may have another number of
            classes; a file, see `load_weights`; or None for random ones, when nothing is downloaded unless the builder
            was given weights of its own.
        replace_heads: Puts heads for a number of classes in the place of a model's own.

    Raises:
        ValueError: If the builder has no such weights, or the file's do not fit.
        OSError: If the weights cannot be downloaded, or the file not be read.
    """
    if weights is None or _is_path(weights):
        absent = {name: None for name in ("weights", "weights_backbone") if takes_argument(builder, name)}
        model = _call(builder, num_classes=num_classes, **absent)
        if weights is not None:
            load_weights(model, weights)
        return model
    if not takes_argument(builder, "weights"):
        name = getattr(builder, "__name__", repr(builder))
        rule = f"is a name, and {name} has no weights by name"
        raise SettingError("weights", weights, rule, "give a file", settings={"weights": None})
    names = _weight_names(builder)
    if names is not None and weights not in names:
        raise ValueError(f"weights={weights!r} is neither a file nor one of {', '.join(names)}")
    model = _call(builder, weights=weights)
    replace_heads(model, num_classes)
    return model


def image_mean_std(
    model: nn.Module, builder: ModelBuilder, weights: str | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of the colours that a model expects.

    They are those of the model's ``pretrained_cfg``, as timm's models have it, or of the transforms of torchvision's
    weights, else ImageNet's.

    Args:
        model: What the builder returned.
        builder: See `ModelBuilder`.
        weights: As `build_model` took them.
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    if "mean" in config and "std" in config:
        return config["mean"], config["std"]
    given = builder.keywords.get("weights", weights) if isinstance(builder, partial) else weights
    preset: Any = None
    if given is not None and not _is_path(str(given)) and _weight_names(builder) is not None:
        function: Any = builder.func if isinstance(builder, partial) else builder
        preset = models.get_model_weights(function).verify(given).transforms()
    if hasattr(preset, "mean") and hasattr(preset, "std"):
        return preset.mean, preset.std
    return IMAGENET_MEAN, IMAGENET_STD


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a state dict from a file into a model.

    A tensor that differs in its first size alone, the number of outputs, is a head for other classes: it is left out
    and named in a warning of the log. See `freeze_batch_norm` for files of torchvision's detectors.

    Args:
        model: The model.
        path: A file of ``torch.save`` or ``.safetensors``; a Lightning checkpoint of a `Task`, of which the model is
            taken; or a checkpoint of torchvision's training scripts. Nothing in it is executed.

    Raises:
        ValueError: If the file holds no state dict, or one of another model.
        OSError: If it cannot be read.
    """
    state = _read_state(Path(path))
    freeze_batch_norm(model, state)
    own = model.state_dict()
    counts = {
        name for name in own.keys() - state.keys() if name.endswith(_COUNT)
    }  # not counted before torch 0.4.1
    state = {**state, **{name: own[name] for name in counts}}
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    other = [name for name in own.keys() & state.keys() if own[name].shape != state[name].shape]
    wrong = [name for name in other if own[name].shape[1:] != state[name].shape[1:] or not own[name].ndim]
    if missing or unknown or wrong:
        found = {"missing": missing, "unknown": unknown, "of another shape": sorted(wrong)}
        parts = "; ".join(
            f"{len(names)} {kind}, such as {names[0]}" for kind, names in found.items() if names
        )
        raise ValueError(f"weights={str(path)!r} are not those of a {type(model).__name__}: {parts}")
    model.load_state_dict({name: own[name] if name in other else value for name, value in state.items()})
    if other:
        _log.warning("weights=%s: heads for other classes were left out: %s", path, ", ".join(sorted(other)))


def freeze_batch_norm(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Freeze batch normalisation in a torchvision detector's backbone where a state dict has it frozen.

    torchvision builds some detectors, such as ``fasterrcnn_resnet50_fpn``, with frozen batch normalisation if it loads
    weights, and with a trained one if not. The state of a frozen one has no count of batches.

    Args:
        model: The model, which is changed.
        state: A state dict of it.
    """
    for detector, module in list(model.named_modules()):
        if not isinstance(module, FasterRCNN | FCOS | RetinaNet):
            continue
        for name, norm in list(module.backbone.named_modules()):
            key = ".".join(filter(None, (detector, "backbone", name)))
            if (
                isinstance(norm, nn.BatchNorm2d)
                and f"{key}.running_mean" in state
                and key + _COUNT not in state
            ):
                frozen = FrozenBatchNorm2d(norm.num_features, norm.eps)
                frozen.load_state_dict(norm.state_dict())
                module.backbone.set_submodule(name, frozen)


def _call(builder: ModelBuilder, **arguments: Any) -> nn.Module:
    try:
        return builder(**arguments)
    except (OSError, RuntimeError) as error:
        # torch.hub has a RuntimeError for a damaged download, the loading of a state dict another one.
        if isinstance(error, RuntimeError) and "hash" not in str(error):
            raise
        given, url = arguments.get("weights") or "the builder's own", _url(builder, arguments.get("weights"))
        raise OSError(
            f"weights={given!r} could not be downloaded: {error}; copy {url} from a "
            f"machine with a network into {Path(torch.hub.get_dir()) / 'checkpoints'} (those of timm: Hugging Face's "
            "cache), or give the path of their file, or none for random ones"
        ) from error


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        found: Any = _read_file(path)
    except (OSError, ImportError):
        raise
    except (
        Exception
    ) as error:  # pickle, zip, safetensors and torch have a dozen types for a damaged or hostile file
        raise ValueError(f"weights={str(path)!r} is not a file of tensors: {error}") from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):  # a checkpoint of a Task
        found = {
            k.removeprefix("model."): v for k, v in found["state_dict"].items() if k.startswith("model.")
        }
    elif isinstance(found, Mapping) and isinstance(
        found.get("model"), Mapping
    ):  # of torchvision's training scripts
        found = found["model"]
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"weights={str(path)!r} holds no state dict: expected tensors by name")
    return dict(found)


def _read_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"weights={str(path)!r} does not exist; give the path of a file, a name of weights, or none"
        )
    if path.suffix == ".safetensors":
        return require("safetensors.torch", "timm").load_file(path)
    # torchvision's training scripts keep their arguments beside the model; a Namespace holds values only.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _timm_model(
    name: str, *, num_classes: int = 1000, weights: str | None = None, **kwargs: Any
) -> nn.Module:
    """Return a model of timm's; ``weights`` DEFAULT are those of its name."""
    if weights not in (None, "DEFAULT"):
        raise ValueError(
            f"weights={weights!r}: timm names weights in the model's name, timm/NAME.TAG; give DEFAULT"
        )
    timm = require("timm", "timm")
    if not timm.list_models(name.partition(".")[0]):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise ValueError(f"timm has no model {name!r}; close are {', '.join(close) or 'none'}")
    model: nn.Module = timm.create_model(
        name, pretrained=weights is not None, num_classes=num_classes, **kwargs
    )
    return model


def _is_path(weights: str) -> bool:
    return "/" in weights or Path(weights).suffix in (".pt", ".pth", ".ckpt", ".safetensors")


def takes_argument(builder: ModelBuilder, name: str) -> bool:
    """Return whether a builder takes an argument that it was not given yet."""
    given = builder.keywords if isinstance(builder, partial) else {}
    return name in inspect.signature(builder).parameters and name not in given


def _url(builder: ModelBuilder, weights: Any) -> str:
    """Return where torchvision has the weights of one of its models."""
    given = builder.keywords.get("weights", weights) if isinstance(builder, partial) else weights
    if given is None or _weight_names(builder) is None:
        return "them"
    function: Any = builder.func if isinstance(builder, partial) else builder
    return str(models.get_model_weights(function).verify(given).url)


def _weight_names(builder: ModelBuilder) -> list[str] | None:
    """Return the names of a builder's weights, None if torchvision does not know them."""
    function: Any = builder.func if isinstance(builder, partial) else builder
    try:
        enum = models.get_model_weights(function)
    except ValueError:
        return None
    return list(enum.__members__)
