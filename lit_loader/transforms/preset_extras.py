"""Transforms that a user adds to a preset: checks, flips with mirror pairs, and targets that stay in step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import nn
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.transforms.albumentations import AlbumentationsTransform
from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.description import describe
from lit_loader.transforms.elastic import ElasticTransform
from lit_loader.transforms.extra_transform import ExtraTransform
from lit_loader.transforms.flips import FlipPairs, RandomHorizontalFlip, RandomVerticalFlip, check_flip_pairs
from lit_loader.transforms.sanitize import SanitizeObjects

__all__ = ["PresetExtras", "may_move_pixels", "takes_only_image", "without_extras"]


# NOTE [Transforms added to a preset]
# torchvision's v2 transforms move boxes, masks and points with the pixels, but know neither the visibility of points
# nor left and right, clamp boxes to the canvas without removing those without area, and some ignore targets. So each
# added transform runs in an `ExtraTransform`, which brings the target back in step before the next transform.
# - A box that a crop clamped to a segment on the rim would have an area again after a rotation, and a point off the
#   canvas could come back with a perspective. Both are therefore dealt with after each transform, not only at the end.
# - A flip by a user's function would call a mirrored left eye a left eye. `_is_mirrored` detects it by the points.
# - Containers are made anew from their parts, so that each part gets an `ExtraTransform`.

_FLIPS: Final = {
    v2.RandomHorizontalFlip: RandomHorizontalFlip,
    v2.RandomVerticalFlip: RandomVerticalFlip,
    RandomHorizontalFlip: RandomHorizontalFlip,
    RandomVerticalFlip: RandomVerticalFlip,
}
_COMPOSITIONS: Final = (v2.Compose, DecodeAwareCompose, nn.Sequential)
_AUTO_AUGMENT: Final = (v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide, v2.AugMix)
# Exact types, because a subclass may move pixels. They draw the same numbers for an image without its target, and
# torchvision warns that `RandomErasing` leaves boxes unchanged, which is its purpose.
_PIXELS_ONLY: Final = (
    v2.ColorJitter,
    v2.GaussianBlur,
    v2.GaussianNoise,
    v2.Grayscale,
    v2.Identity,
    v2.JPEG,
    v2.Normalize,
    v2.RGB,
    v2.RandomAdjustSharpness,
    v2.RandomAutocontrast,
    v2.RandomChannelPermutation,
    v2.RandomEqualize,
    v2.RandomErasing,
    v2.RandomGrayscale,
    v2.RandomInvert,
    v2.RandomPhotometricDistort,
    v2.RandomPosterize,
    v2.RandomSolarize,
)
_BATCH_REMEDY: Final = "mix them in a function of a batch, given as batch_transforms of the data module"
# Refused with a reason and a remedy.
_UNSUITABLE: Final = {
    v2.CutMix: ("mixes the images of a batch", _BATCH_REMEDY),
    v2.MixUp: ("mixes the images of a batch", _BATCH_REMEDY),
    v2.FiveCrop: ("returns several images", "use RandomCrop or CenterCrop"),
    v2.TenCrop: ("returns several images", "use RandomCrop or CenterCrop"),
    v2.SanitizeBoundingBoxes: (
        "removes boxes and labels, but no other field of their objects",
        "remove it; detection_transforms removes objects from every field, see min_box_size and min_box_area",
    ),
    v2.ConvertBoundingBoxFormat: ("changes the format of boxes, which stay XYXY here", "remove it"),
}
_MOVING_REMEDY: Final = (
    "use transforms of colours such as ColorJitter, transforms that move boxes too such as RandomAffine, or an "
    "AlbumentationsTransform"
)


@dataclass(frozen=True)
class PresetExtras:
    """Transforms that a user adds to a preset; see NOTE [Transforms added to a preset].

    Attributes:
        task: The preset's task for errors, such as ``"detection"``.
        extra_before: Value of the preset's argument.
        extra_after: Value of the preset's argument.
        flip_pairs: The preset's pairs of points, for flips that have none.
        needs_objects: True for each place, before and after, if boxes, masks and points matter from there on.
        sanitize: Removes objects that left the image after each transform, or None to keep every row.
    """

    task: str
    extra_before: Sequence[Any]
    extra_after: Sequence[Any]
    flip_pairs: FlipPairs | None = None
    needs_objects: tuple[bool, bool] = (True, True)
    sanitize: SanitizeObjects | None = None

    def first_steps(self) -> list[nn.Module]:
        """Return the steps before all others of the preset.

        Raises:
            SettingError: A transform cannot be used there; the message names a remedy.
        """
        return self._checked_steps("extra_before", self.extra_before, needs_objects=self.needs_objects[0])

    def last_steps(self) -> list[nn.Module]:
        """Return the steps after all random transforms of the preset.

        Raises:
            SettingError: A transform cannot be used there; the message names a remedy.
        """
        return self._checked_steps("extra_after", self.extra_after, needs_objects=self.needs_objects[1])

    def _checked_steps(self, place: str, transforms: Any, *, needs_objects: bool) -> list[nn.Module]:
        if callable(transforms):
            rule = "is one transform, expected a sequence of them"
            raise SettingError(place, _text(transforms), rule, f"put it into a list: {place}=[...]")
        if isinstance(transforms, str | Mapping) or not isinstance(transforms, Sequence):
            rule = "should be a sequence of transforms"
            raise SettingError(place, transforms, rule, f"give a list: {place}=[...]")
        flip_pairs = None if self.flip_pairs is None else check_flip_pairs(self.flip_pairs)
        rules = _Rules(self.task, flip_pairs, needs_objects, self.sanitize)
        steps: list[nn.Module] = []
        for position, transform in enumerate(transforms):
            steps += rules.steps(f"{place}[{position}]", transform)
        _check_normalize(place, steps)
        return steps


@dataclass(frozen=True)
class _Rules:
    """Rules of one place in a preset, see `PresetExtras`."""

    task: str
    flip_pairs: tuple[tuple[int, int], ...] | None
    needs_objects: bool
    sanitize: SanitizeObjects | None

    def steps(self, name: str, transform: Any) -> Iterator[nn.Module]:
        """Yield the steps of one transform; a composition has several."""
        _check_kind(name, transform)
        # Exact types, because a subclass may do more than call its parts.
        if type(transform) in _COMPOSITIONS:
            for part in transform if type(transform) is nn.Sequential else transform.transforms:
                yield from self.steps(name, part)
        elif type(transform) is v2.RandomApply:
            yield v2.RandomApply(self._parts(name, transform), p=transform.p)
        elif type(transform) is v2.RandomChoice:
            # Each choice is one step, so that the probabilities keep their positions.
            yield v2.RandomChoice([self._single(name, part) for part in transform.transforms], p=transform.p)
        elif type(transform) is v2.RandomOrder:
            yield v2.RandomOrder([self._single(name, part) for part in transform.transforms])
        else:
            yield self._step(name, transform)

    def _parts(self, name: str, container: Any) -> list[nn.Module]:
        return [step for part in container.transforms for step in self.steps(name, part)]

    def _single(self, name: str, transform: Any) -> nn.Module:
        steps = list(self.steps(name, transform))
        return steps[0] if len(steps) == 1 else v2.Compose(steps)

    def _step(self, name: str, transform: Any) -> nn.Module:
        """Return a transform without parts as a step."""
        if isinstance(transform, v2.RandomHorizontalFlip | v2.RandomVerticalFlip) and type(transform) not in _FLIPS:
            rule = "is a subclass of torchvision's flip, which does not swap left and right points"
            raise SettingError(name, _text(transform), rule, f"use lit_loader.transforms.{_base_flip(transform)}")
        if type(transform) in _FLIPS:
            # lit_loader's flips draw the same numbers, mirror points exactly, and refuse points without pairs.
            pairs = getattr(transform, "flip_pairs", None)
            transform = _FLIPS[type(transform)](transform.p, flip_pairs=self.flip_pairs if pairs is None else pairs)
        elif type(transform) is v2.ElasticTransform:
            transform = ElasticTransform.like(transform)
        elif type(transform) is AlbumentationsTransform:
            transform = self._with_preset_fields(transform)
        image_only = isinstance(transform, _AUTO_AUGMENT) or type(transform) in _PIXELS_ONLY
        if self.needs_objects:
            self._check_moves(name, transform)
        elif takes_only_image(transform):
            image_only = True
        return ExtraTransform(
            transform,
            name=name,
            text=_text(transform),
            image_only=image_only,
            check_mirror=self.flip_pairs != () and _may_mirror(transform),
            flip_pairs=self.flip_pairs,
            check_canvas=self.needs_objects,
            sanitize=None if image_only else self.sanitize,
        )

    def _with_preset_fields(self, pipeline: AlbumentationsTransform) -> AlbumentationsTransform:
        """Return a pipeline that also knows the preset's mirror pairs and the names of its fields."""
        flip_pairs = self.flip_pairs if pipeline.flip_pairs is None else pipeline.flip_pairs
        per_object = pipeline.fields.per_object
        per_image = pipeline.fields.per_image
        # The pipeline's own declarations win over the preset's.
        if self.sanitize is not None:
            per_object |= self.sanitize.fields.per_object - per_image
            per_image |= self.sanitize.fields.per_image - per_object
        return AlbumentationsTransform(
            pipeline.transform, flip_pairs=flip_pairs, per_object=sorted(per_object), per_image=sorted(per_image)
        )

    def _check_moves(self, name: str, transform: Any) -> None:
        """Refuse a transform that would move pixels without the boxes, masks and points on them."""
        if isinstance(transform, _AUTO_AUGMENT):
            rule = f"would move pixels without their boxes, masks and points, which {self.task} needs"
            raise SettingError(name, _text(transform), rule, _MOVING_REMEDY)
        # torchvision rounds the canvas of boxes and the size of the image differently, and skips empty boxes.
        if isinstance(transform, v2.RandomRotation) and transform.expand:
            rule = "sets a canvas of boxes and points that can differ from the image by a pixel"
            raise SettingError(name, _text(transform), rule, "rotate without expand=True, after v2.Pad if need be")
        if takes_only_image(transform):
            rule = f"takes only an image, so {self.task} does not know whether boxes and points stay in place"
            raise SettingError(name, _text(transform), rule, "take (image, target), and return both")


