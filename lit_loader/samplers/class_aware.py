"""`ClassAwareSampler`: the classes in turns, and the images of each in turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_flag, checked_int
from lit_loader.samplers.class_members import ClassMembers, Labels, class_members
from lit_loader.samplers.cycles import ShuffledCycles, shuffled_cycles
from lit_loader.samplers.orders import SliceableOrder
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["ClassAwareSampler"]


class ClassAwareSampler(OrderSampler):
    """Takes the next class of a shuffled cycle of the classes, and the next image of a shuffled cycle of its images.

    So any ``num_classes`` positions in a row that begin at a multiple of it hold every class once, and a batch
    is as even in classes as it can be. Every cycle has its own shuffle, and they go on from epoch to epoch: no
    image of a class comes twice before all of them came. An image with several classes takes part in the cycle
    of each.

    `ClassBalancedSampler` with temperature 1 gives the classes the same shares, as quotas of the epoch whose
    places are shuffled over all of it; its batches are as uneven as chance makes them, its shares adjustable.

    An order costs a sort of each class's images in the first slice that meets the class, and 8 bytes a
    position.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. What an image names twice counts once.
        num_samples: Positions in an epoch; None: the number of images.
        empty_as_class: Whether images without a class are one more class; if not, they are never visited,
            as in the paper.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        classes: The class ids that take turns, ascending; an id that no image contains is not among them.
        empty_as_class: As given.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or no image has a class and ``empty_as_class`` is False.

    Source:
        Shen et al. 2016, "Relay backpropagation for effective learning of deep convolutional neural
        networks", class-aware sampling.
    """

    def __init__(
        self,
        labels: Labels,
        *,
        num_samples: int | None = None,
        empty_as_class: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        members = class_members(labels)
        self.empty_as_class = checked_flag("empty_as_class", empty_as_class)
        self._num_samples = (
            members.num_images if num_samples is None else checked_int("num_samples", num_samples, minimum=1)
        )
        taken = members.counts > 0
        self.classes = tuple(np.flatnonzero(taken[:-1]).tolist())
        taken[-1] &= empty_as_class
        self._rows: IndexArray = np.flatnonzero(taken)
        if len(self._rows) == 0:
            raise ValueError(
                f"none of the {members.num_images} images has a class, and without one an image is not visited; "
                "set empty_as_class=True or take RandomSampler"
            )
        self._members = members

    def __len__(self) -> int:
        return self._num_samples

    @property
    def num_indices(self) -> int:
        """The number of images."""
        return self._members.num_images

    def order(self, *, seed: int, epoch: int) -> SliceableOrder:
        """Return the epoch's visits."""
        return _ClassAwareOrder(self._members, self._rows, self._num_samples, seed=seed, epoch=epoch)

    def _identity(self) -> tuple[Any, ...]:
        members = self._members
        return self._num_samples, self._rows, members.num_images, members.counts, members.members

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ``num_samples / num_classes`` times the sum over an image's classes of 1 over their images."""
        members = self._members
        rates = np.zeros(len(members.counts))
        rates[self._rows] = self._num_samples / (len(self._rows) * members.counts[self._rows])
        return np.bincount(
            members.members, weights=np.repeat(rates, members.counts), minlength=members.num_images
        ).astype(np.float64, copy=False)


class _ClassAwareOrder(SliceableOrder):
    """One epoch of a row that has no end: turn k of the classes is visit k to each of them."""

    def __init__(
        self, members: ClassMembers, rows: IndexArray, length: int, *, seed: int, epoch: int
    ) -> None:
        super().__init__(length)
        self._members, self._rows, self._seed = members, rows, seed
        self._first = epoch * length  # the epoch's first place in the row
        self._classes = ShuffledCycles(key64(seed, "turns of classes"), len(rows))
        self._first_turn = self._first // len(rows)
        num_turns = (self._first + length - 1) // len(rows) + 1 - self._first_turn
        self._images = np.full((len(rows), num_turns), -1, dtype=np.int64)  # -1: the class was not met yet

    def positions(self, start: int, stop: int) -> IndexArray:
        start, stop = self._first + start, self._first + stop
        classes = self._classes.visits(start, stop)
        turns = np.arange(start, stop) // len(self._rows) - self._first_turn
        images = self._images[classes, turns]
        missing = images < 0
        if missing.any():
            for c in np.unique(classes[missing]).tolist():
                self._images[c] = self._images_of(int(self._rows[c]))
            images = self._images[classes, turns]
        return images

    def _images_of(self, c: int) -> IndexArray:
        """Return the image of class c at each of the epoch's turns."""
        first, count = self._first_turn, int(self._members.counts[c])
        key = key64(self._seed, "turns in class", c)
        row = shuffled_cycles(key, count, first, first + self._images.shape[1])
        return self._members.members[int(self._members.starts[c]) + row]
