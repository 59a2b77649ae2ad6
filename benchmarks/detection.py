"""Rate of detection batches: JPEG 500x375, shortest side to 480-800, flip, lists of 4; a unit is an image.

The reference is torch's loader with torchvision's recipe on tensors, float32. All loaders have two workers. glibc
returns freed images to the system and requests them again page by page; to see that cost, compare with a run with
``MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=2147483647``.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.bare_steps import BareSteps, bare_passes, draw_sizes, write_pixels
from benchmarks.classification import REFERENCE, WORKERS, our_loaders
from benchmarks.peers import has_spdl, scaled_decode, spdl_pass
from benchmarks.photographs import write_photographs
from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DetectionDataset
from lit_loader.annotations.formats import read_annotations
from lit_loader.images import CacheSettings, ImageReading
from lit_loader.transforms import detection_transforms

__all__ = ["LONGEST", "SIDES", "SIZE", "collate", "our_dataset"]

NUM_FILES = 64
NUM_IMAGES = 256
BATCH_SIZE = 4
SIZE = (500, 375)
SIDES = list(range(480, 801, 32))
LONGEST = 1333
CORNERS: list[list[float]] = [[20, 30, 200, 180], [5, 5, 90, 90], [250, 100, 480, 360]]
BARS = {
    "our data set, processes, exact float32": 2.1,
    "our data set, threads, exact float32": 2.0,
    "our data set, processes, fast uint8": 3.8,
    "our data set, threads, fast uint8": 3.3,
    "our data set, processes, cached uint8": 5.4,
}


class Recipe(Dataset[tuple[Tensor, dict[str, Any]]]):
    """torchvision's recipe on tensors: images with three boxes each, decoded, resized, mirrored."""

    def __init__(self, paths: Sequence[Path], dtype: torch.dtype) -> None:
        self.paths = [str(path) for path in paths]
        self.boxes = tv_tensors.BoundingBoxes(torch.tensor(CORNERS), format="XYXY", canvas_size=SIZE[::-1])
        convert = [v2.ToDtype(torch.float32, scale=True)] if dtype == torch.float32 else []
        resize = v2.RandomShortestSize(SIDES, max_size=LONGEST)
        self.transform = v2.Compose([resize, v2.RandomHorizontalFlip(), *convert])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index])))
        target = {"boxes": self.boxes, "labels": torch.tensor([1, 2, 3])}
        sample: tuple[Tensor, dict[str, Any]] = self.transform(image, target)
        return sample


def our_dataset(folder: Path, *, decode: Any, to_float: bool, cache: CacheSettings | bool = False) -> DetectionDataset:
    """Return lit_loader's dataset of the same files, boxes and transforms."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in CORNERS]
    written = {
        "images": [{"id": n, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for n, name in enumerate(names)],
        "categories": [{"id": number, "name": str(number)} for number in range(len(CORNERS))],
        "annotations": [
            {"id": len(boxes) * image + number, "image_id": image, "category_id": number, "bbox": box}
            for image in range(len(names))
            for number, box in enumerate(boxes)
        ],
    }
    (folder / "boxes.json").write_text(json.dumps(written))
    table = read_annotations("coco", folder, "boxes.json", use_cache=False, num_workers=0, progress=False)
    transforms = detection_transforms(True, shorter_sides=SIDES, max_size=LONGEST, to_float=to_float)
    return DetectionDataset(table, transforms=transforms, reading=ImageReading(decode=decode), cache=cache)


def collate(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Return the images and the targets."""
    return tuple(zip(*samples, strict=True))


@contextmanager
def contenders(folder: Path, paths: Sequence[Path]) -> Iterator[dict[str, Pass]]:
    """Yield passes over the loaders, SPDL's pipeline, and the bare calls."""
    # Each file several times: reading is from the page cache, as in later epochs of a set that fits in memory.
    order = random.Random(0).sample([number % NUM_FILES for number in range(NUM_IMAGES)], NUM_IMAGES)
    crops = draw_sizes(SIZE, SIDES, LONGEST)
    steps = functools.partial(BareSteps, paths=paths, crops=crops, pixels=write_pixels(paths, folder / "pixels.npy"))
    names: dict[Any, str] = {"exact": "exact float32", "fast": "fast uint8", "cached": "cached uint8"}
    recipes = {name: Recipe(paths, getattr(torch, name)) for name in ("float32", "uint8")}
    dataset = functools.partial(our_dataset, paths[0].parent)
    datasets: dict[str, Dataset[Any]] = {
        **{f"ours, *, recipe, {name}": recipe for name, recipe in recipes.items()},
        "our data set, *, exact float32": dataset(decode="exact", to_float=True),
        "our data set, *, fast uint8": dataset(decode="fast", to_float=False),
        "our data set, *, cached uint8": dataset(decode="fast", to_float=False, cache=CacheSettings(cache_dir=folder)),
    }
    with bare_passes({f"bare, {name}": steps(kind=kind) for kind, name in names.items()}, order) as bare:
        loaders: dict[str, TorchDataLoader[Any]] = {
            f"torch, recipe, {name}": TorchDataLoader(recipe, BATCH_SIZE, sampler=order, collate_fn=collate, **WORKERS)
            for name, recipe in recipes.items()
        }
        loaders |= our_loaders(datasets, order, collate, BATCH_SIZE)
        yield passes(loaders, size=BATCH_SIZE) | _spdl(recipes["float32"], order) | bare


def _spdl(recipe: Recipe, order: Sequence[int]) -> dict[str, Pass]:
    if not has_spdl():
        return {}
    pipeline = functools.partial(spdl_pass, order=order, batch_size=BATCH_SIZE, collate=collate)
    return {
        "SPDL, threads, recipe, float32": pipeline(recipe.__getitem__),
        "SPDL, threads, OpenCV's resize, uint8": pipeline(functools.partial(_opencv_sample, recipe)),
    }


def _opencv_sample(recipe: Recipe, index: int) -> tuple[Tensor, dict[str, Any]]:
    """Make a sample with `scaled_decode`, of a size drawn as in torchvision."""
    width, height = SIZE
    zoom = min(random.choice(SIDES) / min(SIZE), LONGEST / max(SIZE))
    size = int(height * zoom), int(width * zoom)
    is_mirrored = random.random() < 0.5
    image = scaled_decode(Path(recipe.paths[index]), (0, 0, 1, 1), size, is_mirrored=is_mirrored)
    boxes = recipe.boxes.as_subclass(Tensor) * zoom
    if is_mirrored:
        boxes[:, [0, 2]] = size[1] - boxes[:, [2, 0]]
    return torch.from_numpy(image).permute(2, 0, 1), {"boxes": boxes, "labels": torch.tensor([1, 2, 3])}


def main(rounds: int) -> None:
    """Compare rates and CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(Path(folder, "images"), NUM_FILES, size=SIZE)
        with contenders(Path(folder), paths) as work:
            question = f"photographs {SIZE[0]}x{SIZE[1]}, shortest side to 480-800, batch {BATCH_SIZE}"
            figures = compare(question, work, rounds=rounds, unit="image", as_rates=True)
        for name, bar in BARS.items():
            judge(f"{name}, torch's rate", figures.rate_ratio(name, REFERENCE), at_least=bar)


if __name__ == "__main__":
    run(main, rounds=5)
