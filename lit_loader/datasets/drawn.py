"""Parts of the datasets that are drawn on first use: their folder, and the checks and quotas of their settings.

Nothing is downloaded. The name of the dataset's folder contains a fingerprint of its settings, so other settings never
overwrite it. It is drawn in a temporary folder next to its destination and renamed when it is complete, under a lock
that the operating system releases if the process dies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lit_loader.foundation.files import cache_folder, file_lock
from lit_loader.samplers.class_balanced import class_quotas
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["check_shares", "drawing_settings", "drawn_folder", "shuffled_quotas"]


def drawn_folder(
    name: str, settings: Mapping[str, Any], draw: Callable[[Path], None], *, cache_dir: Path | str | None
) -> Path:
    """Return the folder of a drawn dataset, after drawing it if it does not exist.

    Args:
        name: Name of the dataset; its folder is ``name-<fingerprint>``, its settings are in ``name.json``.
        settings: Plain values that decide the content.
        draw: Function that fills a new folder.
        cache_dir: Folder to create the dataset's folder in, or None for the user's cache folder.
    """
    # Sorted, so that equal settings have equal names whatever the order of `num_images`.
    text = json.dumps(settings, indent=1, sort_keys=True)
    folder = cache_folder(cache_dir) / f"{name}-{key64(text):016x}"
    # The settings file is written last, so its folder is complete; no lock is needed to read it.
    if not (folder / f"{name}.json").is_file():
        _draw_locked(folder, f"{name}.json", text, draw)
    return folder


def _draw_locked(folder: Path, settings_file: str, text: str, draw: Callable[[Path], None]) -> None:
    """Draw the dataset while other processes wait; ``text`` is the contents of the settings file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_name(f".{folder.name}.lock")):
        # Another process may have drawn it while this one waited for the lock.
        if (folder / settings_file).is_file():
            return
        # Only the holder of the lock draws, so other temporary folders are left from processes that were killed.
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover)
        with TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as temporary:
            new_folder = Path(temporary, "drawn")
            draw(new_folder)
            (new_folder / settings_file).write_text(text + "\n")
            # A folder without a settings file is incomplete.
            if folder.exists():
                shutil.rmtree(folder)
            new_folder.replace(folder)


def drawing_settings(
    *,
    num_images: Mapping[str, int],
    image_size: int,
    objects_per_image: Sequence[int],
    max_rotation: float,
    seed: int,
    min_image_size: int,
) -> dict[str, Any]:
    """Return the settings that all drawn datasets have, as plain values.

    Raises:
        ValueError: ``objects_per_image``, ``image_size`` or ``num_images`` is out of range.
        TypeError: A number is not whole, or the name of a split is not a string.
    """
    if not isinstance(objects_per_image, Sequence) or len(objects_per_image) != 2:
        raise ValueError(f"objects_per_image={objects_per_image!r} must be two numbers, smallest and largest")
    min_objects, max_objects = (_whole("objects_per_image", number) for number in objects_per_image)
    if not 1 <= min_objects <= max_objects:
        raise ValueError(f"objects_per_image={[min_objects, max_objects]} must be 1 <= smallest <= largest")
    if _whole("image_size", image_size) < min_image_size:
        rule = f"is too small for recognizable objects; give at least {min_image_size}"
        raise ValueError(f"image_size={image_size} {rule}")
    if not num_images:
        raise ValueError("num_images={} contains no split; give e.g. {'train': 3000, 'val': 300}")
    for split, count in num_images.items():
        if not isinstance(split, str):
            raise TypeError(f"num_images has the split {split!r}; expected a name, such as 'train'")
        # The name becomes part of paths and must not lead elsewhere.
        is_file_name = Path(split).name == split != ".." and split.isprintable()
        if _whole(f"num_images[{split!r}]", count) < 1 or not is_file_name:
            raise ValueError(f"num_images[{split!r}]={count}: expected a file name and at least one image")
    return {
        "num_images": {split: int(count) for split, count in num_images.items()},
        "image_size": int(image_size),
        "objects_per_image": [min_objects, max_objects],
        "max_rotation": float(max_rotation),
        "seed": _whole("seed", seed),
    }


def _whole(name: str, value: Any) -> int:
    # `bool` is an integer as well, and int() would cut 64.7 off to 64.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} must be a whole number")
    return int(value)


def check_shares(key: str, shares: Sequence[float], names: Sequence[str]) -> None:
    """Raise ValueError unless ``shares`` are one positive number per name, with sum 1."""
    if len(shares) != len(names) or not min(shares) > 0 or not abs(sum(shares) - 1) <= 1e-6:
        raise ValueError(f"{key}={shares} must be {len(names)} positive shares of sum 1, for {names}")


def shuffled_quotas(total: int, shares: Sequence[float], rng: np.random.Generator) -> IndexArray:
    """Return ``total`` ids in random order, each with its share by largest remainders and at least once."""
    if total < len(shares):
        raise ValueError(f"{total} objects cannot include each of {len(shares)} classes; draw more images")
    # Via str, so that a share such as 0.09 is the exact decimal fraction.
    quotas = class_quotas([Fraction(str(share)) for share in shares], total)
    return np.repeat(np.arange(len(quotas)), quotas)[np.argsort(rng.random(total), kind="stable")]
