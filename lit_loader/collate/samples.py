"""Building blocks of collate functions: images stacked or padded, rows of targets, duplicate masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.collate.default import empty_batch, stack_tensors
from lit_loader.memory.batch_memory import is_channels_last


def transpose_samples(batch: Sequence[Any], *, num_elements: int | None = None) -> list[list[Any]]:
    """Return the first elements of all samples, the second ones, and so on.

    Args:
        batch: Samples, tuples or lists.
        num_elements: How many elements a sample must have, or None for two or more, equally many in all samples.

    Raises:
        TypeError: If a sample is not a tuple or list, or has too few elements.
        ValueError: If the batch is empty, or the samples differ in length or from ``num_elements``.
    """
    if not batch:
        raise ValueError("expected samples, got an empty batch; check that the batch sampler gives indices.")
    for sample in batch:
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise TypeError(
                f"a sample is a {type(sample).__name__}; expected (image, target, ...). "
                "For other samples use torch's default_collate."
            )
    lengths = sorted({len(sample) for sample in batch})
    if len(lengths) > 1:
        raise ValueError(f"expected samples of one length, got samples with {lengths} elements in a batch.")
    if num_elements is not None and lengths != [num_elements]:
        raise ValueError(
            f"samples have {lengths[0]} elements and this batch takes {num_elements}; leave the others out, or "
            "collate with DetectionCollate, which keeps them."
        )
    return [list(values) for values in zip(*batch, strict=True)]


def plain_images(images: Sequence[Any]) -> list[Tensor]:
    """Return images as plain tensors, without the ``tv_tensors.Image`` type; no pixel is copied.

    Args:
        images: Tensors of shape ``(C, H, W)``, of one dtype and number of channels.

    Raises:
        TypeError: If an image is not a tensor.
        ValueError: If an image does not have three dimensions, or dtypes or channels differ.
    """
    for image in images:
        if not isinstance(image, Tensor):
            raise TypeError(
                f"an image is a {type(image).__name__}, not a tensor; convert it in the dataset's "
                "transforms, for instance with torchvision.transforms.v2.ToImage()."
            )
    # Made first: asked of a subclass, each attribute takes 1 us.
    plain = [image.as_subclass(Tensor) for image in images]
    for image in plain:
        if image.ndim != 3:
            raise ValueError(f"an image has shape {tuple(image.shape)}; expected (C, H, W).")
    kinds = {(image.dtype, image.shape[0]) for image in plain}
    if len(kinds) > 1:
        told = sorted((str(dtype), channels) for dtype, channels in kinds)
        raise ValueError(
            f"the images of a batch differ in (dtype, channels): {told}; convert them alike in the "
            "dataset's transforms."
        )
    return plain


def stack_images(images: Sequence[Any], *, remedy: str) -> Tensor:
    """Write images of equal size into one tensor, each once.

    Args:
        images: Tensors of shape ``(C, H, W)``.
        remedy: The end of the error's message if sizes differ.

    Returns:
        Tensor of shape ``(B, C, H, W)``: channels last in memory if all images are uint8 and that, else contiguous.

    Raises:
        TypeError, ValueError: As ``plain_images``, or the sizes differ.
    """
    plain = plain_images(images)
    sizes = [tuple(image.shape[1:]) for image in plain]
    if len(set(sizes)) > 1:
        raise ValueError(f"images of different sizes (H, W) cannot be stacked: {sizes}; {remedy}.")
    are_channels_last = plain[0].dtype is torch.uint8 and all(map(_is_channels_last_alone, plain))
    if are_channels_last:
        plain = [image.permute(1, 2, 0) for image in plain]
    if all(image.is_cpu and not image.requires_grad for image in plain):
        stacked = stack_tensors(plain)
    else:
        stacked = torch.stack(plain).contiguous()
    return stacked.permute(0, 3, 1, 2) if are_channels_last else stacked


def _is_channels_last_alone(image: Tensor) -> bool:
    return is_channels_last(image) and not image.is_contiguous()


def pad_images(
    images: Sequence[Any], *, size_divisor: int = 1, pad_value: float = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Write images of any sizes into one tensor, each at the top left, padded right and below.

    Every element of the batch is written once.

    Args:
        images: Tensors of shape ``(C, H, W)``.
        size_divisor: Height and width of the batch are rounded up to a multiple of it.
        pad_value: Value of padded pixels, in the images' own units.

    Returns:
        The batch ``(B, C, H, W)``; the mask, bool ``(B, H, W)``, True on real pixels; the sizes, int64
        ``(B, 2)``, height and width of each image.

    Raises:
        TypeError, ValueError: As ``plain_images``, or ``pad_value`` does not fit the images' dtype.
    """
    plain = plain_images(images)
    dtype, num_channels = plain[0].dtype, plain[0].shape[0]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        if pad_value != int(pad_value) or not limits.min <= pad_value <= limits.max:
            raise ValueError(
                f"pad_value={pad_value} does not fit {dtype} images (whole numbers, {limits.min}..{limits.max}); "
                "give one in the images' own units."
            )
    sizes = torch.tensor([image.shape[1:] for image in plain], dtype=torch.int64)
    height, width = (-(-int(side) // size_divisor) * size_divisor for side in sizes.amax(dim=0))
    shape = (len(plain), num_channels, height, width)
    batch = empty_batch(shape, dtype, "cpu") if plain[0].is_cpu else plain[0].new_empty(shape)
    mask = torch.zeros((len(plain), height, width), dtype=torch.bool)
    for row, real, image in zip(batch, mask, plain, strict=True):
        image_height, image_width = image.shape[1:]
        row[:, :image_height, :image_width].copy_(image)
        row[:, :image_height, image_width:].fill_(pad_value)
        row[:, image_height:, :].fill_(pad_value)
        real[:image_height, :image_width] = True
    return batch, mask, sizes


def check_attribute_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of attributes as a tuple; TypeError if they are one string."""
    if isinstance(names, str):
        raise TypeError(f"attributes={names!r} is one string; give a list of names.")
    return tuple(names)


def target_field(target: Any, name: str, *, remedy: str) -> Any:
    """Return a field of a target.

    Raises:
        TypeError: If the target is not a mapping.
        ValueError: If it has no such field; the error ends with the remedy.
    """
    if not isinstance(target, Mapping):
        raise TypeError(f"a target is a {type(target).__name__}; expected a dict of fields.")
    if name not in target:
        raise ValueError(f"a target has no field {name!r}, only {sorted(target)}; {remedy}.")
    return target[name]


def field_rows(target: Any, name: str) -> Tensor:
    """Return a per-object field of a target as a plain tensor, ``(N, ...)``.

    Raises:
        TypeError: If the target is not a mapping, or the field not a tensor with rows.
        ValueError: If the target has no such field.
    """
    remedy = (
        "ask the data set for it (keypoints=True, attributes=[...]; crop comes from transforms.CropToObjects) and keep "
        "it in the transforms"
    )
    value = target_field(target, name, remedy=remedy)
    if not isinstance(value, Tensor) or value.ndim == 0:
        found = "a 0-d tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(f"field {name!r} of a target is {found}; expected a tensor with one row per object.")
    return value.as_subclass(Tensor)


def pad_rows(rows: Sequence[Tensor], *, value: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return tensors ``(N, ...)`` of any N as one tensor ``(B, max N, ...)``, padded at the end of each.

    Args:
        rows: The tensors, alike in all but N.
        value: Value of padded rows.
        dtype: Dtype of the result, or None for that of the first tensor.
    """
    first = rows[0]
    batch = first.new_full((len(rows), max(map(len, rows)), *first.shape[1:]), value, dtype=dtype)
    for padded, real in zip(batch, rows, strict=True):
        padded[: len(real)] = real
    return batch


def row_mask(counts: Sequence[int]) -> Tensor:
    """Return which rows of padded tensors are real, bool ``(B, max N)``."""
    return torch.arange(max(counts)) < torch.tensor(counts, dtype=torch.int64)[:, None]


def duplicate_mask(targets: Sequence[Any]) -> Tensor:
    """Return the field ``is_duplicate`` as one bool tensor ``(B,)``.

    Args:
        targets: One mapping for each sample.

    Raises:
        TypeError: If a target is not a mapping, or a mark not a bool.
        ValueError: If a target has no such field.
    """
    remedy = 'let __getitem__ add "is_duplicate": lit_loader.is_duplicate(), and keep it in the transforms'
    return mark_tensor([target_field(target, "is_duplicate", remedy=remedy) for target in targets])


def mark_tensor(marks: Sequence[Any]) -> Tensor:
    """Return the marks ``is_duplicate`` of samples as one bool tensor ``(B,)``; TypeError if one is not a bool."""
    for mark in marks:
        if not isinstance(mark, bool):
            raise TypeError(
                f"is_duplicate={mark!r} is a {type(mark).__name__}; expected the bool of lit_loader.is_duplicate()."
            )
    return torch.tensor(marks, dtype=torch.bool)
