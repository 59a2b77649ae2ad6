"""Parts of models: images as they take them, a small feature pyramid and models on it, heatmaps; checks of settings."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS, FCOSHead
from torchvision.models.resnet import BasicBlock
from torchvision.ops import Conv2dNormActivation

IMAGE_MEAN: Final = 0.5
IMAGE_STD: Final = 0.25


def plain(value: Tensor) -> Tensor:
    """Return a tensor without its tv_tensor class, which would be looked at in every operation of a model."""
    return value.as_subclass(Tensor)


def unit_range(image: Tensor) -> Tensor:
    """Return an image as floats in [0, 1].

    Images may come as uint8, a quarter of the bytes to move, and are made float where the model is.

    Args:
        image: float in [0, 1], returned unchanged, or uint8 in [0, 255]; any shape.
    """
    image = plain(image)
    return image if image.is_floating_point() else image.float() / 255


def check_unit_range(images: Sequence[Tensor]) -> None:
    """Raise ValueError for float images that are already normalised, or in [0, 255].

    Values slightly outside of [0, 1] are accepted, since interpolation and noise overshoot.

    Args:
        images: Images of any shapes and dtypes; integers are not checked.

    Raises:
        ValueError: If a value is outside of [-0.25, 1.25].
    """
    for image in images:
        if image.is_floating_point() and image.numel():
            low, high = (float(value) for value in plain(image).aminmax())
            if not (low >= -0.25 and high <= 1.25):
                raise ValueError(
                    f"images have values from {low:.3g} to {high:.3g}, and the model expects [0, 1], or uint8, and "
                    "normalises them; leave normalisation out of the transforms and of the data module"
                )


class NormalizeImages(nn.Module):
    """Converts images to floats and normalises them by channel.

    Args:
        mean: Of the channels red, green and blue, of values in [0, 1].
        std: Their standard deviations.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Part of the checkpoint, because a task is restored without its initial weights, which define them.
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return images normalised.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            float, the same shape, channels last in memory, in which convolutions run faster.

        Raises:
            ValueError: If the shape is another.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"expected RGB images of shape (B, 3, H, W), got {tuple(images.shape)}")
        # The buffers have the dtype of the model, such as bfloat16 under Trainer(precision="bf16-true").
        normalised = (unit_range(images).to(self.mean.dtype) - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last)


