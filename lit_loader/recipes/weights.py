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
from torchvision.models import WeightsEnum
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.ops.misc import FrozenBatchNorm2d

from lit_loader.errors import LitLoaderError, SettingError
from lit_loader.foundation.extras import require

_log = logging.getLogger(__name__)

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
_COUNT: Final = ".num_batches_tracked"

ModelBuilder: TypeAlias = Callable[..., nn.Module]
"""Called with ``num_classes=`` and, where it has them, ``weights=`` and ``weights_backbone=``, as torchvision's are.

One that requires ``num_classes`` also gets it with the name of weights, and replaces heads itself."""


def model_builder(model: str | ModelBuilder, builders: Mapping[str, ModelBuilder]) -> ModelBuilder:
    """Return the builder of a model.

    Args:
        model: A builder, which is returned unchanged; a name in ``torchvision.models.list_models()``; ``timm/NAME``;
            or a name among ``builders``.
        builders: This package's builders by name.

    Raises:
        ValueError: If the name is unknown.
        ImportError: If timm is not installed.
    """
    if not isinstance(model, str):
        return model
    if model in builders:
        return builders[model]
    if model.startswith("timm/"):
        require("timm", "timm")
        return partial(_timm_model, model.removeprefix("timm/"))
    # Including torchvision's video and segmentation models: heads that do not fit are refused where they are replaced.
    names = [*builders, *models.list_models()]
    if model not in names:
        matches = difflib.get_close_matches(model, names, n=3)
        suggestion = f"did you mean {' or '.join(matches)}? " if matches else ""
        raise ValueError(
            f"model={model!r} is not known; {suggestion}give a name of torchvision.models.list_models(), timm/NAME, "
            f"or one of {', '.join(builders)}"
        )
    builder: ModelBuilder = models.get_model_builder(model)
    return builder


def build_model(
    builder: ModelBuilder,
    *,
    num_classes: int,
    weights: str | None,
    replace_heads: Callable[[nn.Module, int], None],
    counts: Mapping[str, int] | None = None,
) -> nn.Module:
    """Build a model for a number of classes.

    Args:
        builder: See `ModelBuilder`.
        num_classes: Number of classes, including the background if the builder counts it.
        weights: Name of the builder's weights, such as ``DEFAULT`` or ``COCO_V1``, which may have another number of
            classes; a file, see `load_weights`; or None for random weights. With None nothing is downloaded, unless
            weights are already bound to the builder.
        replace_heads: Replaces the heads of a model by heads for a number of classes.
        counts: Further arguments of the builder that fix the size of its heads, such as ``num_keypoints``. Weights by
            name also fix them, so ``replace_heads`` has to replace these heads as well.

    Raises:
        ValueError: If the builder has no such weights, or the weights of the file do not fit.
        OSError: If the weights cannot be downloaded, or the file cannot be read.
    """
    if weights is None or _is_path(weights):
        # torchvision's detectors download a backbone by default, so both arguments are passed as None.
        no_weights = {name: None for name in ("weights", "weights_backbone") if takes_argument(builder, name)}
        model = _call(builder, num_classes=num_classes, **(counts or {}), **no_weights)
        if weights is not None:
            load_weights(model, weights)
        return model
    if not takes_argument(builder, "weights"):
        name = getattr(builder, "__name__", repr(builder))
        rule = f"is a name, and {name} has no weights by name"
        raise SettingError("weights", weights, rule, "give a file", settings={"weights": None})
    known_weights = _known_weights(builder)
    if known_weights is not None and weights not in known_weights.__members__:
        raise ValueError(f"weights={weights!r} is neither a file nor one of {', '.join(known_weights.__members__)}")
    if _requires_argument(builder, "num_classes"):
        return _call(builder, num_classes=num_classes, weights=weights, **(counts or {}))
    # torchvision refuses a number of classes that differs from the weights', so the heads are replaced afterwards.
    model = _call(builder, weights=weights)
    replace_heads(model, num_classes)
    return model


