"""Photographs for the benchmarks: JPEG files of one size, derived from available photographs.

A drawn picture has other frequencies than a photograph, and so another decoding cost. These are crops of real
photographs, flipped, resized and with a little noise, so that all differ and have the file size of camera images.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["find_photographs", "write_photographs"]

_DATA = Path(__file__).parents[2] / "shared" / "data"
_FOLDERS = ("coco_small", "dlib_faces", "labelme_json/bbox_detection", "via_json", "widerface_mmdet", "yolo_mark")
# Only photographs: the wheels also contain drawings, textures and microscopy.
_IN_WHEELS = {
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}
_ENDINGS = (".jpg", ".jpeg", ".png")
_SMALLEST_SIDE = 300
# Of the sides of the largest crop with the required aspect ratio.
_SMALLEST_SHARE = 0.6
# Levels of 255: with it a file of 500x375 has about 59 KB, as ImageNet's have.
_NOISE = 3.2
_QUALITY = 90


def find_photographs(data: Path = _DATA) -> list[Path]:
    """Return available photographs of at least 300 pixels height and width, from ``data`` and from wheels.

    Raises:
        FileNotFoundError: If there are none.
    """
    photographs = [path for path in _candidates(data) if _is_large(path)]
    if not photographs:
        raise FileNotFoundError(
            f"no photographs: {data} has none, and neither scikit-image nor scikit-learn is installed, whose wheels "
            "hold some; run `pip install scikit-image scikit-learn`."
        )
    return photographs


def write_photographs(
    folder: Path, number: int, *, size: tuple[int, int], sources: Sequence[Path] = (), seed: int = 0
) -> list[Path]:
    """Write ``number`` JPEG files of quality 90.

    Args:
        folder: Folder of the files ``0000.jpg`` and so on; created if missing.
        number: Number of files.
        size: Width and height in pixels.
        sources: Photographs to crop; empty for `find_photographs`.
        seed: Seed of crops, flips and noise: equal sources and seeds give equal files.

    Returns:
        Their paths.
    """
    sources = sources or find_photographs()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:04d}.jpg" for index in range(number)]
    for index, path in enumerate(paths):
        draws = np.random.default_rng((seed, index))
        with Image.open(sources[index % len(sources)]) as source:
            _variant(source.convert("RGB"), size, draws).save(path, quality=_QUALITY)
    return paths


def _variant(source: Image.Image, size: tuple[int, int], draws: np.random.Generator) -> Image.Image:
    zoom = min(source.width / size[0], source.height / size[1]) * draws.uniform(_SMALLEST_SHARE, 1)
    width = zoom * size[0]
    height = zoom * size[1]
    left = draws.uniform(0, source.width - width)
    top = draws.uniform(0, source.height - height)
    cut = source.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
    pixels = np.asarray(cut)[:, :: draws.choice([-1, 1])]
    # Of brightness.
    noisy = pixels + draws.normal(0, _NOISE, pixels.shape[:2])[..., None]
    return Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8))


def _candidates(data: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from (path for path in sorted((data / folder).rglob("*")) if path.suffix.lower() in _ENDINGS)
    for package, names in _IN_WHEELS.items():
        wheel = importlib.util.find_spec(package)
        for at in (wheel and wheel.submodule_search_locations) or ():
            yield from (path for path in (Path(at, name) for name in names) if path.is_file())


def _is_large(path: Path) -> bool:
    with Image.open(path) as image:
        return min(image.size) >= _SMALLEST_SIDE and image.mode == "RGB"
