"""Other loaders, as far as they are installed: SPDL's pipeline of threads, and FFCV's loader over its own file format.

NOTE [What the peers are given]
    SPDL runs functions in threads and leaves the images to them, so it gets the fastest that its users reach from
    Python: simplejpeg's scaled decode with the fast inverse transform, and OpenCV's resize. These pixels are not
    torchvision's: no antialiasing, another rounding. FFCV decodes and resizes by itself, by areas.
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
    """Return whether SPDL and what it calls are installed, and say so if they are not."""
    return _has("SPDL", ("spdl.pipeline", "simplejpeg", "cv2"), "spdl simplejpeg opencv-python-headless")


def has_ffcv() -> bool:
    """Return whether FFCV is installed, and say so if it is not."""
    return _has("FFCV", ("ffcv",), "--no-deps --no-build-isolation ffcv==1.0.2, with what it asks for")


def _has(name: str, modules: Iterable[str], to_install: str) -> bool:
    missing = [module for module in modules if importlib.util.find_spec(module.partition(".")[0]) is None]
    if missing:
        print(f"  {name} is left out: {', '.join(missing)} not installed; pip install {to_install}")
    return not missing


def spdl_pass(
    make: Callable[[int], Any],
    order: Sequence[int],
    *,
    batch_size: int,
    collate: Callable[[list[Any]], Any],
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
    """Return a region of a JPEG at ``size``, as fast as Python's packages do it; see NOTE [What the peers are given].

    Args:
        path: The file.
        region: Left, top, right and bottom, as shares of width and height.
        size: Height and width of the result, in pixels.
        is_mirrored: Exchange left and right.

    Returns:
        uint8 ``(*size, 3)``.
    """
    import cv2
    from simplejpeg import decode_jpeg, decode_jpeg_header

    data = path.read_bytes()
    height, width, *_ = decode_jpeg_header(data)
    left, top, right, bottom = region
    zoom = max(size[0] / (height * (bottom - top)), size[1] / (width * (right - left)))
    by = next((by for by in _SHRINKS if zoom * by <= 1), 1)
    least = {"min_height": -(-height // by), "min_width": -(-width // by)} if by > 1 else {}
    pixels = decode_jpeg(data, fastdct=True, fastupsample=True, **least)
    rows, columns, _ = pixels.shape
    cut = pixels[round(top * rows) : round(bottom * rows), round(left * columns) : round(right * columns)]
    resized = cv2.resize(cut, size[::-1], interpolation=cv2.INTER_LINEAR)
    shown: NDArray[np.uint8] = cv2.flip(resized, 1) if is_mirrored else resized
    return shown


def ffcv_pass(
    images: Sequence[NDArray[np.uint8]],
    to: Path,
    *,
    side: int,
    order: Sequence[int],
    batch_size: int,
    mode: str,
) -> Pass:
    """Write FFCV's file and return an epoch of its loader: RandomResizedCrop, flip, uint8 ``(B, 3, side, side)``.

    Args:
        images: uint8 ``(H, W, 3)``.
        to: The file to write.
        side: Of the crops, in pixels.
        order: Which images make an epoch; FFCV shuffles them.
        batch_size: Images a batch.
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