def image_mean_std(
    model: nn.Module, builder: ModelBuilder, weights: str | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of the colours that a model expects.

    Taken from the model's ``pretrained_cfg`` (timm), or the transforms of torchvision's weights, or ImageNet.

    Args:
        model: Model from the builder.
        builder: See `ModelBuilder`.
        weights: As passed to `build_model`.
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    if "mean" in config and "std" in config:
        return config["mean"], config["std"]
    known_weights = _known_weights(builder)
    weights = _bound_weights(builder, weights)
    if weights is not None and not _is_path(str(weights)) and known_weights is not None:
        preset = known_weights.verify(weights).transforms()
        # Presets of detection have no colours: those models normalise by themselves.
        if hasattr(preset, "mean") and hasattr(preset, "std"):
            return preset.mean, preset.std
    return IMAGENET_MEAN, IMAGENET_STD


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a state dict from a file into a model.

    A tensor that differs only in the number of outputs belongs to a head for other classes or points: it is skipped and
    named in a warning of the log. See `freeze_batch_norm` for files of torchvision's detectors.

    Args:
        model: The model.
        path: A file of ``torch.save`` or ``.safetensors``, a Lightning checkpoint of a `Task`, or a checkpoint of
            torchvision's training scripts. Nothing in it is executed.

    Raises:
        ValueError: If the file contains no state dict, or the state dict of another model.
        OSError: If it cannot be read.
    """
    state = _read_state(Path(path))
    # Adapters of other packages' models, whose files name tensors as those packages do.
    convert = getattr(model, "convert_weights", None)
    if convert is not None:
        state = convert(state)
    freeze_batch_norm(model, state)
    model_state = model.state_dict()
    # Files from before torch 0.4.1 have no counts of batches.
    counts = {name for name in model_state.keys() - state.keys() if name.endswith(_COUNT)}
    state = {**state, **{name: model_state[name] for name in counts}}
    common = sorted(model_state.keys() & state.keys())
    resized = [name for name in common if model_state[name].shape != state[name].shape]
    # Outputs are the first size of a tensor, but the second of a transposed convolution's weight, as of Keypoint R-CNN.
    transposed = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.ConvTranspose2d)}
    mismatches = {
        "missing": sorted(model_state.keys() - state.keys()),
        "unknown": sorted(state.keys() - model_state.keys()),
        # A head may have another number of outputs; a 0-d tensor has none.
        "of another shape": [
            n
            for n in resized
            if not differ_in_outputs(model_state[n].shape, state[n].shape, dim=1 if n in transposed else 0)
        ],
    }
    parts = [f"{len(names)} {kind}, such as {names[0]}" for kind, names in mismatches.items() if names]
    if parts:
        raise ValueError(f"weights={str(path)!r} do not fit a {type(model).__name__}: {'; '.join(parts)}")
    # Strict loading, which needs every key: heads for other classes keep their initial tensors.
    model.load_state_dict({name: model_state[name] if name in resized else state[name] for name in state})
    if resized:
        _log.warning("weights=%s: heads for other classes were left out: %s", path, ", ".join(resized))


def differ_in_outputs(first: Sequence[int], second: Sequence[int], *, dim: int) -> bool:
    """Return True if two shapes of tensors are equal without a dimension that both have."""
    shapes = [list(first), list(second)]
    if min(map(len, shapes)) <= dim:
        return False
    return shapes[0][:dim] + shapes[0][dim + 1 :] == shapes[1][:dim] + shapes[1][dim + 1 :]


def freeze_batch_norm(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Freeze those batch normalisations of a torchvision detector's backbone that are frozen in a state dict.

    torchvision builds some detectors, such as ``fasterrcnn_resnet50_fpn``, with frozen batch normalisation if it loads
    weights, and with trainable batch normalisation otherwise. The state of a frozen one has no count of batches.

    Args:
        model: The model, modified in place.
        state: State dict of the model.
    """
    for detector, module in list(model.named_modules()):
        if not isinstance(module, FasterRCNN | FCOS | RetinaNet):
            continue
        # A list, because modules are replaced while it is read.
        for name, norm in list(module.backbone.named_modules()):
            key = ".".join(filter(None, (detector, "backbone", name)))
            if isinstance(norm, nn.BatchNorm2d) and f"{key}.running_mean" in state and key + _COUNT not in state:
                frozen = FrozenBatchNorm2d(norm.num_features, norm.eps)
                frozen.load_state_dict(norm.state_dict())
                module.backbone.set_submodule(name, frozen)


def _call(builder: ModelBuilder, **arguments: Any) -> nn.Module:
    try:
        return builder(**arguments)
    except (OSError, RuntimeError) as error:
        # torch.hub raises a RuntimeError about a hash for a damaged download; other RuntimeErrors are the model's.
        if isinstance(error, RuntimeError) and "hash" not in str(error):
            raise
        weights = arguments.get("weights")
        bound_weights = _bound_weights(builder, weights)
        known_weights = _known_weights(builder)
        url = "them" if bound_weights is None or known_weights is None else known_weights.verify(bound_weights).url
        raise _DownloadError(
            f"weights={weights or 'those bound to the builder'!r} could not be downloaded: {error}",
            remedy=f"copy {url} from a machine with a network into {Path(torch.hub.get_dir()) / 'checkpoints'} (for "
            "timm: Hugging Face's cache), or give the path of their file",
            settings={"weights": None},
        ) from error


class _DownloadError(LitLoaderError, OSError):
    """Weights cannot be downloaded."""


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        rule = "does not exist; give the path of a file, a name of weights, or none"
        raise FileNotFoundError(f"weights={str(path)!r} {rule}")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = require("safetensors.torch", "timm").load_file(path)
        else:
            # torchvision's training scripts also save their arguments; a Namespace can only contain values.
            with torch.serialization.safe_globals([argparse.Namespace]):
                state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ImportError):
        raise
    # pickle, zip, safetensors and torch raise a dozen types for a damaged or hostile file.
    except Exception as error:
        raise ValueError(f"weights={str(path)!r} is not a file of tensors: {error}") from error
    if isinstance(state, Mapping):
        if isinstance(state.get("state_dict"), Mapping):  # a checkpoint of a Task
            tensors = state["state_dict"].items()
            state = {name.removeprefix("model."): value for name, value in tensors if name.startswith("model.")}
        elif isinstance(state.get("model"), Mapping):  # a checkpoint of torchvision's training scripts
            state = state["model"]
    if not isinstance(state, Mapping) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"weights={str(path)!r} holds no state dict: expected tensors by name")
    return dict(state)


