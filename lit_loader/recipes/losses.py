"""Losses that a config can choose: of classes with smoothing, weights and focus, and of points and heatmaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_loader.recipes.network import heatmap_loss, masked_mean

__all__ = ["ClassificationLoss", "LandmarkLoss", "WingLoss"]


class ClassificationLoss(nn.Module):
    """Cross-entropy of each image, with label smoothing, class weights and the focal factor.

    The loss of an image of class c is ``w_c * (1 - p_c)^gamma * CE``; p_c is the probability of c, and CE has smoothed
    labels. With several labels an image, each class is a yes-or-no question with a loss of this form, where p is the
    probability of the right answer, and the loss of the image is their mean, without the classes that the image does
    not label. The loss of a mixed image is the mean of the losses of its classes, weighted by their proportions, as in
    the papers on mixup and CutMix. A batch's loss is the mean over its images: weights are not divided by their sum.

    Args:
        label_smoothing: Share of a label that is spread evenly over all classes, in [0, 1).
        class_weights: Factors w by class name, 1 for a class that is not named, or one for each class in their order,
            or None for 1.
        focal_gamma: Exponent gamma, 0 or more; 2 is usual, 0 leaves the focal factor out.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 5; Szegedy et al. 2016, "Rethinking the
        Inception Architecture", section 7, for label smoothing.
    """

    class_factors: Tensor | None

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Mapping[str, float] | Sequence[float] | None = None,
        focal_gamma: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must be in [0, 1)")
        if not 0 <= focal_gamma < math.inf:
            raise ValueError(f"focal_gamma={focal_gamma} must be 0 or more")
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights
        self.focal_gamma = focal_gamma
        # Not persistent: a checkpoint loads with other weights, or without any.
        self.register_buffer("class_factors", None, persistent=False)

    def set_class_names(self, class_names: Sequence[str]) -> None:
        """Take the classes that ``class_weights`` are of.

        Raises:
            ValueError: If weights are of other classes, or not positive.
        """
        # Called by the task, because a config builds the loss before the names of the data are known.
        weights = self.class_weights
        if weights is None:
            return
        if isinstance(weights, Mapping):
            unknown = sorted(map(str, weights.keys() - set(class_names)))
            if unknown:
                raise ValueError(f"class_weights names {unknown}; the classes are {list(class_names)}")
            factors = [float(weights.get(name, 1.0)) for name in class_names]
        else:
            factors = [float(weight) for weight in weights]
        if len(factors) != len(class_names):
            rule = f"class_weights has {len(factors)} values for {len(class_names)} classes"
            raise ValueError(f"{rule}; give one for each of {list(class_names)}")
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"class_weights={factors} must be positive numbers")
        # Assigned to the registered buffer, so that it moves with the model.
        self.class_factors = torch.tensor(factors)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each image, float32 ``(B,)``.

        Args:
            logits: float ``(B, C)``.
            labels: int64 ``(B,)``, or float ``(B, C)`` from 0 to 1 for several labels an image; a class with another
                label below 0 is not labelled. An image without a labelled class has the loss 0.
        """
        # In single precision, also under autocast: `exp` and `log` of bfloat16 have errors of about one percent.
        logits = logits.float()
        if labels.ndim == 1:
            losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
            if self.focal_gamma:
                # From the logits, not exp(-losses): those are smoothed.
                right = logits.log_softmax(dim=1).gather(1, labels[:, None])[:, 0].exp()
                losses = losses * self._focal_factor(right)
            return losses if self.class_factors is None else losses * self.class_factors[labels]
        some_unlabelled = may_have_unlabelled(labels)
        answers = labels.float().clamp(min=0) if some_unlabelled else labels.float()
        if self.focal_gamma:
            losses = self._focal_answers(logits, answers)
        else:
            # With two classes, yes and no, an even spread moves half of the share to each.
            smoothed = answers * (1 - self.label_smoothing) + self.label_smoothing / 2
            losses = functional.binary_cross_entropy_with_logits(logits, smoothed, reduction="none")
        if self.class_factors is not None:
            losses = losses * self.class_factors
        return mean_of_labelled(losses, labels) if some_unlabelled else losses.mean(dim=1)

    def mixed(self, logits: Tensor, proportions: Tensor) -> Tensor:
        """Return the loss of each image that has several classes in proportions, float32 ``(B,)``.

        For a proportion of 1 it is the loss of the class id.

        Args:
            logits: float ``(B, C)``.
            proportions: float ``(B, C)``, which add up to 1 for each image.
        """
        log_probabilities = logits.float().log_softmax(dim=1)
        # The loss of each class, if it were the label.
        losses = -log_probabilities * (1 - self.label_smoothing)
        if self.label_smoothing:
            losses = losses - self.label_smoothing * log_probabilities.mean(dim=1, keepdim=True)
        if self.focal_gamma:
            losses = losses * self._focal_factor(log_probabilities.exp())
        if self.class_factors is not None:
            losses = losses * self.class_factors
        return (losses * proportions.float()).sum(dim=1)

    def _focal_answers(self, logits: Tensor, answers: Tensor) -> Tensor:
        """Return the focal loss of each answer from 0 (no) to 1 (yes), ``(B, C)``: of yes and no in this proportion."""
        even_share = torch.full_like(answers, self.label_smoothing / 2)
        yes_losses = functional.binary_cross_entropy_with_logits(logits, 1 - even_share, reduction="none")
        no_losses = functional.binary_cross_entropy_with_logits(logits, even_share, reduction="none")
        yes_losses = yes_losses * self._focal_factor(logits.sigmoid())
        no_losses = no_losses * self._focal_factor((-logits).sigmoid())
        return answers * yes_losses + (1 - answers) * no_losses

    def _focal_factor(self, right: Tensor) -> Tensor:
        """Return the focal factor for the probability of the right class or answer."""
        # At 0 the gradient of a gamma below 1 is infinite, and a proportion of 0 would make NaN of it.
        return (1 - right).clamp(min=torch.finfo(right.dtype).eps) ** self.focal_gamma


