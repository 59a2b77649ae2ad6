"""Transform that a user adds to a preset, with a target that stays in step with the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lit_loader.errors import SettingError
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["ExtraTransform"]


class ExtraTransform(nn.Module):
    """Call a transform on a sample, and bring the visibility of points and the rows of objects back in step.

    Determinism: draws what the transform draws.

    Args:
        transform: Transform of ``(image, target)``, or of an image if ``image_only`` is True.
        name: Argument and position for errors, such as ``extra_after[0]``.
        text: Text of the transform for errors.
        image_only: True to call the transform without the target, which is unchanged.
        check_canvas: True to refuse a result whose boxes belong to an image of another size.
        sanitize: Removes objects that left the image, or None to keep every row.
    """

    def __init__(
        self,
        transform: Callable[..., Any],
        *,
        name: str,
        text: str,
        image_only: bool,
        check_canvas: bool = False,
        sanitize: SanitizeObjects | None = None,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.name = name
        self.text = text
        self.image_only = image_only
        self.check_canvas = check_canvas
        self.sanitize = sanitize
        self._update_visibility = UpdateVisibility()

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone.

        Raises:
            SettingError: The transform returned no image, no target, or boxes of an image of another size.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(sample, tuple | list):
            return self._checked_image(self.transform(sample))
        image, *targets = sample
        if self.image_only or not targets:
            return (self._checked_image(self.transform(image)), *targets)
        result = self.transform(image, *targets)
        if not isinstance(result, tuple | list) or len(result) != len(sample):
            raise self._error(f"returned {type(result).__name__} instead of (image, target)", "return both")
        self._checked_image(result[0])
        target = result[1]
        if not isinstance(target, Mapping):
            return tuple(result)
        if self.check_canvas:
            self._check_canvas(result[0], target)
        result = self._update_visibility(*result)
        return result if self.sanitize is None else self.sanitize(*result)

    def _checked_image(self, image: Any) -> Any:
        if isinstance(image, Tensor) and image.ndim == 3:
            return image
        shape = f" {tuple(image.shape)}" if isinstance(image, Tensor) else ""
        rule = f"returned {type(image).__name__}{shape}, expected an image tensor (C, H, W)"
        raise self._error(rule, "end a pipeline of other images with v2.ToImage()")

    def _check_canvas(self, image: Tensor, target: Mapping[str, Any]) -> None:
        for field in ("boxes", "keypoints"):
            canvas_size = getattr(target.get(field), "canvas_size", None)
            if canvas_size is not None and tuple(canvas_size) != tuple(image.shape[-2:]):
                rule = f"returned an image of height and width {tuple(image.shape[-2:])} with {field} for {canvas_size}"
                raise self._error(rule, "move target['boxes'], ['masks'] and ['keypoints'] with the pixels")

    def _error(self, rule: str, remedy: str) -> SettingError:
        return SettingError(self.name, self.text, rule, remedy)
