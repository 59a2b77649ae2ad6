"""The classification dataset: whole images or single objects, labelled by class or by an attribute."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lit_loader.annotations import LabelSets, image_labels
from lit_loader.datasets.detection import DetectionDataset, DetectionSample
from lit_loader.datasets.samples import SampleUnit, check_sample_unit, every_sample, labelled_samples
from lit_loader.datasets.targets import unlabelled_labels
from lit_loader.images.decoded_cache import CachedReader, CacheSettings
from lit_loader.images.reading import ImageReading
from lit_loader.seeding import is_duplicate
from lit_loader.transforms import DecodeAwareCompose, ScheduledTransform
from lit_loader.transforms.preset_extras import takes_only_image

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable
    from lit_loader.storage.images import StoredSamples

__all__ = ["ClassificationDataset", "ClassificationSample"]

ClassificationSample: TypeAlias = tuple[Any, int | Tensor, int, bool]
"""``(image, label, image_id, is_duplicate)``; a transform may return any type."""

# These refuse samples with boxes.
_AUTO_AUGMENT: Final = (v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide, v2.AugMix)
_CONTAINERS: Final = (v2.Compose, v2.RandomApply, v2.RandomChoice, v2.RandomOrder)


class ClassificationDataset(Dataset[ClassificationSample]):
    """Images with a label.

    ``dataset[i]`` is ``(image, label, image_id, is_duplicate)``. The image is a ``tv_tensors.Image``, uint8,
    ``(3, H, W)``, before ``transforms``. The label is an int from 0, or with ``multi_label`` a float32 tensor
    ``(num_labels,)`` of 0 and 1, and -1 for a class in ``unlabelled_classes`` of the table without an object in the
    image (a single label ignores them). For ``image_id`` see `AnnotationTable.image_numbers`, for the bool
    ``is_duplicate`` see `lit_loader.is_duplicate`. A sample without a known label is left out, or with
    ``unlabelled="keep"`` gets the label -1 (with ``multi_label``, no 1).

    Labels apply to the whole image or object: a random crop that removes the labelled thing does not change them.

    Runs in: the main process, workers and threads. Determinism: only ``transforms`` may be random.

    Args:
        table: The annotations. The dataset's own ``table`` has one image row per sample.
        label_attribute: The attribute to use as label, or None for the class.
        multi_label: An image may have several labels or, without any object, none.
        sample_unit: ``"image"``: one sample per image; ``"object"``: one sample per object, which ``transforms`` must
            cut out, for example with ``classification_transforms(crop=True)``.
        unlabelled: ``"keep"`` makes every image or object a sample, for prediction. This includes images with several
            labels without ``multi_label``, whose label is -1.
        transforms: Called as ``transforms(image, target)`` with the target of `DetectionDataset`, labels from 0. With
            ``sample_unit="image"``, a transform is called as ``transforms(image)`` if it takes one argument, like
            torchvision's v1 transforms, or contains ``AutoAugment``, ``RandAugment``, ``TrivialAugmentWide`` or
            ``AugMix`` from ``transforms.v2``, which refuse boxes.
        reading: Settings for reading image files.
        cache: Cache decoded images, see `DetectionDataset`; all samples of an image share its entry.

    Attributes:
        class_names: Names of the labels.
        cache: The decoded cache, or None.
        num_left_out: Images (or objects) of the argument ``table`` that are not samples.

    Raises:
        ValueError: An argument is not one of its choices, or images have several labels without ``multi_label``.
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
        # Before the table is read: `every_sample` does not see `multi_label`.
        check_sample_unit(sample_unit, multi_label=multi_label)
        if unlabelled == "keep":
            self.table, self.num_left_out = every_sample(table, sample_unit=sample_unit)
        else:
            self.table, self.num_left_out = labelled_samples(
                table, label_attribute=label_attribute, multi_label=multi_label, sample_unit=sample_unit
            )
        # Images for prediction may not have the attribute at all.
        if unlabelled == "drop" or label_attribute is None or label_attribute in self.table.attributes:
            self.class_names = self.table.labels_of(label_attribute)[1]
            self._labels = image_labels(self.table, label_attribute)
        else:
            self.class_names = ()
            offsets = np.zeros(self.table.num_images + 1, dtype=np.int64)
            self._labels = LabelSets(offsets, np.empty(0, dtype=np.int64))
        self.label_attribute = label_attribute
        self.multi_label = multi_label
        # Unlabelled classes leave the values of an attribute known.
        self._unlabelled_ids = [] if label_attribute is not None else list(unlabelled_labels(self.table, 0))
        if transforms is not None and sample_unit == "image" and _takes_only_image(transforms):
            transforms = partial(_transform_image, transforms)
        # First label 0: a classifier has no background class, unlike torchvision's detectors.
        self._samples = DetectionDataset(self.table, transforms=transforms, first_label=0, reading=reading, cache=cache)
        self.cache: CachedReader | None = self._samples.cache
        # With points, flips need the target to check that flip_pairs are declared.
        if self.table.keypoints is None:
            self._samples.skip_targets()

    def __len__(self) -> int:
        return len(self._samples)

    def sample_path(self, index: SupportsIndex) -> Path | str:
        """Return the path of a sample's image file, see `DetectionDataset`."""
        return self._samples.sample_path(index)

    def stored_samples(self) -> list[StoredSamples]:
        """Return the stores that images are read from, see `DetectionDataset.stored_samples`."""
        return self._samples.stored_samples()

    def __getitem__(self, index: SupportsIndex) -> ClassificationSample:
        """Read one sample.

        Args:
            index: From ``-len(self)`` to ``len(self) - 1``.

        Raises:
            IndexError: ``index`` is out of range.
            ImageError: The image cannot be decoded; the message names the file.
        """
        # Read first: it checks the index, so that the position below is valid.
        sample = self._samples[index]
        position = operator.index(index) % len(self)
        return sample[0], self.label(position), int(self.table.image_numbers[position]), is_duplicate()

    def label(self, position: int) -> int | Tensor:
        """Return the label of a sample without opening its image, see the class; -1 for none, or more than one.

        Args:
            position: From ``-len(self)`` to ``len(self) - 1``.

        Raises:
            IndexError: ``position`` is out of range.
        """
        position = range(len(self))[position]
        offsets, classes = self._labels
        labels = classes[offsets[position] : offsets[position + 1]]
        if not self.multi_label:
            return int(labels[0]) if len(labels) == 1 else -1
        one_hot = np.zeros(len(self.class_names), dtype=np.float32)
        if self._unlabelled_ids:
            one_hot[self._unlabelled_ids] = -1
        # An annotated object is certain evidence, also of a class that is not labelled everywhere.
        one_hot[labels] = 1
        return torch.from_numpy(one_hot)


def _transform_image(transform: Callable[..., Any], image: Any, target: dict[str, Any]) -> DetectionSample:
    return transform(image), target


def _takes_only_image(transforms: Callable[..., Any]) -> bool:
    """Return True if a transform takes an image without a target."""
    # A v2.Compose like those below, but it always accepts a target.
    if isinstance(transforms, DecodeAwareCompose):
        return False
    if isinstance(transforms, _AUTO_AUGMENT):
        return True
    if isinstance(transforms, ScheduledTransform):
        return any(map(_takes_only_image, transforms.examples()))
    if isinstance(transforms, _CONTAINERS):
        return any(map(_takes_only_image, transforms.transforms))
    return takes_only_image(transforms)
