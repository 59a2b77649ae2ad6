"""Models of heatmaps: a small one from scratch, and one on any backbone of torchvision or timm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from lit_loader.recipes.crop_model import CropModel, classifier_backbone
from lit_loader.recipes.network import PyramidBackbone, feature_map

__all__ = ["HeatmapModel", "heatmap_model", "heatmaps_small"]

_DECONV_CHANNELS: Final = 256
_STRIDE: Final = 4


class HeatmapModel(CropModel):
    """Heatmaps of points on the refined map of a backbone, and classes and attributes of its averaged map.

    Args:
        backbone: See `feature_map`.
        refine: Module that computes the map of the heatmaps from the backbone's map.
        channels: Channels of the backbone's map, and of the refined map.
        strides: Pixels between the cells of the backbone's map, and of the refined map.
        num_keypoints: Points K.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.

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
        num_values: Mapping[str, int] | None = None,
    ) -> None:
        # First, so that a seed gives the same first weights with and without attributes.
        heatmaps = nn.Conv2d(channels[1], num_keypoints, 1)
        # On the coarse map: a label needs no more resolution, and the refined map is trained for points.
        super().__init__(channels[0], num_classes=num_classes, num_values=num_values)
        self.backbone = backbone
        self.refine = refine
        self.backbone_stride, self.stride = strides
        self.heatmaps = heatmaps

    def forward(self, images: Tensor) -> dict[str, Tensor | dict[str, Tensor]]:
        """Return the logits of heatmaps, classes and attributes.

        Args:
            images: Normalised images, float, shape ``(B, 3, H, W)``.

        Returns:
            ``heatmaps`` float ``(B, K, ceil(H / stride), ceil(W / stride))``, and the entries of
            `CropModel.label_logits`.
        """
        features = feature_map(self.backbone, images, stride=self.backbone_stride)
        # Upsampling may exceed a map whose side was rounded up at the coarser stride; those cells see only padding.
        height, width = (-(-side // self.stride) for side in images.shape[-2:])
        heatmaps = self.heatmaps(self.refine(features))[..., :height, :width]
        return {"heatmaps": heatmaps, **self.label_logits(features)}


def heatmaps_small(
    *,
    num_keypoints: int,
    num_classes: int = 0,
    num_values: Mapping[str, int] | None = None,
    channels: int = 48,
    head_channels: int = 64,
    stride: int = 4,
) -> HeatmapModel:
    """Return heatmaps on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.
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
        num_values=num_values,
    )


def heatmap_model(
    *,
    num_keypoints: int,
    num_classes: int = 0,
    num_values: Mapping[str, int] | None = None,
    backbone: str = "resnet18",
    weights: str | None = None,
) -> HeatmapModel:
    """Return heatmaps at stride 4 on the last map of a classifier: deconvolutions, then a convolution of one cell.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.
        backbone: Name of the classifier, such as ``resnet18``, ``convnext_tiny`` or ``timm/resnet50``.
        weights: Of the classifier: a name such as ``DEFAULT``, a file, or None for random ones. See `build_model`.

    Raises:
        ValueError: If the classifier is not known, or has no map; or the weights do not fit.
        OSError: If weights cannot be downloaded or read.

    Source:
        Xiao et al. 2018, "Simple Baselines for Human Pose Estimation and Tracking": three deconvolutions of 256
        channels after stride 32, and their first weights.
    """
    trunk = classifier_backbone(backbone, weights)
    channels = trunk.channels
    stride = trunk.stride
    refine = nn.Sequential()
    head_channels = channels
    # Each block doubles the sides of the map, from the backbone's stride to 4.
    for _ in range((stride // _STRIDE).bit_length() - 1):
        deconv = nn.ConvTranspose2d(head_channels, _DECONV_CHANNELS, 4, stride=2, padding=1, bias=False)
        refine.append(nn.Sequential(deconv, nn.BatchNorm2d(_DECONV_CHANNELS), nn.ReLU()))
        head_channels = _DECONV_CHANNELS
    model = HeatmapModel(
        trunk.module,
        refine,
        channels=(channels, head_channels),
        strides=(stride, _STRIDE),
        num_keypoints=num_keypoints,
        num_classes=num_classes,
        num_values=num_values,
    )
    # The paper's first weights: all heatmaps start almost flat.
    for part in (*model.refine.modules(), model.heatmaps):
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, std=0.001)
    nn.init.zeros_(cast(Tensor, model.heatmaps.bias))
    model.pretrained_cfg = trunk.colours
    return model
