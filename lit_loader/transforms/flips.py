"""Flips that mirror points exactly and exchange the left ones with the right ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import PIL.Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.images.lazy_image import LazyImage
from lit_loader.seeding import rand
from lit_loader.transforms.moving import Mirror, flat_targets, moved_targets, wrap
from lit_loader.transforms.preset_checks import check_chances
from lit_loader.transforms.visibility import target_points

__all__ = ["FLIP_REMEDY", "FlipPairs", "RandomHorizontalFlip", "RandomVerticalFlip", "check_flip_pairs"]

FlipPairs: TypeAlias = Sequence[Sequence[int]]

FLIP_REMEDY: Final = (
    "give flip_pairs=[[0, 1], ...], the positions of points that exchange their places, flip_pairs=[] if every point "
    "keeps its name, or hflip=0 (of a data module: train_transforms.flip_pairs, train_transforms.hflip)"
)
"""What to do about a flip of points whose pairs are not known."""


def check_flip_pairs(flip_pairs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Return the pairs as tuples.

    Raises:
        ValueError: A pair is not two different positions from 0, or a position stands in two pairs.
    """
    pairs: list[tuple[int, int]] = []
    seen: set[int] = set()
    for pair in flip_pairs:
        positions = () if isinstance(pair, str) or not isinstance(pair, Sequence) else tuple(pair)
        if len(positions) != 2 or any(type(position) is not int or position < 0 for position in positions):
            raise ValueError(f"flip_pairs holds {pair!r}; a pair is two positions of points, from 0.")
        if len({*positions, *seen}) < len(seen) + 2:
            raise ValueError(
                f"flip_pairs holds a position of {positions} twice; a point has one mirror image."
            )
        seen.update(positions)
        pairs.append(positions)
    return tuple(pairs)


class _RandomFlip(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Mirror images, boxes, masks and points along one axis, see the two subclasses."""

    axis: int

    def __init__(self, p: float = 0.5, *, flip_pairs: FlipPairs | None = None) -> None:
        super().__init__()
        check_chances(p=p)
        self.p = p
        self.flip_pairs = None if flip_pairs is None else check_flip_pairs(flip_pairs)
        self._mirror = Mirror(self.axis)
        # v2.Lambda picks the leaves as every v2 transform does, and draws nothing.
        self._mirror_leaves = v2.Lambda(self._mirror, Tensor, PIL.Image.Image)

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone.

        Returns:
            The sample, with a new target where it is flipped; the given one is not changed.

        Raises:
            TypeError: The points are not ``tv_tensors.KeyPoints``.
            ValueError: There are points and no ``flip_pairs`` were declared, or they do not fit.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        is_flipped = float(rand(1)) < self.p  # drawn whatever the sample holds, as torchvision's flips draw
        target = sample[1] if isinstance(sample, tuple | list) and len(sample) > 1 else None
        found = target_points(target)
        order = None if found is None else self._order(found[0].shape[1])
        if not is_flipped:
            return sample
        flipped = self._mirrored(sample)
        if order is None:
            return flipped
        image, target, *rest = flipped
        points = target["keypoints"]
        swapped = wrap(points.as_subclass(Tensor)[:, order], like=points)
        return (image, {**target, "keypoints": swapped, "visibility": target["visibility"][:, order]}, *rest)

    def _mirrored(self, sample: Any) -> Any:
        image, *rest = sample if isinstance(sample, tuple) and sample else (None,)
        if isinstance(image, LazyImage):
            return (image.changed(self._mirror), *moved_targets(rest, self._mirror))
        if type(image) is tv_tensors.Image and flat_targets(rest, size=image.shape[-2:]):
            return (self._mirror(image), *moved_targets(rest, self._mirror))
        return self._mirror_leaves(sample)

    def _order(self, num_points: int) -> list[int]:
        """Return which point each column shows after a flip."""
        if self.flip_pairs is None:
            if num_points < 2:
                return list(range(num_points))
            raise ValueError(
                f"the target has {num_points} points an object and no flip_pairs were declared: a flip would "
                f"name left points right; {FLIP_REMEDY}."
            )
        order = list(range(num_points))
        for first, second in self.flip_pairs:
            if max(first, second) >= num_points:
                raise ValueError(f"flip_pairs holds ({first}, {second}); the target has {num_points} points.")
            order[first], order[second] = second, first
        return order


class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with a probability: x goes to W - x for pixels, boxes, masks and points alike.

    Points of ``flip_pairs`` exchange their places in ``keypoints`` and ``visibility``: the mirrored left eye is
    a right eye. Visibility goes with its point.

    Determinism: one draw from torch's global generator, whatever the sample holds.

    Args:
        p: Probability of a flip, the first argument as in torchvision.
        flip_pairs: Positions of points that are each other's mirror image; ``[]``: every point keeps its name.
            ``None`` declares nothing, and a target with more than one point an object is then refused,
            whether or not the flip is drawn.

    Raises:
        ValueError: ``p`` is outside [0, 1], or the pairs are not disjoint pairs of positions.
    """

    axis = 0


class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with a probability: y goes to H - y for pixels, boxes, masks and points alike.

    Points of ``flip_pairs`` exchange their places, as in a horizontal flip: upside down by a mirror is upside
    down by a half turn and then mirrored left to right, so the left eye shows as a right eye.

    Determinism: one draw from torch's global generator, whatever the sample holds.

    Args:
        p: Probability of a flip, the first argument as in torchvision.
        flip_pairs: As for ``RandomHorizontalFlip``.

    Raises:
        ValueError: ``p`` is outside [0, 1], or the pairs are not disjoint pairs of positions.
    """

    axis = 1
