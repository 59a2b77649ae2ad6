"""Building blocks of collate functions: stacked or padded images, target fields, duplicate masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.collate.default import empty_batch, stack_tensors
from lit_loader.memory.batch_memory import is_channels_last


def transpose_samples(batch: Sequence[Any], *, elements: Sequence[str] = ()) -> list[list[Any]]:
    """Turn a list of samples into one list per element: all images, all targets, and so on.

    Args:
        batch: Samples, tuples or lists.
        elements: Names of the elements that a sample must have, or none for any length of at least 2.

    Raises:
        TypeError: If a sample is not a tuple or list, or has fewer than two elements.
        ValueError: If the batch is empty, or the samples differ in length, or from ``elements``.
    """
    if not batch:
        raise ValueError("expected samples, got an empty batch; check that the batch sampler yields indices.")
    for sample in batch:
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise TypeError(
                f"expected a sample (image, target, ...), got a {type(sample).__name__}; for other samples use "
                "default_collate."
            )
    # Before the transposition, because the error of zip() names neither the lengths nor the remedy.
    lengths = sorted({len(sample) for sample in batch})
    if len(lengths) > 1:
        raise ValueError(
            f"expected samples of one length, got samples with {lengths} elements in a batch; check the dataset."
        )
    if elements and lengths != [len(elements)]:
        remedy = "return all of these"
        if lengths[0] > len(elements):
            remedy = "return only these, or collate with DetectionCollate, which keeps further elements"
        raise ValueError(f"expected samples ({', '.join(elements)}), got {lengths[0]} elements; {remedy}.")
    return [list(values) for values in zip(*batch, strict=True)]


def plain_images(images: Sequence[Any]) -> list[Tensor]:
    """Return images as plain tensors without the ``tv_tensors.Image`` type; pixels are not copied.

    Args:
        images: Tensors of shape ``(C, H, W)``, all with the same dtype and number of channels.

    Raises:
        TypeError: If an image is not a tensor.
        ValueError: If an image does not have three dimensions, or dtypes or channels differ.
    """
    for image in images:
        if not isinstance(image, Tensor):
            raise TypeError(
                f"expected an image to be a tensor, got a {type(image).__name__}; convert it in the dataset's "
                "transforms, for instance with torchvision.transforms.v2.ToImage()."
            )
    # Converted before the checks, because reading an attribute of a tensor subclass takes 1 us.
    plain = [image.as_subclass(Tensor) for image in images]
    for image in plain:
        if image.ndim != 3:
            raise ValueError(f"expected an image of shape (C, H, W), got {tuple(image.shape)}; check the transforms.")
    kinds = sorted({(str(image.dtype), image.shape[0]) for image in plain})
    if len(kinds) > 1:
        raise ValueError(
            f"expected images of one dtype and number of channels, got {kinds} in a batch; convert them in the "
            "dataset's transforms."
        )
    return plain


def stack_images(images: Sequence[Any], *, remedy: str) -> Tensor:
    """Stack images of one size; every pixel is copied at most once.

    Args:
        images: Tensors of shape ``(C, H, W)``.
        remedy: End of the error message if sizes differ.

    Returns:
        Tensor of shape ``(B, C, H, W)``: channels last in memory if all images are uint8 and channels last, else
        contiguous.

    Raises:
        TypeError, ValueError: As `plain_images`, or if sizes differ.
    """
    plain = plain_images(images)
    sizes = [tuple(image.shape[1:]) for image in plain]
    if len(set(sizes)) > 1:
        raise ValueError(f"expected images of one size to stack, got sizes (H, W) {sizes}; {remedy}.")
    # Decoders return uint8 images channels last. In that layout the stack is a plain copy, without a transposition.
    are_channels_last = plain[0].dtype is torch.uint8 and all(
        # An image with one channel is contiguous in both layouts.
        is_channels_last(image) and not image.is_contiguous()
        for image in plain
    )
    if are_channels_last:
        plain = [image.permute(1, 2, 0) for image in plain]
    # Memory of batches is on the CPU, and autograd does not record writes to it.
    if all(image.is_cpu and not image.requires_grad for image in plain):
        stacked = stack_tensors(plain)
    else:
        stacked = torch.stack(plain).contiguous()
    return stacked.permute(0, 3, 1, 2) if are_channels_last else stacked


def pad_images(images: Sequence[Any], *, size_divisor: int = 1, pad_value: float = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Copy images of any sizes into one tensor, each at the top left, padded right and below.

    Args:
        images: Tensors of shape ``(C, H, W)``.
        size_divisor: Round the batch's height and width up to a multiple of this.
        pad_value: Value of padded pixels, in the images' own units.

    Returns:
        The batch ``(B, C, H, W)``; the mask, bool ``(B, H, W)``, True for pixels of an image; the sizes, int64
        ``(B, 2)``, height and width of each image.

    Raises:
        TypeError, ValueError: As `plain_images`, or if ``pad_value`` does not fit the images' dtype.
    """
    plain = plain_images(images)
    dtype = plain[0].dtype
    if not dtype.is_floating_point:
        # `fill_` would silently cut off the fraction.
        limits = torch.iinfo(dtype)
        if pad_value != int(pad_value) or not limits.min <= pad_value <= limits.max:
            raise ValueError(
                f"expected an integer pad_value from {limits.min} to {limits.max} for {dtype} images, got "
                f"pad_value={pad_value}; give it in the images' own units."
            )
    sizes = torch.tensor([image.shape[1:] for image in plain], dtype=torch.int64)
    height, width = (-(-int(side) // size_divisor) * size_divisor for side in sizes.amax(dim=0))
    shape = (len(plain), plain[0].shape[0], height, width)
    batch = empty_batch(shape, dtype, "cpu") if plain[0].is_cpu else plain[0].new_empty(shape)
    mask = torch.zeros((len(plain), height, width), dtype=torch.bool)
    for padded, image_mask, image in zip(batch, mask, plain, strict=True):
        image_height, image_width = image.shape[1:]
        # Image and padding are written separately, so that no element is written twice.
        padded[:, :image_height, :image_width].copy_(image)
        padded[:, :image_height, image_width:].fill_(pad_value)
        padded[:, image_height:, :].fill_(pad_value)
        image_mask[:image_height, :image_width] = True
    return batch, mask, sizes


def check_attribute_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return attribute names as a tuple; raise TypeError for a single string."""
    # A string is also a sequence of strings: "pose" would be read as four attributes.
    if isinstance(names, str):
        raise TypeError(
            f"expected attributes to be a list of names, got the string attributes={names!r}; pass [{names!r}]."
        )
    return tuple(names)


def target_field(target: Any, name: str, *, remedy: str) -> Any:
    """Return a field of a target.

    Raises:
        TypeError: If the target is not a mapping.
        ValueError: If it lacks the field; the message ends with the remedy.
    """
    if not isinstance(target, Mapping):
        raise TypeError(f"expected a target to be a dict of fields, got a {type(target).__name__}.")
    if name not in target:
        raise ValueError(f"expected a target with field {name!r}, got only {sorted(target)}; {remedy}.")
    return target[name]


def field_rows(target: Any, name: str) -> Tensor:
    """Return a per-object field of a target as a plain tensor, ``(N, ...)``.

    Raises:
        TypeError: If the target is not a mapping, or the field not a tensor with rows.
        ValueError: If the target lacks the field.
    """
    remedy = (
        "request it from the dataset (keypoints=True, attributes=[...]; transforms.CropToObjects adds crop), and keep "
        "it in the transforms"
    )
    value = target_field(target, name, remedy=remedy)
    # A 0-d tensor has no rows, and len() of it raises an error that names no field.
    if not isinstance(value, Tensor) or value.ndim == 0:
        kind = "0-d tensor" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"expected field {name!r} of a target to be a tensor with one row per object, got a {kind}.")
    return value.as_subclass(Tensor)


def duplicate_mask(targets: Sequence[Any]) -> Tensor:
    """Return the field ``is_duplicate`` as one bool tensor ``(B,)``.

    Args:
        targets: One mapping per sample.

    Raises:
        TypeError: If a target is not a mapping, or the field not a bool.
        ValueError: If a target lacks the field.
    """
    # No default: if a transform lost the flag, metrics would silently count duplicates.
    remedy = 'let __getitem__ add "is_duplicate": lit_loader.is_duplicate(), and keep it in the transforms'
    return flag_tensor([target_field(target, "is_duplicate", remedy=remedy) for target in targets])


def flag_tensor(flags: Sequence[Any]) -> Tensor:
    """Return the ``is_duplicate`` values of samples as a bool tensor ``(B,)``; raise TypeError if one is not a bool."""
    for flag in flags:
        if not isinstance(flag, bool):
            raise TypeError(
                f"expected is_duplicate to be the bool of lit_loader.is_duplicate(), got "
                f"is_duplicate={flag!r} ({type(flag).__name__})."
            )
    return torch.tensor(flags, dtype=torch.bool)