def feature_map(backbone: nn.Module, images: Tensor, *, stride: int) -> Tensor:
    """Return a backbone's map of images of any size: they are padded, and cells of padding alone are cut off.

    Args:
        backbone: Returns a map ``(B, C, H / stride, W / stride)`` of images whose sides are multiples of 32, or a dict
            whose first map is used. For timm's models, ``forward_features`` is called.
        images: Normalised images, float, shape ``(B, 3, H, W)``; padding is 0, the mean colour.
        stride: Pixels between the map's cells.

    Returns:
        float ``(B, C, ceil(H / stride), ceil(W / stride))``.
    """
    height, width = images.shape[-2:]
    # 32 is the coarsest stride of a `PyramidBackbone`: its maps are added, so their sizes have to divide.
    side = max(32, stride)
    padded = functional.pad(images, (0, -width % side, 0, -height % side))
    output = getattr(backbone, "forward_features", backbone)(padded)
    features: Tensor = next(iter(output.values())) if isinstance(output, Mapping) else output
    return features[..., : -(-height // stride), : -(-width // stride)]


class PyramidBackbone(nn.Module):
    """Convolutional stages at strides 4, 8, 16, 32 and a top-down path back to the first of them asked for.

    The finest map sees the whole image through the coarse stages, so one map is enough for objects of
    similar size; more maps serve objects whose sizes differ by more than a factor of about four.

    Args:
        channels: Channels at stride 8; stride 4 has half as many, strides 16 and 32 one and a half times.
        out_channels: Channels of every map that is returned.
        strides: Strides of the maps returned, a run of neighbours from (4, 8, 16, 32), finest first.

    Raises:
        ValueError: If ``strides`` is not such a run or ``channels`` is not a positive multiple of 8.
    """

    def __init__(self, *, channels: int = 64, out_channels: int = 64, strides: tuple[int, ...] = (8,)) -> None:
        super().__init__()
        all_strides = (4, 8, 16, 32)
        # Neighbours, because the top-down path doubles the size from one map to the next.
        if tuple(strides) not in {all_strides[i:j] for i in range(4) for j in range(i + 1, 5)}:
            raise ValueError(f"strides={strides!r} must be a run of neighbours from {all_strides}; give e.g. (8,)")
        if channels <= 0 or channels % 8:
            raise ValueError(f"channels={channels} must be a positive multiple of 8; give 32, 48, 64, ...")
        widths = (channels // 2, channels, channels * 3 // 2, channels * 3 // 2)
        self.out_channels = out_channels
        self.strides = tuple(strides)
        stem_width = channels // 4 + channels // 8
        self.stem = Conv2dNormActivation(3, stem_width, stride=2)
        self.stages = nn.ModuleList(
            nn.Sequential(Conv2dNormActivation(inputs, outputs, stride=2), BasicBlock(outputs, outputs))
            for inputs, outputs in itertools.pairwise((stem_width, *widths))
        )
        # Stages finer than the first map asked for still run, but have no lateral convolution: DDP would wait for the
        # gradients of parameters that no output depends on.
        self.first = all_strides.index(strides[0])
        self.laterals = nn.ModuleList(nn.Conv2d(width, out_channels, 1) for width in widths[self.first :])
        self.outputs = nn.ModuleList(Conv2dNormActivation(out_channels, out_channels) for _ in strides)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Return the maps by stride.

        Args:
            images: Normalised images, float, shape ``(N, 3, H, W)``; H and W multiples of 32.

        Returns:
            ``{"8": (N, out_channels, H / 8, W / 8), ...}``, finest first.
        """
        features = self.stem(images)
        columns = []
        for stage in self.stages:
            features = stage(features)
            columns.append(features)
        merged: list[Tensor] = []  # coarsest first
        for lateral, column in zip(reversed(self.laterals), reversed(columns[self.first :]), strict=True):
            above = functional.interpolate(merged[-1], scale_factor=2.0, mode="nearest") if merged else 0.0
            merged.append(lateral(column) + above)
        outputs = zip(self.strides, self.outputs, reversed(merged), strict=False)  # coarser ones only helped
        return OrderedDict((str(stride), output(level)) for stride, output, level in outputs)


class PyramidClassifier(nn.Module):
    """A `PyramidBackbone` whose finest map is averaged and classified; see `classifier_small`."""

    def __init__(self, backbone: PyramidBackbone, *, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classify = nn.Sequential(nn.Dropout(0.1), nn.Linear(backbone.out_channels, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(B, num_classes)`` of normalised images ``(B, 3, H, W)``."""
        features = feature_map(self.backbone, images, stride=self.backbone.strides[0])
        logits: Tensor = self.classify(features.mean(dim=(-2, -1)))
        return logits


def classifier_small(
    *, num_classes: int, channels: int = 48, head_channels: int = 64, stride: int = 8
) -> PyramidClassifier:
    """Return a classifier on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_classes: Classes.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of the map that is averaged.
        stride: Stride of that map, 4, 8, 16 or 32.

    Raises:
        ValueError: If an argument is out of range.
    """
    backbone = PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,))
    return PyramidClassifier(backbone, num_classes=num_classes)


def fcos_small(
    *,
    num_classes: int,
    channels: int = 48,
    head_channels: int = 64,
    strides: Sequence[int] = (8,),
    min_size: int | Sequence[int] = 96,
    max_size: int = 192,
    score_thresh: float = 0.05,
    nms_thresh: float = 0.6,
    detections_per_img: int = 100,
) -> FCOS:
    """Return torchvision's FCOS on a `PyramidBackbone`, small enough to learn from scratch on two CPU cores.

    Args:
        num_classes: Classes and the background; labels count from 1, and the output for 0 is not used.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head, a multiple of 32, the groups of its normalisation.
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        min_size: Images are resized so that the shorter side has this many pixels, or one of several sizes, drawn for
            each training image; evaluation has the last...
        max_size: ... unless the longer side would exceed this many.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image.

    Raises:
        ValueError: If an argument is out of range.
    """
    if head_channels <= 0 or head_channels % 32:
        raise ValueError(f"head_channels={head_channels} must be a multiple of 32, the groups of its norm; give 64")
    strides = tuple(int(stride) for stride in strides)
    # One square anchor per cell: FCOS regresses from the cell's centre, and torchvision only reads its stride from it.
    # A list of sizes, which the annotation of FCOS does not know.
    shorter_sides: Any = min_size
    detector = FCOS(
        PyramidBackbone(channels=channels, out_channels=head_channels, strides=strides),
        num_classes=num_classes,
        min_size=shorter_sides,
        max_size=max_size,
        image_mean=[IMAGE_MEAN] * 3,
        image_std=[IMAGE_STD] * 3,
        anchor_generator=AnchorGenerator(tuple((s,) for s in strides), ((1.0,),) * len(strides)),
        head=FCOSHead(head_channels, 1, num_classes, 1),
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        detections_per_img=detections_per_img,
        # Per map, before overlapping boxes are dropped; torchvision's 1000 take longer than this small network.
        topk_candidates=max(300, detections_per_img),
    )
    # Boxes are two strides wide before training. torchvision starts with boxes without size, whose ReLU passes no
    # gradient where they get below 0: with mosaics, two of three seeds never left a regression loss of 1.
    nn.init.ones_(detector.get_parameter("head.regression_head.bbox_reg.bias"))
    return detector


# -- heatmaps; absent points do not contribute ------------------------------------------------------------


def soft_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected position of each heatmap's softmax, and a confidence score.

    The heat of cell (row i, column j) is at its centre, ``((j + 0.5) / w, (i + 0.5) / h)``. 0 and 1 are the outer edges
    of the map; points closer to them than half a cell cannot be represented.

    Args:
        logits: float, shape ``(..., h, w)``.

    Returns:
        Points float32 ``(..., 2)``, x and y as fractions of the map's width and height; scores float32 ``(...,)``
        in [0, 1], the fraction of the heat within two cells of the point.

    Source:
        Sun et al. 2018, "Integral Human Pose Regression"; Nibali et al. 2018, "Numerical Coordinate
        Regression with Convolutional Neural Networks" (DSNT).
    """
    height, width = logits.shape[-2:]
    # In single precision: under bf16-mixed, coordinates would be rounded to 1/256 of the map.
    heat = logits.float().flatten(-2).softmax(dim=-1).reshape(logits.shape)
    columns = _centres(width, logits.device)
    rows = _centres(height, logits.device)
    x = (heat.sum(dim=-2) * columns).sum(dim=-1)
    y = (heat.sum(dim=-1) * rows).sum(dim=-1)
    # Without gradients: the score is a report, and training on it would sharpen the heat around wrong points.
    with torch.no_grad():
        near_x = (columns - x[..., None]).abs() * width <= 2
        near_y = (rows - y[..., None]).abs() * height <= 2
        scores = (heat * (near_y[..., :, None] & near_x[..., None, :])).sum(dim=(-2, -1))
    return torch.stack([x, y], dim=-1), scores


def filled_pair(first: float, second: float, *, like: Tensor) -> Tensor:
    """Return two numbers as a tensor on the device of ``like``, float32 ``(2,)``."""
    # new_full() fills on the device; a copy from the CPU, as by new_tensor(), would wait for the device.
    return torch.stack([like.new_full((), value, dtype=torch.float32) for value in (first, second)])


def heatmap_loss(logits: Tensor, target: Tensor, mask: Tensor, *, sigma: float = 1.0) -> Tensor:
    """Return the divergence of heatmaps from a Gaussian around each present point, or 0 if no point is present.

    It is ``KL(G || softmax(logits))``, averaged over present points. G is a Gaussian of ``sigma`` cells, normalised
    over the map.

    Args:
        logits: float, shape ``(..., h, w)``.
        target: float, shape ``(..., 2)``, fractions of the map's width and height; masked values may be anything.
        mask: bool, shape ``(...,)``.
        sigma: Width of the Gaussian in cells.

    Source:
        Nibali et al. 2018 (DSNT), section 3.4, which regularises towards a Gaussian by a divergence.
    """
    height, width = logits.shape[-2:]
    # Replaced before the exponential: a masked NaN would still have a gradient of NaN.
    target = torch.where(mask[..., None], target, torch.full_like(target, 0.5)).float()
    dx = (_centres(width, logits.device) - target[..., 0, None]) * (width / sigma)
    dy = (_centres(height, logits.device) - target[..., 1, None]) * (height / sigma)
    gaussian_logits = -0.5 * (dx.square()[..., None, :] + dy.square()[..., :, None]).flatten(-2)
    gaussian = gaussian_logits.log_softmax(dim=-1)
    predicted = logits.float().flatten(-2).log_softmax(dim=-1)
    return masked_mean((gaussian.exp() * (gaussian - predicted)).sum(dim=-1), mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values under a mask of the same shape; 0, with a gradient, if there are none."""
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _centres(count: int, device: torch.device) -> Tensor:
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


# -- checks ----------------------------------------------------------------------------------------------


def check_names(argument: str, names: Sequence[Any]) -> list[str]:
    """Return names as plain strings.

    Args:
        argument: The argument's name, for the message.
        names: At least one, all different.

    Raises:
        ValueError: If the list is empty, or two names are equal.
        TypeError: If ``names`` is a single string, whose letters would be read as names.
    """
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r} is one string; give a list of names")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{argument}={list(names)} must be different names, at least one")
    return [str(name) for name in names]


def check_labels(labels: Tensor, names: Sequence[str], *, argument: str, first: int, note: str = "") -> None:
    """Raise ValueError for labels without a name.

    Args:
        labels: int64, any shape.
        names: Label ``first + i`` is ``names[i]``.
        argument: Name of the recipe's argument with the names, for the message.
        first: Label of the first name.
        note: Remark on the range, for the message. By default, for labels from 1, that 0 is the background.

    Raises:
        ValueError: If a label is out of range.
    """
    if not labels.numel():
        return
    background = " (0 is background)" if first else ""
    # One copy for both values, since each copy waits for the device.
    low, high = torch.stack(labels.aminmax()).tolist()
    last = first + len(names) - 1
    if low < first or high > last:
        expected = f"{first} to {last}{note or background} for {argument}={list(names)}"
        raise ValueError(f"labels {low} to {high} must be in {expected}; give the data set's own names")


def check_keypoints(points: Tensor, names: Sequence[str]) -> None:
    """Raise ValueError if points ``(..., K, 2)`` are not as many as the names."""
    if points.shape[-2] != len(names):
        counts = f"objects have {points.shape[-2]} points, keypoint_names has {len(names)}"
        raise ValueError(f"{counts}; give the data set's own keypoint names")
