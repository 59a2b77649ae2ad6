"""`ClassAwareSampler`: classes take turns, and so do the images of each class."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.checks import checked_flag
from lit_loader.samplers.class_balanced import ClassSampler, ClassVisits, Labels
from lit_loader.samplers.order import SliceableOrder
from lit_loader.samplers.shuffle import cycles_order
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


class ClassAwareSampler(ClassSampler):
    """Takes the next class of a shuffled cycle of the classes, and the next image of a shuffled cycle of its images.

    So ``num_classes`` consecutive positions that begin at a multiple of ``num_classes`` hold every class once, and each
    batch is as balanced as possible. Every cycle has its own shuffle, and cycles continue from epoch to epoch: no image
    of a class repeats before all images of the class were visited. An image with several classes is in the cycle of
    each of them.

    `ClassBalancedSampler` with exponent 1 gives the classes the same shares of an epoch, but at shuffled positions: its
    batches are as uneven as independent draws. Its shares can be set.

    Making an order sorts its classes, the first slice that reads a class sorts its images, and a position takes 16
    bytes.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. A repeated class of an image counts once.
        num_samples: Positions in an epoch, or None for the number of images, or of classes if these are more.
        empty_as_class: True to treat images without a class as one more class; False never visits them, as in the
            paper.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        classes: The class ids that take turns, ascending; ids that no image contains are left out.
        empty_as_class: As given.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or no image has a class and ``empty_as_class`` is False.

    Source:
        Shen et al. 2016, "Relay backpropagation for effective learning of deep convolutional neural
        networks", class-aware sampling.
    """

    def __init__(
        self, labels: Labels, *, num_samples: int | None = None, empty_as_class: bool = False, seed: int | None = None
    ) -> None:
        super().__init__(labels, num_samples, seed)
        self.empty_as_class = checked_flag("empty_as_class", empty_as_class)
        # A class without images would have no image to visit when its turn comes.
        takes_turns = self._members.counts > 0
        self.classes = tuple(np.flatnonzero(takes_turns[:-1]).tolist())
        # The last row counts images without a class.
        takes_turns[-1] &= empty_as_class
        self._rows: IndexArray = np.flatnonzero(takes_turns)
        if len(self._rows) == 0:
            raise ValueError(
                f"none of the {self.num_indices} images has a class, and images without a class are not visited; set "
                "empty_as_class=True or use RandomSampler"
            )
        self._visits = takes_turns * (self._length / len(self._rows))

    def _visits_in(self, epoch: int) -> npt.NDArray[Any]:
        return self._visits

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits: a slice of an endless sequence in which each turn visits every class once."""
        first = epoch * len(self)
        num_rows = len(self._rows)
        # The order of the classes within each turn.
        rows = cycles_order(key64(seed, "turns of classes"), num_rows)[first : first + len(self)]
        turns = np.arange(first, first + len(self)) // num_rows
        num_turns = turns[-1] - turns[0] + 1
        num_visits = np.zeros(len(self._visits), dtype=np.int64)
        num_visits[self._rows] = num_turns
        firsts = np.full_like(num_visits, turns[0])
        # ClassVisits numbers the visits class after class.
        visits = rows * num_turns + turns - turns[0]
        cycles = ClassVisits(self._members, firsts, num_visits, (seed, "turns in class"))
        return SliceableOrder(len(self), partial(cycles.positions, visits))
