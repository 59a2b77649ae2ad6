"""Models that regress points: a small one from scratch, and one on any backbone of torchvision or timm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from lit_loader.recipes.crop_model import CropModel, classifier_backbone
from lit_loader.recipes.network import PyramidBackbone, feature_map

__all__ = ["RegressionModel", "regression_model", "regression_small"]


class RegressionModel(CropModel):
    """Coordinates of points by two linear layers on a backbone's map, and classes and attributes of its mean.

    The map is averaged over a grid of ``cells`` x ``cells`` parts of the crop before the first layer, which therefore
    takes crops of any size. A mean over the whole crop, as classifiers have it, would lose the positions.

    Args:
        backbone: See `feature_map`.
        channels: Channels of the backbone's map.
        stride: Pixels between its cells.
        num_keypoints: Points K.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.
        head_channels: Channels of the map that is averaged.
        hidden_channels: Width of the first linear layer.
        cells: Parts of the crop along each side.

    Attributes:
        pretrained_cfg: ``mean`` and ``std`` of the colours that the backbone expects, by name; may be empty.

    Raises:
        ValueError: If ``cells`` is below 1.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        channels: int,
        stride: int,
        num_keypoints: int,
        num_classes: int,
        num_values: Mapping[str, int] | None = None,
        head_channels: int = 64,
        hidden_channels: int = 256,
        cells: int = 4,
    ) -> None:
        if cells < 1:
            raise ValueError(f"cells={cells} must be at least 1")
        super().__init__(channels, num_classes=num_classes, num_values=num_values)
        self.backbone = backbone
        self.backbone_stride = stride
        self.cells = cells
        self.reduce = Conv2dNormActivation(channels, head_channels, kernel_size=1)
        self.points = nn.Sequential(
            nn.Flatten(),
            nn.Linear(head_channels * cells**2, hidden_channels),
            nn.ReLU(),
            nn.Linear(hidden_channels, 2 * num_keypoints),
        )

    def forward(self, images: Tensor) -> dict[str, Tensor | dict[str, Tensor]]:
        """Return the points, and the logits of classes and attributes.

        Args:
            images: Normalised images, float, shape ``(B, 3, H, W)``.

        Returns:
            ``points`` float ``(B, K, 2)``, x and y as shares of the crop's width and height, which may be outside of
            [0, 1]; and the entries of `CropModel.label_logits`.
        """
        features = feature_map(self.backbone, images, stride=self.backbone_stride)
        # Fewer channels before the grid, since the first linear layer has a weight for each channel of each part.
        offsets = self.points(average_cells(self.reduce(features), self.cells))
        # From the middle of the crop: with first weights near 0, all points start there.
        points = 0.5 + offsets.float().unflatten(1, (-1, 2))
        return {"points": points, **self.label_logits(features)}


def average_cells(features: Tensor, cells: int) -> Tensor:
    """Return the mean of a map over each part of a grid.

    Args:
        features: float ``(B, C, h, w)``, any h and w.
        cells: Parts along each side; their edges may cross cells of the map.

    Returns:
        float ``(B, C, cells, cells)``.
    """
    # Not `adaptive_avg_pool2d`: its gradient is not deterministic on CUDA, which Trainer(deterministic=True) refuses,
    # and its parts overlap where the sides do not divide.
    rows, columns = (_part_weights(side, cells, like=features) for side in features.shape[-2:])
    return rows @ features @ columns.T


def _part_weights(side: int, cells: int, *, like: Tensor) -> Tensor:
    """Return the share of each of ``side`` pixels in the mean of each part, ``(cells, side)``."""
    # In single precision: float16 could not tell the edges of maps wider than 2048 cells, nor bfloat16 of 256.
    edges = torch.arange(cells + 1, device=like.device, dtype=torch.float32) * (side / cells)
    # Cell i of the map covers [i, i + 1).
    starts = torch.arange(side, device=like.device, dtype=torch.float32)
    overlaps = torch.minimum(edges[1:, None], starts + 1) - torch.maximum(edges[:-1, None], starts)
    return (overlaps.clamp(min=0) * (cells / side)).to(like.dtype)


def regression_small(
    *,
    num_keypoints: int,
    num_classes: int = 0,
    num_values: Mapping[str, int] | None = None,
    channels: int = 48,
    head_channels: int = 64,
    stride: int = 8,
    cells: int = 4,
) -> RegressionModel:
    """Return a regressor on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head.
        stride: Stride of the map that is averaged, 4, 8, 16 or 32.
        cells: Parts of the crop along each side, over which the map is averaged.

    Raises:
        ValueError: If an argument is out of range.
    """
    return RegressionModel(
        PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,)),
        channels=head_channels,
        stride=stride,
        num_keypoints=num_keypoints,
        num_classes=num_classes,
        num_values=num_values,
        head_channels=head_channels,
        cells=cells,
    )


def regression_model(
    *,
    num_keypoints: int,
    num_classes: int = 0,
    num_values: Mapping[str, int] | None = None,
    backbone: str = "resnet18",
    weights: str | None = None,
    head_channels: int = 128,
    cells: int = 4,
) -> RegressionModel:
    """Return a regressor on the last map of a classifier.

    Args:
        num_keypoints: Points.
        num_classes: Classes, 0 for none.
        num_values: Number of values of every attribute by its name.
        backbone: Name of the classifier, such as ``resnet18``, ``convnext_tiny`` or ``timm/resnet50``.
        weights: Of the classifier: a name such as ``DEFAULT``, a file, or None for random ones. See `build_model`.
        head_channels: Channels that the map is reduced to.
        cells: Parts of the crop along each side, over which the map is averaged.

    Raises:
        ValueError: If an argument is out of range; the classifier is not known, or has no map; or the weights do not
            fit.
        OSError: If weights cannot be downloaded or read.
    """
    trunk = classifier_backbone(backbone, weights)
    model = RegressionModel(
        trunk.module,
        channels=trunk.channels,
        stride=trunk.stride,
        num_keypoints=num_keypoints,
        num_classes=num_classes,
        num_values=num_values,
        head_channels=head_channels,
        cells=cells,
    )
    model.pretrained_cfg = trunk.colours
    return model
