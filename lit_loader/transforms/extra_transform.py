"""Transform that a user adds to a preset, with a target that stays in step with the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from torch import Tensor, nn
from torchvision import tv_tensors

from lit_loader.errors import SettingError
from lit_loader.transforms.flips import FlipPairs
from lit_loader.transforms.oriented import apply_transform
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.visibility import UpdateVisibility, target_points

__all__ = ["ExtraTransform"]

_OBJECT_FIELDS: Final = {"boxes": tv_tensors.BoundingBoxes, "masks": tv_tensors.Mask, "keypoints": tv_tensors.KeyPoints}
# Two points, and all points in a line, fit a reflection as well as a rotation.
_MIN_POINTS: Final = 3
_MIN_EXTENT: Final = 1.0  # pixels, across the line
_MAX_ERROR: Final = 0.5  # pixels


class ExtraTransform(nn.Module):
    """Call a transform on a sample, and bring the visibility of points and the rows of objects back in step.

    Determinism: depends on the transform.

    Args:
        transform: Transform of ``(image, target)``, or of an image if ``image_only`` is True.
        name: Argument and position for errors, such as ``extra_after[0]``.
        text: Text of the transform for errors.
        image_only: True to call the transform without the target, which is unchanged.
        check_mirror: True to refuse a result whose points were mirrored without exchanging left and right.
        flip_pairs: Pairs of points for this check, or None to use all points.
        check_objects: True to refuse boxes, masks and points that are plain tensors, or of an image of another size.
        sanitize: Removes objects that left the image, or None to keep every row.
    """

    def __init__(
        self,
        transform: Callable[..., Any],
        *,
        name: str,
        text: str,
        image_only: bool,
        check_mirror: bool = False,
        flip_pairs: FlipPairs | None = None,
        check_objects: bool = False,
        sanitize: SanitizeObjects | None = None,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.name = name
        self.text = text
        self.image_only = image_only
        self.check_mirror = check_mirror
        self.flip_pairs = flip_pairs
        self.check_objects = check_objects
        self.sanitize = sanitize
        self._update_visibility = UpdateVisibility()

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone.

        Raises:
            SettingError: The transform returned no image, no target, objects of an image of another size, or points
                that it mirrored without exchanging left and right.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(sample, tuple | list):
            return self._checked_image(self.transform(sample))
        image, *targets = sample
        if self.image_only or not targets:
            return (self._checked_image(self.transform(image)), *targets)
        source_points = None
        if self.check_mirror and (points_and_visibility := target_points(targets[0])) is not None:
            # The transform may change its target in place.
            points, visibility = points_and_visibility
            source_points = points.as_subclass(Tensor).clone(), visibility.clone()
        result = apply_transform(self.transform, (image, *targets))
        if not isinstance(result, tuple | list) or len(result) != len(sample):
            raise self._error(f"returned {type(result).__name__} instead of (image, target)", "return both")
        self._checked_image(result[0])
        target = result[1]
        if not isinstance(target, Mapping):
            return tuple(result)
        if self.check_objects:
            self._check_objects(result[0], target)
        if source_points is not None and _is_mirrored(source_points, target_points(target), self.flip_pairs):
            rule = "mirrored points without exchanging left and right"
            remedy = "use lit_loader.transforms.RandomHorizontalFlip, or flip_pairs=[] if every point keeps its name"
            raise self._error(rule, remedy)
        result = self._update_visibility(*result)
        return result if self.sanitize is None else self.sanitize(*result)

    def _checked_image(self, image: Any) -> Any:
        if isinstance(image, Tensor) and image.ndim == 3:
            return image
        shape = f" {tuple(image.shape)}" if isinstance(image, Tensor) else ""
        rule = f"returned {type(image).__name__}{shape}, expected an image tensor (C, H, W)"
        raise self._error(rule, "end a pipeline of other images with v2.ToImage()")

    def _check_objects(self, image: Tensor, target: Mapping[str, Any]) -> None:
        for field, kind in _OBJECT_FIELDS.items():
            value = target.get(field)
            if value is not None and not isinstance(value, kind):
                rule = f"returned {field} as {type(value).__name__}, which transforms do not move"
                raise self._error(rule, f"return tv_tensors.wrap({field}, like=target[{field!r}])")
            size = None if value is None else tuple(getattr(value, "canvas_size", value.shape[-2:]))
            if size not in (None, tuple(image.shape[-2:])):
                rule = f"returned an image of height and width {tuple(image.shape[-2:])} with {field} for {size}"
                raise self._error(rule, "move target['boxes'], ['masks'] and ['keypoints'] with the pixels")

    def _error(self, rule: str, remedy: str) -> SettingError:
        return SettingError(self.name, self.text, rule, remedy)


def _is_mirrored(
    source: tuple[Tensor, Tensor] | None, result: tuple[Tensor, Tensor] | None, flip_pairs: FlipPairs | None
) -> bool:
    """Return True if an affine map with a reflection moves every point, under its own name, to its new place.

    After a flip that exchanges left and right, no such map exists, because the two points of a pair keep their order.

    Args:
        source: Points ``(N, K, 2)`` and visibility ``(N, K)`` before a transform.
        result: The same after it.
        flip_pairs: Pairs of points to look at, or None for all points.
    """
    if source is None or result is None or source[0].shape != result[0].shape:
        return False
    # numpy calls with a few points take a tenth of the time of torch's.
    present = ((source[1] > 0) & (result[1] > 0)).numpy()
    if flip_pairs is not None:
        # A point without a counterpart keeps its name in a flip, so it tells nothing.
        paired = np.zeros_like(present)
        # The flips of the preset refuse pairs that exceed the number of points.
        for first, second in (pair for pair in flip_pairs if max(pair) < present.shape[1]):
            paired[:, [first, second]] = (present[:, first] & present[:, second])[:, None]
        present = paired
    if present.sum() < _MIN_POINTS:
        return False
    points, new_points = (value[0].as_subclass(Tensor).double().numpy()[present] for value in (source, result))
    points -= points.mean(axis=0)
    new_points -= new_points.mean(axis=0)
    # Least squares with the normal equations, which are well-conditioned for points that are not in a line.
    covariance = points.T @ points
    if np.linalg.eigvalsh(covariance)[0] < _MIN_EXTENT**2:
        return False
    linear_map = np.linalg.solve(covariance, points.T @ new_points)
    error = np.abs(points @ linear_map - new_points).max()
    return bool(error < _MAX_ERROR and np.linalg.det(linear_map) < 0)
