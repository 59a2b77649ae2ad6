"""Rules of the transforms that a user adds to a preset: checks, flips with mirror pairs, targets that stay in step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.transforms.albumentations import AlbumentationsTransform
from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.description import describe
from lit_loader.transforms.elastic import ElasticTransform
from lit_loader.transforms.extra_transform import ExtraTransform
from lit_loader.transforms.flips import FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.oriented import check_moves_oriented
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.scheduled import ScheduledTransform

__all__ = ["ExtraRules", "check_holds_oriented", "may_move_pixels", "takes_only_image", "without_extras"]


# NOTE [Transforms added to a preset]
# torchvision's v2 transforms move boxes, masks and points with the pixels, but know neither the visibility of points
# nor left and right, clamp boxes to the canvas without removing those without area, and some ignore targets. So each
# added transform runs in an `ExtraTransform`, which brings the target back in step before the next transform.
# - A box that a crop clamped to a segment on the rim would have an area again after a rotation, and a point off the
#   canvas could come back with a perspective. Both are therefore dealt with after each transform, not only at the end.
# - A flip by a user's function would call a mirrored left eye a left eye. `_is_mirrored` detects it by the points.
# - Containers are made anew from their parts, so that each part gets an `ExtraTransform`.

_FLIPS: Final = ((v2.RandomHorizontalFlip, RandomHorizontalFlip), (v2.RandomVerticalFlip, RandomVerticalFlip))
_COMPOSITIONS: Final = (v2.Compose, DecodeAwareCompose, nn.Sequential)
_CONTAINERS: Final = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)
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
_BATCH_REMEDY: Final = (
    "for classification choose mixing=BatchMixing({name}=1.0) of the data module, in a config mixing={option}; mix "
    "others in a function of a batch, given as its batch_transforms"
)
# Refused with a reason and a remedy.
_UNSUITABLE: Final = {
    v2.CutMix: ("mixes the images of a batch", _BATCH_REMEDY.format(name="cutmix", option="cutmix")),
    v2.MixUp: ("mixes the images of a batch", _BATCH_REMEDY.format(name="mixup", option="batch_mixup")),
    v2.FiveCrop: ("returns several images", "use RandomCrop or CenterCrop"),
    v2.TenCrop: ("returns several images", "use RandomCrop or CenterCrop"),
    v2.SanitizeBoundingBoxes: (
        "removes boxes and labels, but no other field of their objects",
        "remove it; detection_transforms removes objects from every field, see min_box_size and min_box_area",
    ),
    v2.ConvertBoundingBoxFormat: ("changes the format of boxes, which stay XYXY here", "remove it"),
}
_OBJECT_TYPES: Final = (tv_tensors.Image, tv_tensors.BoundingBoxes, tv_tensors.Mask, tv_tensors.KeyPoints)
_MOVING_REMEDY: Final = (
    "use transforms of colours such as ColorJitter, transforms that move boxes too such as RandomAffine, or an "
    "AlbumentationsTransform"
)


@dataclass(frozen=True)
class ExtraRules:
    """Rules of the transforms that a user adds to a preset; see NOTE [Transforms added to a preset].

    Attributes:
        task: The preset's task for errors, such as ``"detection"``.
        flip_pairs: The preset's pairs of points, for flips that have none.
        needs_objects: True if boxes, masks and points matter after the transforms.
        sanitize: Removes objects that left the image after each transform, or None to keep every row.
    """

    task: str
    flip_pairs: FlipPairs | None = None
    needs_objects: bool = True
    sanitize: SanitizeObjects | None = None

    def steps(self, place: str, transforms: Any) -> list[nn.Module]:
        """Return the steps of a preset that apply transforms of the user.

        Args:
            place: The preset's argument for errors, such as ``"extra_after"``.
            transforms: Its value.

        Raises:
            SettingError: A transform cannot be used there; the message names a remedy.
        """
        if callable(transforms):
            rule = "is one transform, expected a sequence of them"
            raise SettingError(place, _text(transforms), rule, f"put it into a list: {place}=[...]")
        if isinstance(transforms, str | Mapping) or not isinstance(transforms, Sequence):
            rule = "should be a sequence of transforms"
            raise SettingError(place, transforms, rule, f"give a list: {place}=[...]")
        entries = [(f"{place}[{position}]", transform) for position, transform in enumerate(transforms)]
        steps = [step for name, transform in entries for step in self._steps(name, transform)]
        _check_normalize(place, steps)
        return steps

    def _steps(self, name: str, transform: Any) -> Iterator[nn.Module]:
        """Yield the steps of one transform; a composition has several."""
        _check_kind(name, transform)
        # Exact types, because a subclass may do more than call its parts.
        if type(transform) in _COMPOSITIONS:
            for part in getattr(transform, "transforms", transform):
                yield from self._steps(name, part)
        elif type(transform) in _CONTAINERS:
            chance = {"p": transform.p} if hasattr(transform, "p") else {}
            yield type(transform)([self._single(name, part) for part in transform.transforms], **chance)
        else:
            yield self._step(name, transform)

    def _single(self, name: str, transform: Any) -> nn.Module:
        """Return a transform as one step, so that probabilities of choices keep their positions."""
        steps = list(self._steps(name, transform))
        return steps[0] if len(steps) == 1 else v2.Compose(steps)

    def _step(self, name: str, transform: Any) -> nn.Module:
        """Return a transform without parts as a step."""
        for base, flip in _FLIPS:
            if type(transform) in (base, flip):
                # lit_loader's flips draw the same numbers, mirror points exactly, and refuse points without pairs.
                pairs = getattr(transform, "flip_pairs", None)
                transform = flip(transform.p, flip_pairs=self.flip_pairs if pairs is None else pairs)
            elif isinstance(transform, base):
                rule = "is a subclass of torchvision's flip, which does not swap left and right points"
                raise SettingError(name, _text(transform), rule, f"use lit_loader.transforms.{flip.__name__}")
        if type(transform) is v2.ElasticTransform:
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
            check_mirror=(self.flip_pairs is None or len(self.flip_pairs) > 0) and _may_mirror(transform),
            flip_pairs=self.flip_pairs,
            check_objects=self.needs_objects,
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
        if isinstance(transform, v2.Lambda) and not all(issubclass(kind, transform.types) for kind in _OBJECT_TYPES):
            rule = f"is not called for all boxes, masks and points, so {self.task} does not know whether they stay"
            remedy = "use v2.Lambda(function, tv_tensors.TVTensor), or a function that takes (image, target)"
            raise SettingError(name, _text(transform), rule, f"{remedy} and returns both")
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
    if isinstance(steps, ScheduledTransform):
        return any(map(may_move_pixels, steps.examples()))
    return any(map(may_move_pixels, getattr(steps, "transforms", ())))


def check_holds_oriented(transforms: Any) -> None:
    """Refuse transforms that cannot move oriented boxes.

    Args:
        transforms: A transform, which may contain others, or None.

    Raises:
        SettingError: One of them takes only boxes along the axes, or would change their shape.
    """
    transform = transforms.transform if isinstance(transforms, ExtraTransform) else transforms
    if isinstance(transform, ScheduledTransform):
        parts: Any = transform.examples()
    else:
        parts = transform if isinstance(transform, nn.Sequential) else getattr(transform, "transforms", ())
    for part in parts:
        check_holds_oriented(part)
    check_moves_oriented(transform)
    rule = "moves boxes along the axes, and targets have oriented boxes"
    if isinstance(transform, AlbumentationsTransform) and transform.moves:
        raise SettingError("transforms", _text(transform), rule, "use transforms of torchvision that move pixels")
    if isinstance(transform, CropToObjects):
        raise SettingError("transforms", _text(transform), rule, "crop to objects without oriented=...")


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
    # A preset replaces those in its list by their transforms of the epoch, which its rules then check.
    if isinstance(transform, ScheduledTransform):
        rule = "is inside of another transform, expected it in the list itself"
        raise SettingError(name, str(transform), rule, "give the ScheduledTransform without the one around it")
    kind = type(transform)
    # By name, because Albumentations may not be installed, and takes a second to import.
    if any(base.__module__.partition(".")[0] == "albumentations" for base in kind.__mro__):
        rule = "is of Albumentations, whose transforms do not take (image, target)"
        remedy = "use lit_loader.transforms.AlbumentationsTransform(A.Compose([...], bbox_params=...))"
        raise SettingError(name, kind.__name__, rule, remedy)
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


def _full_name(text: str) -> str:
    return f"torchvision.transforms.v2.{text}" if text.isidentifier() and hasattr(v2, text) else "PACKAGE.CLASS"


def _text(transform: Any) -> str:
    return ", ".join(describe([transform]))
