"""`ClassBalancedSampler`: an exact quota of each class in every epoch, and shuffled cycles of its images."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.errors import SettingError
from lit_loader.samplers.checks import checked_integers, checked_num_samples, checked_number, refuse_first
from lit_loader.samplers.epoch_settings import EpochQuotas, EpochSetting
from lit_loader.samplers.order import SizedSampler, SliceableOrder
from lit_loader.samplers.shuffle import permutation, shuffled_cycles
from lit_loader.schedules import EpochSchedule, Scheduled
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

Labels = (
    Sequence[int]
    | npt.NDArray[Any]
    | torch.Tensor
    | tuple[npt.NDArray[Any] | torch.Tensor, npt.NDArray[Any] | torch.Tensor]
    | Sequence[Sequence[int]]
)

# Largest class id; more are allowed if there are ten ids an image.
_LARGEST_ID = 1_000_000


class ClassSampler(SizedSampler):
    """Base of the samplers that visit classes."""

    def __init__(self, labels: Labels, num_samples: int | None, seed: int | None) -> None:
        super().__init__(seed=seed)
        self._members = class_members(labels)
        self._num_indices = self._members.num_images
        num_classes = int(np.count_nonzero(self._members.counts))
        self._length = checked_num_samples(num_samples, max(self._num_indices, num_classes))

    @abc.abstractmethod
    def _visits_in(self, epoch: int) -> npt.NDArray[Any]:
        """Return the mean number of visits of each class in an epoch, over seeds, ``(num_classes + 1,)``.

        The last entry counts images without a class.
        """

    def _identity(self) -> tuple[Any, ...]:
        return len(self), self.num_indices, self._visits_in(0), self._members.counts, self._members.members

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return for each image the sum, over its classes, of the class's visits divided by the class's images."""
        members = self._members
        rates = np.repeat(self._visits_in(epoch) / np.maximum(members.counts, 1), members.counts)
        visits = np.bincount(members.members, weights=rates, minlength=members.num_images)
        return visits.astype(np.float64, copy=False)


