"""`ClassBalancedSampler`: an exact quota of every epoch for each class, and every image in its turn."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_int, checked_number
from lit_loader.samplers.class_members import ClassMembers, Labels, class_members
from lit_loader.samplers.cycles import shuffled_cycles
from lit_loader.samplers.orders import SliceableOrder, permutation
from lit_loader.samplers.quotas import class_quotas, class_shares
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["ClassBalancedSampler"]


class ClassBalancedSampler(OrderSampler):
    """Visits classes by quota and the images of a class in shuffled cycles.

    Class c gets a share of the positions in proportion to ``n_c ** (1 - temperature)``, n_c being the
    number of images that contain it. In every epoch it is visited exactly ``quotas[c]`` times, at places
    shuffled anew. Each visit takes the next image of the class's cycle: a shuffle of its images, followed
    by another when it is through, going on from epoch to epoch. So within a cycle each image comes exactly
    once, and no image is ever forgotten. An image with several classes takes part in the cycle of each.

    Images without a class are a class of their own, whose share is ``empty_share``.

    At temperature 1 the classes are equal over the epoch, not within a batch; `ClassAwareSampler` deals
    them in turns, so that every batch holds as many of each as can be.

    An order costs O(num_samples log num_samples) in its epoch's first slice, and 24 bytes a position.

    Args:
        labels: One class id an image (-1 for none); or ``(offsets, classes)``, int64 ``(N + 1,)`` and
            ``(offsets[-1],)``, as `AnnotationTable` has them; or one sequence of ids an image. What an
            image names twice counts once.
        temperature: In [0, 1]; 0 is the natural share of a class, 1 the same share for all.
        num_samples: Positions in an epoch; None: the number of images.
        empty_share: Share of the positions for images without a class, in [0, 1]; None: their natural share
            of the images. At 0 they are never visited.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        temperature, empty_share: As used; ``empty_share`` is a float.
        num_classes: Largest class id plus one.
        class_counts: int64 ``(num_classes,)``, images that contain each class.
        absent_classes: Ids below ``num_classes`` that no image contains; they get no position.
        quotas: int64 ``(num_classes,)``, visits of each class in every epoch.
        empty_quota: Visits of images without a class in every epoch.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, ``empty_share`` asks for images that there are not, or
            there are fewer positions than classes.

    Source:
        See `lit_loader.samplers.quotas.class_shares`.
    """

    def __init__(
        self,
        labels: Labels,
        *,
        temperature: float = 1.0,
        num_samples: int | None = None,
        empty_share: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        members = class_members(labels)
        self.temperature = _checked_fraction("temperature", temperature)
        self._members = members
        self._num_samples = (
            members.num_images if num_samples is None else checked_int("num_samples", num_samples, minimum=1)
        )
        empty = _empty_share(members, empty_share)
        shares = class_shares(members.counts[:-1].tolist(), temperature=self.temperature)
        self._quotas = class_quotas([share * (1 - empty) for share in shares] + [empty], self._num_samples)
        self._quotas.flags.writeable = False
        self.empty_share = float(empty)
        self.num_classes = members.num_classes
        self.class_counts = members.counts[:-1]
        self.absent_classes = tuple(np.flatnonzero(self.class_counts == 0).tolist())
        self.quotas = self._quotas[:-1]
        self.empty_quota = int(self._quotas[-1])

    def __len__(self) -> int:
        return self._num_samples

    @property
    def num_indices(self) -> int:
        """The number of images."""
        return self._members.num_images

    def order(self, *, seed: int, epoch: int) -> SliceableOrder:
        """Return the epoch's visits."""
        return _ClassBalancedOrder(self._members, self._quotas, seed=seed, epoch=epoch)

    def _identity(self) -> tuple[Any, ...]:
        members = self._members
        return self._quotas, members.num_images, members.counts, members.members

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return the sum over an image's classes of ``quotas[c] / class_counts[c]``."""
        members = self._members
        rates = self._quotas / np.maximum(members.counts, 1)
        return np.bincount(
            members.members, weights=np.repeat(rates, members.counts), minlength=members.num_images
        ).astype(np.float64, copy=False)


class _ClassBalancedOrder(SliceableOrder):
    """One epoch: visits stand class after class, a class's are computed when first asked for."""

    def __init__(self, members: ClassMembers, quotas: IndexArray, *, seed: int, epoch: int) -> None:
        super().__init__(int(quotas.sum()))
        self._members, self._quotas, self._seed, self._epoch = members, quotas, seed, epoch
        self._starts = np.append(0, np.cumsum(quotas))
        self._visits: IndexArray | None = None
        self._images = np.full(len(self), -1, dtype=np.int64)  # -1: the class was not asked for yet

    def positions(self, start: int, stop: int) -> IndexArray:
        if self._visits is None:
            self._visits = self._place_visits()
        visits = self._visits[start:stop]
        images = self._images[visits]
        if (images < 0).any():
            missing = np.searchsorted(self._starts, visits[images < 0], side="right") - 1
            for c in np.unique(missing).tolist():
                self._images[self._starts[c] : self._starts[c + 1]] = self._images_of(c)
            images = self._images[visits]
        return images

    def _place_visits(self) -> IndexArray:
        """Return the visit at each position: classes are shuffled, the visits of a class are in order."""
        classes = np.repeat(np.arange(len(self._quotas)), self._quotas)
        classes = classes[permutation(key64(self._seed, "classes", self._epoch), len(self))]
        visits = np.empty(len(self), dtype=np.int64)
        visits[np.argsort(classes, kind="stable")] = np.arange(len(self))
        return visits

    def _images_of(self, c: int) -> IndexArray:
        """Return the images that class c visits in this epoch: a piece of its row of shuffled cycles."""
        count, quota = int(self._members.counts[c]), int(self._quotas[c])
        first = self._epoch * quota
        row = shuffled_cycles(key64(self._seed, "cycles of class", c), count, first, first + quota)
        return self._members.members[int(self._members.starts[c]) + row]


def _empty_share(members: ClassMembers, empty_share: float | None) -> Fraction:
    num_empty = int(members.counts[-1])
    if empty_share is None:
        return Fraction(num_empty, members.num_images)
    share = Fraction(_checked_fraction("empty_share", empty_share))
    if share > 0 and num_empty == 0:
        raise ValueError(
            f"empty_share={empty_share}, but every image has a class; leave it None or set it to 0"
        )
    if share < 1 and num_empty == members.num_images:
        raise ValueError(f"empty_share={empty_share}, but no image has a class; leave it None or set it to 1")
    return share


def _checked_fraction(name: str, value: float) -> float:
    number = checked_number(name, value, rule="in [0, 1]")
    if not 0 <= number <= 1:
        raise ValueError(f"`{name}` must lie in [0, 1], got {name}={value}")
    return number
