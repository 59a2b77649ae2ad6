"""`ClassAwareSampler`: the classes in turns, and the images of each in turns."""

from __future__ import annotations

from functools import partial

import numpy as np

from lit_loader.samplers.checks import checked_flag
from lit_loader.samplers.class_balanced import ClassSampler, ClassVisits, Labels
from lit_loader.samplers.order import SliceableOrder
from lit_loader.samplers.shuffle import cycles_order
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


class ClassAwareSampler(ClassSampler):
    """Takes the next class of a shuffled cycle of the classes, and the next image of a shuffled cycle of its images.

    So any ``num_classes`` consecutive positions that begin at a multiple of it hold every class once, and the classes
    in a batch are as even as possible. Every cycle has its own shuffle, and cycles continue from epoch to epoch: no
    image of a class comes twice before all of them came. An image with several classes is in the cycle of each.

    `ClassBalancedSampler` with exponent 1 gives the classes the same shares, as quotas of the epoch at shuffled
    positions. Its batches are as uneven as independent draws would make them, and its shares can be set.

    An order costs a sort of its classes when it is made, a sort of each class's images in the first slice that reads
    the class, and 16 bytes a position.

    Args:
        labels: As `ClassBalancedSampler` takes them: one class id an image (-1 for none); or
            ``(offsets, classes)``; or one sequence of ids an image. What an image names twice counts once.
        num_samples: Positions in an epoch, or None for the number of images, or of classes if these are more.
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
        super().__init__(labels, num_samples, seed)
        self.empty_as_class = checked_flag("empty_as_class", empty_as_class)
        taken = self._members.counts > 0
        self.classes = tuple(np.flatnonzero(taken[:-1]).tolist())
        taken[-1] &= empty_as_class
        self._rows: IndexArray = np.flatnonzero(taken)
        if len(self._rows) == 0:
            raise ValueError(
                f"none of the {self.num_indices} images has a class, and without one an image is not visited; "
                "set empty_as_class=True or use RandomSampler"
            )
        self._visits = taken * (self._length / len(self._rows))

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits: a slice of an endless sequence, in which turn k visits every class once more."""
        first, num_rows = epoch * len(self), len(self._rows)
        rows = cycles_order(key64(seed, "turns of classes"), num_rows)[first : first + len(self)]
        turns = np.arange(first, first + len(self)) // num_rows
        visited = np.zeros(len(self._visits), dtype=np.int64)
        visited[self._rows] = num_turns = turns[-1] - turns[0] + 1
        firsts = np.full_like(visited, turns[0])
        visits = rows * num_turns + turns - turns[0]
        cycles = ClassVisits(self._members, firsts, visited, (seed, "turns in class"))
        return SliceableOrder(len(self), partial(cycles.positions, visits))