def _may_mirror(transform: Any) -> bool:
    """Return True for functions of the user; transforms of torchvision other than flips never mirror."""
    is_known = type(transform).__module__.startswith(("torchvision.", "lit_loader."))
    return not is_known or isinstance(transform, v2.Lambda)


def may_move_pixels(steps: Any) -> bool:
    """Return True if a step that a user added to a preset may move pixels.

    Args:
        steps: The preset, or one of its steps.
    """
    if isinstance(steps, ExtraTransform):
        return not steps.image_only
    return any(map(may_move_pixels, getattr(steps, "transforms", ())))


def without_extras(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of a preset without the transforms that the user adds."""
    return {name: value for name, value in keywords.items() if name not in ("extra_before", "extra_after")}


def takes_only_image(transform: Callable[..., Any]) -> bool:
    """Return True if the signature of a transform shows that it takes an image without a target."""
    # nn.Module.__call__ accepts any arguments; forward has the real signature.
    function = transform.forward if isinstance(transform, nn.Module) else transform
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return False
    kinds = [parameter.kind for parameter in parameters if parameter.kind != parameter.KEYWORD_ONLY]
    return kinds in ([inspect.Parameter.POSITIONAL_ONLY], [inspect.Parameter.POSITIONAL_OR_KEYWORD])


def _check_kind(name: str, transform: Any) -> None:
    """Refuse everything that is not an instance of a transform of single samples."""
    if isinstance(transform, str):
        remedy = f"give an instance such as v2.ColorJitter(0.2), or in YAML {{_target_: {_full_name(transform)}}}"
        raise SettingError(name, transform, "is text, expected a transform", remedy)
    if isinstance(transform, Mapping):
        remedy = "in Python give an instance; in YAML each entry needs _target_: torchvision.transforms.v2.NAME"
        raise SettingError(name, dict(transform), "is a mapping, expected a transform", remedy)
    function = transform.func if isinstance(transform, partial) else transform
    if isinstance(function, type):
        remedy = f"give an instance, {function.__name__}(...); in YAML leave out _partial_"
        raise SettingError(name, function.__name__, "is a class, expected a transform", remedy)
    if not callable(transform):
        rule = f"is a {type(transform).__name__}, expected a transform"
        raise SettingError(name, transform, rule, "give a callable of (image, target) that returns both")
    kind = type(transform)
    if kind.__module__.startswith("torchvision.transforms.") and not isinstance(transform, v2.Transform):
        remedy = f"use torchvision.transforms.v2.{kind.__name__}" if hasattr(v2, kind.__name__) else "use one of v2"
        rule = "is of torchvision.transforms, whose transforms do not know boxes, masks and points"
        raise SettingError(name, _text(transform), rule, remedy)
    for unsuitable, (rule, remedy) in _UNSUITABLE.items():
        if isinstance(transform, unsuitable):
            raise SettingError(name, _text(transform), rule, remedy)


def _check_normalize(place: str, steps: Sequence[Any]) -> None:
    """Refuse a normalisation of uint8 images, which torchvision would refuse in the first batch."""
    for step in steps:
        transform = getattr(step, "transform", None)
        if isinstance(transform, v2.ToDtype):
            return
        if isinstance(transform, v2.Normalize):
            rule = "needs float images, and images are uint8 there"
            remedy = (
                "give lit_loader.transforms.NormalizeBatch as batch_transforms and as eval_batch_transforms; models of "
                "lit_loader.recipes normalise images themselves"
            )
            raise SettingError(place, _text(transform), rule, remedy)


def _base_flip(transform: Any) -> str:
    return "RandomHorizontalFlip" if isinstance(transform, v2.RandomHorizontalFlip) else "RandomVerticalFlip"


def _full_name(text: str) -> str:
    return f"torchvision.transforms.v2.{text}" if text.isidentifier() and hasattr(v2, text) else "PACKAGE.CLASS"


def _text(transform: Any) -> str:
    return ", ".join(describe([transform]))