def may_have_unlabelled(labels: Tensor) -> bool:
    """Return False if no label is below 0. Labels on a device are not read, since that would wait for it."""
    return labels.device.type != "cpu" or (labels.numel() > 0 and labels.min().item() < 0)


def mean_of_labelled(losses: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the losses of each image over the classes that it labels, ``(B,)``.

    Args:
        losses: float ``(B, C)``.
        labels: float ``(B, C)``, below 0 for a class that an image does not label.
    """
    is_labelled = labels >= 0
    return losses.masked_fill(~is_labelled, 0.0).sum(dim=1) / is_labelled.sum(dim=1).clamp(min=1)


class WingLoss(nn.Module):
    """The error of each coordinate, logarithmic for small errors, so that they count more than under the L1 loss.

    ``width * ln(1 + |e| / curvature)`` where ``|e| < width``, else ``|e|`` less a constant that joins the two.

    Args:
        width: Errors below it are in the logarithmic part, as shares of the crop; the paper's 10 pixels of 256.
        curvature: How steep that part is; the paper's 2 pixels of 256.

    Raises:
        ValueError: If an argument is not positive.

    Source:
        Feng et al. 2018, "Wing Loss for Robust Facial Landmark Localisation with Convolutional Neural Networks".
    """

    def __init__(self, *, width: float = 10 / 256, curvature: float = 2 / 256) -> None:
        super().__init__()
        if width <= 0 or curvature <= 0:
            raise ValueError(f"width={width} and curvature={curvature} must be positive")
        self.width = width
        self.curvature = curvature

    def forward(self, points: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each coordinate, of the shape of both arguments."""
        # The constant makes the two parts meet at an error of `width`.
        errors = (points - targets).abs()
        logarithmic = self.width * torch.log1p(errors / self.curvature)
        constant = self.width - self.width * math.log1p(self.width / self.curvature)
        return torch.where(errors < self.width, logarithmic, errors - constant)


class LandmarkLoss(nn.Module):
    """The losses of `LandmarkTask`: of points, heatmaps, the class and attributes, each with a weight.

    Args:
        point_loss: Called with predicted and true coordinates as shares of the crop; returns the loss of each, such as
            `WingLoss` or ``torch.nn.SmoothL1Loss(reduction="none", beta=0.02)``; its parameters are shares of the crop
            as well: with torch's own beta of 1, SmoothL1Loss is half the squared error everywhere. None for the
            absolute error.
        point_weight: Factor of the points' mean loss.
        heatmap_weight: Factor of the heatmaps' divergence from a Gaussian, see `heatmap_loss`; only of models that
            return heatmaps.
        heatmap_sigma: Width of that Gaussian in cells.
        class_weight: Factor of the cross-entropy of the class, where the task has classes.
        attribute_weight: Factor of the cross-entropy of each attribute.

    Raises:
        ValueError: If a weight is negative, or ``heatmap_sigma`` not positive.
    """

    def __init__(
        self,
        *,
        point_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        point_weight: float = 100.0,
        heatmap_weight: float = 1.0,
        heatmap_sigma: float = 1.0,
        class_weight: float = 1.0,
        attribute_weight: float = 1.0,
    ) -> None:
        super().__init__()
        weights = {
            "point": point_weight,
            "heatmap": heatmap_weight,
            "class": class_weight,
            "attribute": attribute_weight,
        }
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name}_weight={weight} must be 0 or more")
        if heatmap_sigma <= 0:
            raise ValueError(f"heatmap_sigma={heatmap_sigma} must be positive")
        self.point_loss = nn.L1Loss(reduction="none") if point_loss is None else point_loss
        self.point_weight = point_weight
        self.heatmap_weight = heatmap_weight
        self.heatmap_sigma = heatmap_sigma
        self.class_weight = class_weight
        self.attribute_weight = attribute_weight

    def points(self, points: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted mean loss of present coordinates; 0 where no point is present.

        Args:
            points: float ``(..., 2)``, shares of the crop.
            targets: The same shape; masked values may be anything, including NaN.
            mask: bool ``(...,)``.

        Raises:
            ValueError: If ``point_loss`` does not return one loss a coordinate.
        """
        # Replaced before the difference: the gradient of a masked NaN would be NaN.
        targets = torch.where(mask[..., None], targets, torch.zeros_like(targets))
        losses = self.point_loss(points, targets)
        # torch's losses reduce to a scalar by default, which cannot be masked.
        if losses.shape != points.shape:
            expected = tuple(points.shape)
            got = tuple(losses.shape)
            raise ValueError(f"expected one loss a coordinate {expected}, got {got}; give one with reduction='none'")
        return self.point_weight * masked_mean(losses.mean(dim=-1), mask)

    def heatmaps(self, logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted divergence of heatmaps from a Gaussian, with the arguments of `heatmap_loss`."""
        return self.heatmap_weight * heatmap_loss(logits, targets, mask, sigma=self.heatmap_sigma)

    def classes(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted mean cross-entropy of classes; logits ``(B, C)``, labels int64 ``(B,)``."""
        return self.class_weight * functional.cross_entropy(logits.float(), labels)

    def attribute(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Return the weighted mean cross-entropy of an attribute, over the objects that have it.

        Args:
            logits: float ``(B, num_values)``.
            ids: int64 ``(B,)``, -1 for an object without the attribute.
        """
        return self.attribute_weight * labelled_cross_entropy(logits, ids)


def labelled_cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy over samples whose id is not -1; 0 if there are none."""
    # cross_entropy would index out of range with -1; `masked_mean` discards the result.
    entropies = functional.cross_entropy(logits.float(), ids.clamp(min=0), reduction="none")
    return masked_mean(entropies, ids >= 0)
