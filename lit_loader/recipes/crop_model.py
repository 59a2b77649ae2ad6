"""Parts of models of object crops: heads for classes and attributes, and backbones of torchvision's and timm's."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lit_loader.recipes.weights import build_model, image_mean_std, model_builder

__all__ = ["ClassifierBackbone", "CropModel", "classifier_backbone"]


class CropModel(nn.Module):
    """Base class of the models of `LandmarkTask`: one linear layer for the class, and one for each attribute.

    Args:
        channels: Channels of the map that is averaged for the labels.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.

    Attributes:
        pretrained_cfg: ``mean`` and ``std`` of the colours that the backbone expects, by name; may be empty.
    """

    def __init__(self, channels: int, *, num_classes: int, num_values: Mapping[str, int] | None) -> None:
        super().__init__()
        num_values = num_values or {}
        self.classify = nn.Linear(channels, num_classes) if num_classes else None
        # A list, since the names of a ModuleDict must not have dots.
        self.values = nn.ModuleList(nn.Linear(channels, count) for count in num_values.values())
        self.attribute_names = tuple(num_values)
        self.pretrained_cfg: Mapping[str, Sequence[float]] = {}

    def label_logits(self, features: Tensor) -> dict[str, Tensor | dict[str, Tensor]]:
        """Return the logits of the labels of a map ``(B, C, h, w)``.

        Returns:
            With classes ``class_logits`` float ``(B, num_classes)``; with attributes ``attribute_logits``, by name
            float ``(B, num_values)``.
        """
        outputs: dict[str, Tensor | dict[str, Tensor]] = {}
        if self.classify is None and not self.attribute_names:
            return outputs
        means = features.mean(dim=(-2, -1))
        if self.classify is not None:
            outputs["class_logits"] = self.classify(means)
        if self.attribute_names:
            heads = zip(self.attribute_names, self.values, strict=True)
            outputs["attribute_logits"] = {name: head(means) for name, head in heads}
        return outputs


@dataclass(frozen=True, kw_only=True)
class ClassifierBackbone:
    """The part of a classifier before its average pool.

    Attributes:
        module: See `feature_map`.
        channels: Channels of its map.
        stride: Pixels between the cells of its map.
        colours: ``mean`` and ``std`` of the colours that it expects.
    """

    module: nn.Module
    channels: int
    stride: int
    colours: Mapping[str, Sequence[float]]


def classifier_backbone(name: str, weights: str | None) -> ClassifierBackbone:
    """Return the backbone of a classifier, without the parameters that its map does not need being trained.

    Args:
        name: Name of the classifier, such as ``resnet18``, ``convnext_tiny`` or ``timm/resnet50``.
        weights: A name such as ``DEFAULT``, a file, or None for random ones. See `build_model`.

    Raises:
        ValueError: If the classifier is not known, or has no map; or the weights do not fit.
        OSError: If weights cannot be downloaded or read.
    """
    builder = model_builder(name, {})
    # 1000 classes as ImageNet's weights have; the classifier is cut off, so its head need not be replaced.
    classifier = build_model(builder, num_classes=1000, weights=weights, replace_heads=lambda model, num_classes: None)
    module = _without_classifier(classifier)
    channels, stride = _map_of(module, name)
    # Read here: torchvision knows no weights of the finished model.
    mean, std = image_mean_std(classifier, builder, weights)
    return ClassifierBackbone(module=module, channels=channels, stride=stride, colours={"mean": mean, "std": std})


def _without_classifier(model: nn.Module) -> nn.Module:
    """Return the part of a classifier before its average pool."""
    if hasattr(model, "forward_features"):  # timm's
        cast(Any, model).reset_classifier(0)
        return model
    # torchvision's classifiers call their children in order, and name what follows the last map in one of these ways.
    ends = ("avgpool", "classifier", "fc", "head", "heads")
    parts = itertools.takewhile(lambda part: part[0] not in ends, model.named_children())
    return nn.Sequential(OrderedDict(parts))


def _map_of(trunk: nn.Module, name: str) -> tuple[int, int]:
    """Return channels and stride of a backbone's map, and freeze the parameters that it does not need.

    Raises:
        ValueError: If the output is not a map whose cells are squares of 4, 8, 16 or 32 pixels.
    """
    height = 64
    width = 96  # another than the height, so that swapped axes are noticed
    problem: Exception | None = None
    # Batch normalisation in training mode would count this image of zeros in its running statistics.
    trunk.eval()
    try:
        features = getattr(trunk, "forward_features", trunk)(torch.zeros(1, 3, height, width))
        shape: tuple[int, ...] = tuple(features.shape)
        output = f"{shape} for images of {height} x {width}"
    except Exception as error:  # a layer that expects another input may raise anything
        shape = ()
        problem = error
        output = f"{type(error).__name__}: {error}"
    strides = [s for s in (4, 8, 16, 32) if shape[2:] == (height // s, width // s)]
    if not strides:
        raise ValueError(
            f"backbone={name!r} has no map before its classifier, (1, C, 64 / s, 96 / s) for a stride s: {output}; "
            "give a convolutional one, such as resnet50, convnext_tiny, mobilenet_v3_large or timm/resnet50"
        ) from problem
    # Parameters without a gradient do not contribute to the map. This draws no random numbers.
    features.sum().backward()
    for parameter in trunk.parameters():
        # What remains of timm's heads has no gradient, and DDP would wait for it.
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    trunk.train()
    return shape[1], strides[0]