class ClassBalancedSampler(ClassSampler):
    """Visits classes by quota and the images of a class in shuffled cycles.

    Class c gets a share of the positions in proportion to ``n_c ** (1 - exponent)``, where n_c is the number of images
    that contain it. Every epoch visits it exactly ``quotas[c]`` times, at newly shuffled positions. Each visit takes
    the next image of the class's cycle, a shuffle of its images; after the last image the next shuffle begins. Cycles
    continue from epoch to epoch, so every image is visited once in each cycle. An image with several classes is in the
    cycle of each of them.

    Images without a class form one more class, whose share is ``empty_share``.

    With exponent 1 the classes are balanced over the epoch, not within a batch. `ClassAwareSampler` balances each batch
    as far as possible.

    ``exponent`` and ``empty_share`` may be schedules of epochs. The quotas of every epoch are exact then, too, and
    cycles continue although quotas change. `quotas_of` returns the quotas of an epoch.

    Making an order takes O(num_samples log num_samples), the first slice that reads a class sorts its images, and a
    position takes 16 bytes.

    Args:
        labels: One class id an image (-1 for none); or ``(offsets, classes)``, int64 ``(N + 1,)`` and
            ``(offsets[-1],)``, as in `AnnotationTable`; or one sequence of ids an image. A repeated class of an image
            counts once.
        exponent: In [0, 1]; 0 gives each class its natural share, 1 gives all classes the same share. An
            `EpochSchedule`, or a mapping such as ``{"points": {0: 0.0, 10: 1.0}}``, changes it from epoch to epoch.
        num_samples: Positions in an epoch, or None for the number of images, or of classes if these are more.
        empty_share: Share of the positions for images without a class, in [0, 1], or None for their natural share
            of the images. At 0 they are never visited. It may be a schedule, like ``exponent``.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        exponent, empty_share: The values in use, floats or schedules.
        num_classes: Largest class id plus one.
        class_counts: int64 ``(num_classes,)``, images that contain each class.
        absent_classes: Ids below ``num_classes`` that no image contains; they get no position.
        quotas: int64 ``(num_classes,)``, number of visits of each class in every epoch; with schedules in epoch 0.
        empty_quota: Number of visits of images without a class in every epoch; with schedules in epoch 0.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, ``empty_share`` does not fit the number of images without a class,
            there are fewer positions than classes, or a schedule is drawn for every batch.

    Source:
        Conneau and Lample 2019, "Cross-lingual language model pretraining" (alpha is 1 - exponent);
        equal shares: Shen et al. 2016, "Relay backpropagation for effective learning of deep CNNs",
        class-aware sampling.
    """

    def __init__(
        self,
        labels: Labels,
        *,
        exponent: Scheduled = 1.0,
        num_samples: int | None = None,
        empty_share: Scheduled | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(labels, num_samples, seed)
        self.class_counts = self._members.counts[:-1]
        self.num_classes = len(self.class_counts)
        self.absent_classes = tuple(np.flatnonzero(self.class_counts == 0).tolist())
        check_empty = partial(_checked_empty_share, int(self._members.counts[-1]), self.num_indices)
        self._settings = {
            "exponent": EpochSetting("exponent", exponent, checked_number),
            "empty_share": EpochSetting("empty_share", empty_share, check_empty),
        }
        self.exponent: float | EpochSchedule = self._settings["exponent"].schedule or self._settings["exponent"].at(0)
        empty = self._settings["empty_share"]
        self.empty_share: float | EpochSchedule = empty.schedule or float(empty.at(0))
        quotas_of = partial(_class_quotas, self.class_counts.tolist(), self._length)
        self._quotas = EpochQuotas(list(self._settings.values()), quotas_of)
        # Views of one array.
        self.quotas = self._quotas.at(0)[:-1]
        self.empty_quota = int(self._quotas.at(0)[-1])

    @property
    def schedules(self) -> tuple[EpochSchedule, ...]:
        """Schedules of ``exponent`` and ``empty_share``."""
        return tuple(setting.schedule for setting in self._settings.values() if setting.schedule is not None)

    def quotas_of(self, epoch: int) -> tuple[IndexArray, int]:
        """Return `quotas` and `empty_quota` of an epoch."""
        quotas = self._quotas.at(epoch)
        return quotas[:-1], int(quotas[-1])

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits."""
        quotas = self._quotas.at(epoch)
        classes = np.repeat(np.arange(len(quotas)), quotas)
        classes = classes[permutation(key64(seed, "classes", epoch), len(self))]
        # ClassVisits numbers the visits class after class. The stable sort keeps a class's visits in their order.
        visits = np.empty(len(self), dtype=np.int64)
        visits[np.argsort(classes, kind="stable")] = np.arange(len(self))
        cycles = ClassVisits(self._members, self._quotas.before(epoch), quotas, (seed, "cycles of class"))
        return SliceableOrder(len(self), partial(cycles.positions, visits))

    def _visits_in(self, epoch: int) -> IndexArray:
        return self._quotas.at(epoch)

    def _identity(self) -> tuple[Any, ...]:
        # Quotas identify constant settings, so that checkpoints of earlier versions stay valid.
        identity = super()._identity()
        if not self.schedules:
            return identity
        return *identity, *(part for setting in self._settings.values() for part in setting.identity())


def _checked_empty_share(num_empty: int, num_images: int, name: str, value: Any) -> Fraction:
    """Return the share of images without a class, exactly; None is their natural share."""
    if value is None:
        return Fraction(num_empty, num_images)
    share = Fraction(checked_number(name, value))
    if share > 0 and num_empty == 0:
        raise ValueError(f"{name}={value}, but every image has a class; leave it out or set 0")
    if share < 1 and num_empty == num_images:
        raise ValueError(f"{name}={value}, but no image has a class; leave it out or set it to 1")
    return share


def _class_quotas(counts: Sequence[int], num_samples: int, exponent: float, empty: Fraction) -> IndexArray:
    """Return the number of visits of each class in an epoch; the last number is for images without a class."""
    shares = class_shares(counts, exponent=exponent)
    # Whole numbers in the same proportions: class c gets ``(1 - empty) * share / sum(shares)``.
    class_parts = [share * (empty.denominator - empty.numerator) for share in shares]
    return class_quotas([*class_parts, empty.numerator * (sum(shares) or 1)], num_samples)


# -- which images contain which class ----------------------------------------------------------------------


class ClassMembers(NamedTuple):
    """The images of each class, ascending, class after class; images without a class come last.

    Attributes:
        num_images: Number of images.
        counts: int64 ``(num_classes + 1,)``, images that contain each class; the last entry counts the
            images that contain none.
        members: int64 ``(counts.sum(),)``, image indices.
    """

    num_images: int
    counts: IndexArray
    members: IndexArray

    def largest(self, values: npt.NDArray[np.float64], *, empty: float) -> npt.NDArray[np.float64]:
        """Return the largest value among the classes of each image.

        Args:
            values: float64 ``(num_classes,)``, one for each class, not negative.
            empty: Value of an image without a class.

        Returns:
            float64 ``(num_images,)``.
        """
        result = np.zeros(self.num_images)
        np.maximum.at(result, self.members, np.repeat(np.append(values, empty), self.counts))
        return result


def class_members(labels: Labels) -> ClassMembers:
    """Return the images of each class.

    Args:
        labels: One class id an image, shape ``(num_images,)``, -1 for none; or a tuple
            ``(offsets, classes)``, where image i has ``classes[offsets[i] : offsets[i + 1]]``; or one
            sequence of class ids an image. A repeated class of an image counts once.

    Raises:
        TypeError: If the labels are not integers.
        ValueError: If the labels are empty, the offsets do not fit, or a class id is negative (the first is named) or
            so large that most ids below it are unused.
    """
    images, classes, num_images = _pairs(labels)
    if num_images == 0:
        raise ValueError("`labels` is empty; give the labels of at least one image")
    num_classes = int(classes.max(initial=-1)) + 1
    largest = max(_LARGEST_ID, 10 * num_images)
    if num_classes - 1 > largest:
        raise ValueError(
            f"class id {num_classes - 1} exceeds {largest}, and every id up to the largest takes memory; renumber the "
            "classes from 0, for instance with np.unique(classes, return_inverse=True)"
        )
    # One number for each pair, sorted by class and image. np.unique does the same, ten times slower.
    pairs = np.sort(classes * num_images + images)
    # A repeated class of an image counts once.
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    members = pairs % num_images
    has_class = np.zeros(num_images, dtype=np.bool_)
    has_class[members] = True
    empty = np.flatnonzero(~has_class)
    counts = np.append(np.bincount(pairs // num_images, minlength=num_classes), len(empty)).astype(np.int64)
    return ClassMembers(num_images, counts, np.concatenate([members, empty]))


def _pairs(labels: Labels) -> tuple[IndexArray, IndexArray, int]:
    """Return (image, class) pairs in the images' order, and the number of images."""
    # A tuple of two ints is one class id for each of two images.
    if isinstance(labels, tuple) and len(labels) == 2 and not isinstance(labels[0], int | np.integer):
        offsets = checked_integers("offsets", labels[0])
        classes = checked_integers("classes", labels[1])
        ends = offsets[:1].tolist() + offsets[-1:].tolist()
        if ends != [0, len(classes)] or (np.diff(offsets) < 0).any():
            raise ValueError(
                f"`offsets` must rise from 0 to len(classes)={len(classes)} without falling, got {ends}; a tuple of "
                "two is read as (offsets, classes), so pass one sequence of ids an image as a list"
            )
    elif isinstance(labels, np.ndarray | torch.Tensor) or all(isinstance(label, int | np.integer) for label in labels):
        single = checked_integers("labels", labels)
        refuse_first("labels", single, single < -1, rule="be class ids from 0, or -1 for none")
        images = np.flatnonzero(single >= 0)
        return images, single[images], len(single)
    else:
        rows = [checked_integers(f"labels[{i}]", row) for i, row in enumerate(labels)]
        offsets = np.cumsum([0] + [len(row) for row in rows])
        classes = np.concatenate(rows)
    refuse_first("classes", classes, classes < 0, rule="be class ids from 0")
    num_images = len(offsets) - 1
    return np.repeat(np.arange(num_images), np.diff(offsets)), classes, num_images


# -- shares and quotas -------------------------------------------------------------------------------------


def class_shares(counts: Sequence[int], *, exponent: float) -> list[int]:
    """Return a whole number for each class, in proportion to ``n_c ** (1 - exponent)``: its share of the positions.

    Exponent 0 keeps the natural shares, 1 makes them equal. The powers are rounded to 12 digits, because machines
    differ beyond that; the arithmetic after that is exact.

    Args:
        counts: n_c, the number of images that contain class c.
        exponent: In [0, 1].

    Returns:
        Not negative; 0 for a class without images.

    Source:
        See `ClassBalancedSampler`.
    """
    # A power of at least 1 with 12 digits has at most 11 of them behind the point.
    return [int(Decimal(f"{float(n) ** (1.0 - exponent):.12g}").scaleb(11)) if n else 0 for n in counts]


def class_quotas(shares: Sequence[Fraction | int], num_samples: int) -> IndexArray:
    """Divide positions among classes in proportion to their shares; a share above 0 gets at least one position.

    Largest remainder method: every class gets its share rounded down, and the remaining positions go to the largest
    remainders, with the lower class id first on ties. A class with quota 0 then takes one position from the largest
    quota: otherwise training would silently never see it.

    Args:
        shares: Numbers that are not negative, with a positive sum.
        num_samples: Positions to divide.

    Returns:
        int64 array, shape ``(len(shares),)``, sum ``num_samples``.

    Raises:
        ValueError: If there are more classes with a share than positions.
    """
    has_share = np.array([share > 0 for share in shares], dtype=np.bool_)
    num_classes = int(has_share.sum())
    if num_classes > num_samples:
        rule = f"is less than the {num_classes} classes that have a share, so some would never be visited"
        raise SettingError("num_samples", num_samples, rule, settings={"num_samples": num_classes})
    # Whole numbers, because remainders that differ by a rounding error would give machines different quotas.
    denominator = math.lcm(*(share.denominator for share in shares))
    parts = [share.numerator * (denominator // share.denominator) for share in shares]
    total = sum(parts)
    floors, remainders = zip(*(divmod(part * num_samples, total) for part in parts), strict=True)
    quotas = np.array(floors, dtype=np.int64)
    largest_remainders = sorted(range(len(shares)), key=lambda c: -remainders[c])
    quotas[largest_remainders[: num_samples - int(quotas.sum())]] += 1
    for c in np.flatnonzero((quotas == 0) & has_share):
        quotas[quotas.argmax()] -= 1
        quotas[c] = 1
    return quotas


# -- an epoch ----------------------------------------------------------------------------------------------


class ClassVisits:
    """One epoch of visits to classes; each visit takes the next image of its class's shuffled cycles.

    Visits are numbered class after class. The images of a class are computed when one of its visits is first read,
    because the first batch may need only a few of many thousands of classes.

    Args:
        members: The images of each class.
        firsts: Number of visits of each class in earlier epochs, ``(num_classes + 1,)``; the last entry is for images
            without a class.
        num_visits: Number of visits of each class in this epoch, ``(num_classes + 1,)``; 0 for a class without images.
        key: The parts of the cycles' key that precede the class.
    """

    def __init__(self, members: ClassMembers, firsts: IndexArray, num_visits: IndexArray, key: tuple[int, str]) -> None:
        self._members = members
        self._firsts = firsts
        self._key = key
        self._member_offsets = np.append(0, np.cumsum(members.counts))
        self._visit_offsets = np.append(0, np.cumsum(num_visits))
        # -1 where not computed yet.
        self._images = np.full(self._visit_offsets[-1], -1, dtype=np.int64)

    def positions(self, visits: IndexArray, start: int, stop: int) -> IndexArray:
        """Return the images of ``visits[start:stop]``, which are numbers of visits."""
        numbers = visits[start:stop]
        missing = numbers[self._images[numbers] < 0]
        # Threads that read the same order compute the same images, so no lock is needed.
        for c in np.unique(np.searchsorted(self._visit_offsets, missing, side="right") - 1).tolist():
            begin, end = self._visit_offsets[c : c + 2].tolist()
            first = int(self._firsts[c])
            images = self._members.members[self._member_offsets[c] : self._member_offsets[c + 1]]
            cycles = shuffled_cycles(key64(*self._key, c), len(images), first, first + end - begin)
            self._images[begin:end] = images[cycles]
        return self._images[numbers]
