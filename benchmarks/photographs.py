"""Photographs for the benchmarks: JPEG files of one size, made from the photographs that are at hand.

A drawn picture has other frequencies than a photograph, and so other costs. These are cut out of real ones, mirrored,
resized, and given a little noise, so that no two are the same and a file has the bytes of one from a camera.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["find_photographs", "write_photographs"]

_DATA = Path(__file__).parents[2] / "shared" / "data"
_FOLDERS = (
    "coco_small",
    "dlib_faces",
    "labelme_json/bbox_detection",
    "via_json",
    "widerface_mmdet",
    "yolo_mark",
)
# The wheels hold drawings, textures and microscopy too.
_IN_WHEELS = {
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}
_ENDINGS = (".jpg", ".jpeg", ".png")
_SMALLEST_SIDE = 300
_SMALLEST_SHARE = 0.6  # of the sides of the largest cut that has the wanted shape
_NOISE = 3.2  # levels of 255: with it a file of 500x375 has about 59 KB, as ImageNet's have
_QUALITY = 90


def find_photographs(data: Path = _DATA) -> list[Path]:
    """Return the photographs at hand, at least 300 pixels high and wide: those in ``data``, and those in wheels.

    Raises:
        FileNotFoundError: There is none.
    """
    found = [path for path in _candidates(data) if _is_large(path)]
    if not found:
        raise FileNotFoundError(
            f"no photographs: {data} has none, and neither scikit-image nor scikit-learn is installed, whose wheels "
            "hold some; run `pip install scikit-image scikit-learn`."
        )
    return found


def write_photographs(
    folder: Path, number: int, *, size: tuple[int, int], sources: Sequence[Path] = (), seed: int = 0
) -> list[Path]:
    """Write ``number`` JPEG files of quality 90.

    Args:
        folder: Made if it is not there; the files are ``0000.jpg`` and so on.
        number: How many.
        size: Width and height, in pixels.
        sources: The photographs to cut them from, or none for `find_photographs`.
        seed: Decides cuts, flips and noise: the same sources and seed give the same files.

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
    width, height = zoom * size[0], zoom * size[1]
    left, top = draws.uniform(0, source.width - width), draws.uniform(0, source.height - height)
    cut = source.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
    pixels = np.asarray(cut)[:, :: draws.choice([-1, 1])]
    noisy = pixels + draws.normal(0, _NOISE, pixels.shape[:2])[..., None]  # of brightness
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
