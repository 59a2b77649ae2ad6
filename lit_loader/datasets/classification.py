"""The classification data set: whole images or single objects, labelled by class or by an attribute."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lit_loader.annotations import LabelSets, image_labels
from lit_loader.datasets.detection import DetectionDataset, DetectionSample
from lit_loader.datasets.samples import SampleUnit, check_sample_unit, every_sample, labelled_samples
from lit_loader.images.decoded_cache import CachedReader, CacheSettings
from lit_loader.images.reading import ImageReading
from lit_loader.seeding import is_duplicate
from lit_loader.transforms import DecodeAwareCompose

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["ClassificationDataset", "ClassificationSample"]

ClassificationSample: TypeAlias = tuple[Any, int | Tensor, int, bool]
"""``(image, label, image_id, is_duplicate)``; what a transform gives may be of any type."""

_AUTO_AUGMENT: Final = (v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide, v2.AugMix)
_CONTAINERS: Final = (v2.Compose, v2.RandomApply, v2.RandomChoice, v2.RandomOrder)


class ClassificationDataset(Dataset[ClassificationSample]):
    """Images with a label.

    ``dataset[i]`` is ``(image, label, image_id, is_duplicate)``: the image a ``tv_tensors.Image``, uint8,
    ``(3, H, W)``, until ``transforms`` change it; the label an int from 0, or with ``multi_label`` float32
    ``(num_labels,)`` of 0 and 1; ``image_id`` that of `table.image_numbers`; ``is_duplicate`` a bool, what
    `lit_loader.is_duplicate` says of the sample. A sample whose label is not known is left out, unless ``unlabelled``
    keeps it: its label is -1 (or, with ``multi_label``, all 0).

    Labels are those of the whole image or object: a random crop that cuts the one labelled thing away
    does not change them.

    Runs in: the main process, workers and threads alike. Determinism: no randomness of its own.

    Args:
        table: The annotations; `table` of the data set has one image row for each sample.
        label_attribute: The attribute that labels, or None for the class.
        multi_label: An image may have several labels or, without any object, none.
        sample_unit: ``"image"``: one sample an image; ``"object"``: one sample an object, which ``transforms`` must
            cut out, such as ``classification_transforms(crop=True)`` does.
        unlabelled: ``"keep"`` makes every image, or object, a sample, as prediction wants it; so are images with
            several labels without ``multi_label``, whose label is -1 too.
        transforms: Called as ``transforms(image, target)`` with the target of `DetectionDataset`, labels from 0. With
            ``sample_unit="image"`` a transform that takes one argument, as torchvision's first version has them, or
            that holds ``AutoAugment``, ``RandAugment``, ``TrivialAugmentWide`` or ``AugMix`` of ``transforms.v2``,
            which refuse boxes, is called as ``transforms(image)``.
        reading: How image files are read.
        cache: Keep the images decoded, see `DetectionDataset`; all samples of an image share it.

    Attributes:
        class_names: Names of the labels.
        cache: The decoded cache, or None if there is none.
        num_left_out: Images (or objects) of the given table that are no sample.

    Raises:
        ValueError: An argument is out of range, or images have several labels without ``multi_label``.
    """

    def __init__(
        self,
        table: AnnotationTable,
        *,
        label_attribute: str | None = None,
        multi_label: bool = False,
        sample_unit: SampleUnit = "image",
        unlabelled: Literal["drop", "keep"] = "drop",
        transforms: Callable[[Any, dict[str, Any]], DetectionSample] | None = None,
        reading: ImageReading = ImageReading(),
        cache: CacheSettings | bool = False,
    ) -> None:
        if unlabelled not in ("drop", "keep"):
            raise ValueError(f"unlabelled={unlabelled!r} is not one of ['drop', 'keep'].")
        check_sample_unit(sample_unit, multi_label=multi_label)
        if unlabelled == "keep":
            self.table, self.num_left_out = every_sample(table, sample_unit=sample_unit)
        else:
            self.table, self.num_left_out = labelled_samples(
                table, label_attribute=label_attribute, multi_label=multi_label, sample_unit=sample_unit
            )
        # What nothing is known of may lack the attribute altogether.
        has_labels = (
            unlabelled == "drop" or label_attribute is None or label_attribute in self.table.attributes
        )
        self.class_names = self.table.labels_of(label_attribute)[1] if has_labels else ()
        self._labels = (
            image_labels(self.table, label_attribute) if has_labels else _no_labels(self.table.num_images)
        )
        self.label_attribute, self.multi_label = label_attribute, multi_label
        if transforms is not None and sample_unit == "image" and _takes_image_alone(transforms):
            transforms = _ImageTransform(transforms)
        self._samples = DetectionDataset(
            self.table, transforms=transforms, first_label=0, reading=reading, cache=cache
        )
        self.cache: CachedReader | None = self._samples.cache
        if self.table.keypoints is None:  # with points, flips check that they know left from right
            self._samples.skip_targets()

    def __len__(self) -> int:
        return len(self._samples)

    def sample_path(self, index: SupportsIndex) -> Path:
        """Return the image file of a sample, see `DetectionDataset`."""
        return self._samples.sample_path(index)

    def __getitem__(self, index: SupportsIndex) -> ClassificationSample:
        """Read one sample.

        Args:
            index: From ``-len(self)`` to ``len(self) - 1``.

        Raises:
            IndexError: ``index`` is out of range.
            ImageError: The image cannot be decoded; the message names the file.
        """
        sample = self._samples[index]
        position = operator.index(index) % len(self)
        return sample[0], self.label(position), int(self.table.image_numbers[position]), is_duplicate()

    def label(self, position: int) -> int | Tensor:
        """Return the label of a sample, with no image opened; -1 where there is none, or more than one.

        Args:
            position: From ``-len(self)`` to ``len(self) - 1``.

        Raises:
            IndexError: ``position`` is out of range.
        """
        position = range(len(self))[position]
        offsets, classes = self._labels
        known = classes[offsets[position] : offsets[position + 1]]
        if not self.multi_label:
            return int(known[0]) if len(known) == 1 else -1
        hot = np.zeros(len(self.class_names), dtype=np.float32)
        hot[known] = 1
        return torch.from_numpy(hot)


class _ImageTransform:
    """Apply a transform of images to the image of a sample, and leave its target.

    Args:
        transform: Called as ``transform(image)``.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform

    def __call__(self, image: Any, target: dict[str, Any]) -> DetectionSample:
        """Return the new image with the same target."""
        return self.transform(image), target


def _takes_image_alone(transforms: Callable[..., Any]) -> bool:
    """Return whether a transform takes an image and no target."""
    if isinstance(transforms, DecodeAwareCompose):
        return False
    if isinstance(transforms, _AUTO_AUGMENT):
        return True
    if isinstance(transforms, _CONTAINERS):
        return any(map(_takes_image_alone, transforms.transforms))
    # A module's own signature takes anything.
    function = transforms.forward if isinstance(transforms, nn.Module) else transforms
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin
        return False
    kinds = [parameter.kind for parameter in parameters if parameter.kind != parameter.KEYWORD_ONLY]
    return kinds in ([inspect.Parameter.POSITIONAL_ONLY], [inspect.Parameter.POSITIONAL_OR_KEYWORD])


def _no_labels(num_images: int) -> LabelSets:
    return LabelSets(np.zeros(num_images + 1, dtype=np.int64), np.empty(0, dtype=np.int64))
