"""Base class of the mixes of images with objects, and checks of their settings."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage
from lit_loader.mixing import Mix, MixSample
from lit_loader.schedules import EpochSchedule, Schedule, as_schedule, example_epochs, schedules_in, value_at
from lit_loader.seeding import SampleRng
from lit_loader.transforms.mix_objects import check_boxes
from lit_loader.transforms.sanitize import DeclaredFields

__all__ = [
    "ImageMix",
    "as_mix_sample",
    "as_pair",
    "check_fraction",
    "check_pair",
    "check_scale",
    "checked_setting",
    "fields_of",
    "is_number",
    "pixel_rows",
]


class ImageMix(Mix):
    """A mix of images with objects; a subclass defines `mixed` and `num_partners`.

    Args:
        p: Probability that a sample is mixed, in [0, 1]; may be a schedule of epochs.
    """

    @abstractmethod
    def mixed(self, samples: list[MixSample], rng: SampleRng) -> MixSample:
        """Return one sample made of several; see `apply`."""

    def apply(self, samples: list[Any], rng: SampleRng) -> Any:
        """Return one sample made of several.

        Args:
            samples: The sample, then its partners: `MixSample`, or ``(image, target)`` with a uint8 image
                ``(3, H, W)``. No image or target is written to.
            rng: Generators of the sample.

        Returns:
            A sample of the same kind as the first one. Boxes are float32 XYXY, clipped to the new canvas, or oriented.

        Raises:
            TypeError: A sample, its image, boxes, points or masks have another type.
            ValueError: The targets of the samples have different fields, or one that is not declared; `MixingDataset`
                declares them.
        """
        mixed_sample = self.mixed([as_mix_sample(sample) for sample in samples], rng)
        return mixed_sample if isinstance(samples[0], MixSample) else as_pair(mixed_sample, like=samples[0])


def fields_of(sample: MixSample) -> DeclaredFields:
    """Return the names of the fields of a sample's target."""
    return DeclaredFields() if sample.fields is None else sample.fields


def as_pair(sample: MixSample, *, like: tuple[Any, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return ``(image, target)`` of a mixed sample; the image has the type of the image of ``like``."""
    image = sample.image.image()
    return (image if isinstance(like[0], tv_tensors.Image) else image.as_subclass(Tensor)), sample.target


def as_mix_sample(sample: Any, fields: DeclaredFields | None = None) -> MixSample:
    """Return a sample ``(image, target)`` as a `MixSample`, which is returned unchanged.

    Args:
        sample: A `MixSample`, or a tuple of a uint8 image ``(3, H, W)`` and a target.
        fields: Names of the fields of the target.

    Raises:
        TypeError: The sample, its image or its boxes have another type.
    """
    if isinstance(sample, MixSample):
        return sample
    if not isinstance(sample, tuple) or len(sample) != 2:
        raise TypeError(f"mixing needs samples (image, target), got {type(sample).__name__}; return such tuples.")
    image, target = sample
    if not isinstance(image, Tensor) or image.dtype is not torch.uint8 or image.ndim != 3 or len(image) != 3:
        kind = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        remedy = "convert it with torchvision's v2.ToImage() and v2.RGB(), and scale and normalise after mixing"
        raise TypeError(f"mixing needs images as uint8 tensors (3, H, W), got {kind}; {remedy}.")
    check_boxes(target)
    # The data set may return the same tensor again, so it must not be written to.
    return MixSample(DecodedImage(image.as_subclass(Tensor), is_shared=True), target, fields=fields)


def checked_setting(name: str, value: Any, check: Callable[[str, Any], None]) -> Any:
    """Return a setting with its schedules, after a check of the values that it will take.

    Args:
        name: The argument's name.
        value: A plain value, a schedule or its mapping, or a list with schedules.
        check: Called with the name and a plain value; raises SettingError.

    Raises:
        SettingError: A value is wrong, or a list has an entry that depends on the batch.
    """
    setting = as_schedule(value)
    for example in _examples(name, setting):
        check(name, example)
    return setting


def _examples(name: str, setting: Any) -> list[Any]:
    """Return values that a setting will take."""
    if isinstance(setting, Schedule):
        return setting.examples()
    schedules = schedules_in(setting)
    if not all(isinstance(schedule, EpochSchedule) for schedule in schedules):
        rule = "has an entry that is drawn for every batch, independently of the others"
        raise SettingError(name, setting, rule, "draw whole lists, such as {choices: [[320, 320], [384, 384]]}")
    return [value_at(setting, epoch) for epoch in example_epochs(schedules)]


def is_number(value: Any) -> bool:
    """Return True for a finite number, and False for a bool."""
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def check_fraction(name: str, value: Any) -> None:
    """Raise SettingError unless a value is a number in [0, 1]."""
    if not is_number(value) or not 0 <= value <= 1:
        raise SettingError(name, value, "is not a number in [0, 1]")


def check_pair(name: str, value: Any, *, low: float, high: float = math.inf) -> None:
    """Raise SettingError unless a value is two numbers above or at ``low`` and ``high``, in ascending order."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))
    if not is_pair or not low <= value[0] <= value[1] <= high:
        limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        raise SettingError(name, value, f"is not a smallest and a largest number, {limits}")


def check_scale(name: str, value: Any) -> None:
    """Raise SettingError unless a value is a smallest and a largest factor, above 0."""
    check_pair(name, value, low=0)
    if value[0] == 0:
        raise SettingError(name, value, "has a factor of 0, which shows no pixels")


def pixel_rows(pixels: Tensor) -> npt.NDArray[np.uint8]:
    """Return a view ``(height, width, 3)`` of an image ``(3, height, width)``."""
    array: npt.NDArray[np.uint8] = pixels.as_subclass(Tensor).permute(1, 2, 0).numpy()
    return array
