"""Models of heatmaps: a small one from scratch, and one on any backbone of torchvision or timm."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from lit_loader.recipes.network import PyramidBackbone, feature_map
from lit_loader.recipes.weights import build_model, image_mean_std, model_builder

__all__ = ["HeatmapModel", "heatmap_model", "heatmaps_small"]

_DECONV_CHANNELS: Final = 256
_STRIDE: Final = 4


class HeatmapModel(nn.Module):
    """Heatmaps of points on the refined map of a backbone, and classes of its averaged map.

    Args:
        backbone: See `feature_map`.
        refine: Module that computes the map of the heatmaps from the backbone's map.
        channels: Channels of the backbone's map, and of the refined map.
        strides: Pixels between the cells of the backbone's map, and of the refined map.
        num_keypoints: Points K.
        num_classes: Classes, 0 for none.

    Attributes:
        stride: Pixels between the cells of a heatmap.
        pretrained_cfg: ``mean`` and ``std`` of the colours that the backbone expects, by name; may be empty.
    """

    def __init__(
        self,
        backbone: nn.Module,
        refine: nn.Module,
        *,
        channels: tuple[int, int],
        strides: tuple[int, int],
        num_keypoints: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.refine = refine
        self.backbone_stride, self.stride = strides
        self.heatmaps = nn.Conv2d(channels[1], num_keypoints, 1)
        # On the coarse map: the class needs no more resolution, and the refined map is trained for points.
        self.classify = nn.Linear(channels[0], num_classes) if num_classes else None
        self.pretrained_cfg: dict[str, Sequence[float]] = {}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the heatmaps' logits, and the classes'.

        Args:
            images: Normalised images, float, shape ``(B, 3, H, W)``.

        Returns:
            ``heatmaps`` float ``(B, K, ceil(H / stride), ceil(W / stride))``, and with classes ``class_logits`` float
            ``(B, num_classes)``.
        """
        features = feature_map(self.backbone, images, stride=self.backbone_stride)
        # Upsampling may exceed a map whose side was rounded up at the coarser stride; those cells see only padding.
        height, width = (-(-side // self.stride) for side in images.shape[-2:])
        outputs = {"heatmaps": self.heatmaps(self.refine(features))[..., :height, :width]}
        if self.classify is not None:
            outputs["class_logits"] = self.classify(features.mean(dim=(-2, -1)))
        return outputs


def heatmaps_small(
    *, num_keypoints: int, num_classes: int = 0, channels: int = 48, head_channels: int = 64, stride: int = 4
) -> HeatmapModel:
    """Return heatmaps on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head.
        stride: Pixels between the cells of a heatmap, 4, 8, 16 or 32.

    Raises:
        ValueError: If an argument is out of range.
    """
    return HeatmapModel(
        PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,)),
        Conv2dNormActivation(head_channels, head_channels),
        channels=(head_channels, head_channels),
        strides=(stride, stride),
        num_keypoints=num_keypoints,
        num_classes=num_classes,
    )


def heatmap_model(
    *, num_keypoints: int, num_classes: int = 0, backbone: str = "resnet18", weights: str | None = None
) -> HeatmapModel:
    """Return heatmaps at stride 4 on the last map of a classifier: deconvolutions, then a convolution of one cell.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        backbone: Name of the classifier, such as ``resnet18``, ``convnext_tiny`` or ``timm/resnet50``.
        weights: Of the classifier: a name such as ``DEFAULT``, a file, or None for random ones. See `build_model`.

    Raises:
        ValueError: If the classifier is not known, or has no map; or the weights do not fit.
        OSError: If weights cannot be downloaded or read.

    Source:
        Xiao et al. 2018, "Simple Baselines for Human Pose Estimation and Tracking": three deconvolutions of 256
        channels after stride 32, and their first weights.
    """
    builder = model_builder(backbone, {})
    # 1000 classes as ImageNet's weights have; the classifier is cut off, so its head need not be replaced.
    classifier = build_model(builder, num_classes=1000, weights=weights, replace_heads=lambda model, num_classes: None)
    trunk = _without_classifier(classifier)
    channels, stride = _map_of(trunk, backbone)
    refine = nn.Sequential()
    head_channels = channels
    # Each block doubles the sides of the map, from the backbone's stride to 4.
    for _ in range((stride // _STRIDE).bit_length() - 1):
        deconv = nn.ConvTranspose2d(head_channels, _DECONV_CHANNELS, 4, stride=2, padding=1, bias=False)
        refine.append(nn.Sequential(deconv, nn.BatchNorm2d(_DECONV_CHANNELS), nn.ReLU()))
        head_channels = _DECONV_CHANNELS
    model = HeatmapModel(
        trunk,
        refine,
        channels=(channels, head_channels),
        strides=(stride, _STRIDE),
        num_keypoints=num_keypoints,
        num_classes=num_classes,
    )
    # The paper's first weights: all heatmaps start almost flat.
    for part in (*model.refine.modules(), model.heatmaps):
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, std=0.001)
    nn.init.zeros_(cast(Tensor, model.heatmaps.bias))
    # `image_mean_std` reads it from the finished model, for which torchvision knows no weights.
    mean, std = image_mean_std(classifier, builder, weights)
    model.pretrained_cfg = {"mean": mean, "std": std}
    return model


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
