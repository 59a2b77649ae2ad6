"""Other loaders, if installed: SPDL's pipeline of threads, and FFCV's loader with its own file format.

NOTE [Work of the peers]
    SPDL runs user functions in threads, so it gets the fastest functions available in Python: simplejpeg's scaled
    decode with the fast inverse transform, and OpenCV's resize. The pixels differ from torchvision's: no antialiasing,
    another rounding. FFCV has its own decoding and area resize.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.rounds import Pass

__all__ = ["ffcv_pass", "has_ffcv", "has_spdl", "scaled_decode", "spdl_pass"]

NUM_THREADS = 2
_SHRINKS = (8, 4, 2)


def has_spdl() -> bool:
    """Return True if SPDL and the packages it calls are installed, else print how to install them."""
    return _has("SPDL", ("spdl.pipeline", "simplejpeg", "cv2"), "spdl simplejpeg opencv-python-headless")


def has_ffcv() -> bool:
    """Return True if FFCV is installed, else print how to install it."""
    return _has("FFCV", ("ffcv",), "--no-deps --no-build-isolation ffcv==1.0.2, and its dependencies")


def _has(name: str, modules: Iterable[str], to_install: str) -> bool:
    missing = [module for module in modules if importlib.util.find_spec(module.partition(".")[0]) is None]
    if missing:
        print(f"  {name} is left out: {', '.join(missing)} not installed; pip install {to_install}")
    return not missing


def spdl_pass(
    make: Callable[[int], Any], order: Sequence[int], *, batch_size: int, collate: Callable[[list[Any]], Any]
) -> Pass:
    """Return an epoch of SPDL's pipeline: ``make(index)`` in threads, then batches."""
    from spdl.pipeline import PipelineBuilder

    def work() -> int:
        builder = PipelineBuilder().add_source(order).pipe(make, concurrency=NUM_THREADS)
        pipeline = builder.aggregate(batch_size).pipe(collate).add_sink(3).build(num_threads=NUM_THREADS)
        with pipeline.auto_stop():
            return batch_size * sum(1 for _ in pipeline.get_iterator())

    return work


def scaled_decode(
    path: Path, region: tuple[float, float, float, float], size: tuple[int, int], *, is_mirrored: bool
) -> NDArray[np.uint8]:
    """Return a region of a JPEG file resized to ``size``; see NOTE [Work of the peers].

    Args:
        path: The file.
        region: Left, top, right and bottom, relative to width and height.
        size: Height and width of the result, in pixels.
        is_mirrored: Whether to flip the image horizontally.

    Returns:
        uint8 ``(*size, 3)``.
    """
    import cv2
    from simplejpeg import decode_jpeg, decode_jpeg_header

    data = path.read_bytes()
    height, width, *_ = decode_jpeg_header(data)
    left, top, right, bottom = region
    zoom = max(size[0] / (height * (bottom - top)), size[1] / (width * (right - left)))
    shrink = next((shrink for shrink in _SHRINKS if zoom * shrink <= 1), 1)
    least = {"min_height": -(-height // shrink), "min_width": -(-width // shrink)} if shrink > 1 else {}
    pixels = decode_jpeg(data, fastdct=True, fastupsample=True, **least)
    rows, columns, _ = pixels.shape
    cut = pixels[round(top * rows) : round(bottom * rows), round(left * columns) : round(right * columns)]
    resized: NDArray[np.uint8] = cv2.resize(cut, size[::-1], interpolation=cv2.INTER_LINEAR)
    return np.asarray(cv2.flip(resized, 1), np.uint8) if is_mirrored else resized


def ffcv_pass(
    images: Sequence[NDArray[np.uint8]], to: Path, *, side: int, order: Sequence[int], batch_size: int, mode: str
) -> Pass:
    """Write FFCV's file and return an epoch of its loader: RandomResizedCrop, flip, uint8 ``(B, 3, side, side)``.

    Args:
        images: uint8 ``(H, W, 3)``.
        to: Path of the file to write.
        side: Side of the crops in pixels.
        order: Indices of an epoch, which FFCV shuffles.
        batch_size: Number of images per batch.
        mode: ``"raw"`` stores pixels, ``"jpg"`` JPEG of quality 90.
    """
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
    writer = DatasetWriter(str(to), fields, num_workers=1)
    writer.from_indexed_dataset([(image, number % 10) for number, image in enumerate(images)])
    loader = Loader(
        str(to),
        batch_size=batch_size,
        num_workers=NUM_THREADS,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=order,
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((side, side)),
                RandomHorizontalFlip(),
                ToTensor(),
                ToTorchImage(),
            ],
            "label": [IntDecoder(), ToTensor()],
        },
    )
    return lambda: sum(_check(images, side) for images, _ in loader)


def _check(images: Tensor, side: int) -> int:
    assert images.shape[1:] == (3, side, side)
    assert images.dtype == torch.uint8
    return len(images)
