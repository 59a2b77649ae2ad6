"""Flips that mirror keypoints exactly and swap left and right points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import PIL.Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import LazyImage
from lit_loader.seeding import rand
from lit_loader.transforms.moving import Mirror, flat_targets, moved, moved_targets, wrap
from lit_loader.transforms.preset_checks import check_chances
from lit_loader.transforms.visibility import target_points

__all__ = ["FLIP_REMEDY", "FlipPairs", "RandomHorizontalFlip", "RandomVerticalFlip", "check_flip_pairs"]

FlipPairs: TypeAlias = Sequence[Sequence[int]]

FLIP_REMEDY: Final = (
    "pass the pairs of points that a flip swaps in flip_pairs, or flip_pairs=[] if every point keeps its name"
)
"""Remedy for errors about flips of points without known pairs."""


def check_flip_pairs(flip_pairs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Check pairs of point positions and return them as tuples.

    Raises:
        ValueError: A pair is not two different positions from 0, or two pairs share a position.
    """
    pairs: list[tuple[int, int]] = []
    seen_positions: set[int] = set()
    for pair in flip_pairs:
        positions = () if isinstance(pair, str) or not isinstance(pair, Sequence) else tuple(pair)
        if len(positions) != 2 or any(type(position) is not int or position < 0 for position in positions):
            raise ValueError(f"flip_pairs contains {pair!r}; expected two positions of points, counted from 0.")
        # Two new positions enlarge the set by 2; a repeated one, in this pair or an earlier one, does not.
        if len({*positions, *seen_positions}) < len(seen_positions) + 2:
            raise ValueError(f"flip_pairs contains a position of {positions} twice; a point has one mirror image.")
        seen_positions.update(positions)
        pairs.append(positions)
    return tuple(pairs)


class _RandomFlip(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Mirror images, boxes, masks and points along one axis; see the two subclasses."""

    axis: int

    def __init__(self, p: float = 0.5, *, flip_pairs: FlipPairs | None = None) -> None:
        super().__init__()
        check_chances(p=p)
        self.p = p
        self.flip_pairs = None if flip_pairs is None else check_flip_pairs(flip_pairs)
        self._mirror = Mirror(self.axis)
        # v2.Lambda selects the leaves of a sample like every v2 transform, and draws nothing.
        self._mirror_leaves = v2.Lambda(partial(moved, move=self._mirror), Tensor, PIL.Image.Image)

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone.

        Returns:
            The sample, with a new target if it is flipped; the input is not modified.

        Raises:
            TypeError: The points are not ``tv_tensors.KeyPoints``.
            ValueError: There are points but ``flip_pairs`` is None, or a pair exceeds the number of points.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        # Draw for every sample, as torchvision's flips do.
        is_flipped = float(rand(1)) < self.p
        points_and_visibility = target_points(sample[1] if isinstance(sample, tuple | list) and sample[1:] else None)
        # Check the pairs even if this sample is not flipped, so that a mistake shows in the first batch.
        order = None if points_and_visibility is None else self._order(points_and_visibility[0].shape[1])
        if not is_flipped:
            return sample
        flipped_sample = self._mirrored(sample)
        if order is None:
            return flipped_sample
        image, target, *extras = flipped_sample
        keypoints = wrap(target["keypoints"].as_subclass(Tensor)[:, order], like=target["keypoints"])
        target = {**target, "keypoints": keypoints, "visibility": target["visibility"][:, order]}
        return (image, target, *extras)

    def _mirrored(self, sample: Any) -> Any:
        image, *targets = sample if isinstance(sample, tuple) and sample else (None,)
        # Postponed until the pixels are read, which may be fewer then.
        if isinstance(image, LazyImage):
            return (image.changed(self._mirror), *moved_targets(targets, self._mirror))
        if type(image) is tv_tensors.Image and flat_targets(targets, size=image.shape[-2:]):
            return (self._mirror(image), *moved_targets(targets, self._mirror))
        return self._mirror_leaves(sample)

    def _order(self, num_points: int) -> list[int]:
        """Return the position of the point to move to each position in a flip."""
        order = list(range(num_points))
        if self.flip_pairs is None and num_points > 1:
            rule = f"but the target has {num_points} points per object, so a flip would label left points as right"
            raise SettingError("flip_pairs", None, rule, FLIP_REMEDY)
        for first, second in self.flip_pairs or ():
            if max(first, second) >= num_points:
                raise ValueError(f"flip_pairs contains ({first}, {second}); the target has {num_points} points.")
            order[first] = second
            order[second] = first
        return order


class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with a probability: x becomes W - x for pixels, boxes, masks and points.

    The points of a pair in ``flip_pairs`` swap places in ``keypoints`` and ``visibility``, because a mirrored left eye
    is a right eye.

    Determinism: one draw from torch's global generator for every sample.

    Args:
        p: Probability of a flip; the first argument, as in torchvision.
        flip_pairs: Pairs of positions of points that are mirror images of each other; ``[]`` if every point keeps its
            name. With ``None``, a target with more than one point per object is refused, whether or not it is flipped.

    Raises:
        ValueError: ``p`` is outside [0, 1], or the pairs are not disjoint pairs of positions.
    """

    axis = 0


class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with a probability: y becomes H - y for pixels, boxes, masks and points.

    The points of a pair in ``flip_pairs`` swap places as in a horizontal flip: a vertical flip is a half turn followed
    by a horizontal flip, so a left eye becomes a right eye.

    Determinism: one draw from torch's global generator for every sample.

    Args:
        p: Probability of a flip; the first argument, as in torchvision.
        flip_pairs: See ``RandomHorizontalFlip``.

    Raises:
        ValueError: ``p`` is outside [0, 1], or the pairs are not disjoint pairs of positions.
    """

    axis = 1