def _timm_model(name: str, *, num_classes: int = 1000, weights: str | None = None, **kwargs: Any) -> nn.Module:
    """Build a timm model; ``weights="DEFAULT"`` loads the pretrained weights of its name."""
    if weights not in (None, "DEFAULT"):
        raise ValueError(f"weights={weights!r}: timm names weights in the model's name, timm/NAME.TAG; give DEFAULT")
    # timm takes about a second to import, so only its own models import it.
    timm = require("timm", "timm")
    if not timm.list_models(name.partition(".")[0]):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise ValueError(f"timm has no model {name!r}; close are {', '.join(close) or 'none'}")
    model: nn.Module = timm.create_model(name, pretrained=weights is not None, num_classes=num_classes, **kwargs)
    return model


def _is_path(weights: str) -> bool:
    return "/" in weights or Path(weights).suffix in (".pt", ".pth", ".ckpt", ".safetensors")


def takes_argument(builder: ModelBuilder, name: str) -> bool:
    """Return True if a builder has a parameter of that name to which no argument is bound yet."""
    bound = builder.keywords if isinstance(builder, partial) else {}
    return name in inspect.signature(builder).parameters and name not in bound


def _requires_argument(builder: ModelBuilder, name: str) -> bool:
    """Return True if a builder cannot be called without an argument of that name."""
    parameter = inspect.signature(builder).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _bound_weights(builder: ModelBuilder, weights: Any) -> Any:
    """Return the weights bound to the builder, or ``weights`` without any."""
    return builder.keywords.get("weights", weights) if isinstance(builder, partial) else weights


def _known_weights(builder: ModelBuilder) -> type[WeightsEnum] | None:
    """Return torchvision's enumeration of a builder's weights, or None for a builder that it does not know."""
    try:
        weights_enum: type[WeightsEnum] = models.get_model_weights(
            builder.func if isinstance(builder, partial) else builder
        )
    except ValueError:
        return None
    return weights_enum
