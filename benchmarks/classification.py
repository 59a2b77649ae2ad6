"""Rate of classification batches from JPEG files: RandomResizedCrop(224), flip, batch 64; a unit is an image.

The reference is torch's loader with torchvision's recipe on tensors, float32. All loaders have two workers.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, default_collate
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.bare_steps import BareSteps, bare_passes, draw_crops
from benchmarks.peers import ffcv_pass, has_ffcv, has_spdl, scaled_decode, spdl_pass
from benchmarks.photographs import write_photographs
from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DataLoader
from lit_loader.annotations.formats import read_annotations
from lit_loader.collate import ClassificationCollate
from lit_loader.datasets import ClassificationDataset
from lit_loader.images import CacheSettings, ImageReading, decode_image
from lit_loader.transforms import classification_transforms

__all__ = ["BATCH_SIZE", "REFERENCE", "SIDE", "SIZES", "Recipe", "epoch_order", "our_dataset", "our_loaders"]

BATCH_SIZE = 64
SIDE = 224
# Files, and images an epoch.
SIZES = {(500, 375): (128, 1024), (1280, 960): (64, 384)}
WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
REFERENCE = "torch, recipe, float32"
BARS = {
    (500, 375): {
        "ours, threads, recipe, float32": 0.9,
        "our data set, processes, exact float32": 1.25,
        "our data set, processes, fast uint8": 2.1,
        "our data set, threads, fast uint8": 1.7,
    },
    (1280, 960): {"our data set, processes, fast uint8": 2.05},
}


class Recipe(Dataset[tuple[Tensor, int]]):
    """torchvision's recipe on tensors: decode, crop, flip, and float32 or uint8."""

    def __init__(self, paths: Sequence[Path], dtype: torch.dtype) -> None:
        self.paths = [str(path) for path in paths]
        convert = [v2.ToDtype(torch.float32, scale=True)] if dtype == torch.float32 else []
        self.transform = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), *convert])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index])))
        return self.transform(image), index % 10


def epoch_order(size: tuple[int, int]) -> list[int]:
    """Return the files of an epoch, each several times, shuffled."""
    num_files, num_images = SIZES[size]
    return random.Random(0).sample([number % num_files for number in range(num_images)], num_images)


def our_dataset(
    root: Path, *, decode: Any, to_float: bool, cache: CacheSettings | bool = False
) -> ClassificationDataset:
    """Return lit_loader's dataset of the same files, with the preset of the same crops and flips."""
    table = read_annotations("image_folder", root, use_cache=False, num_workers=0, progress=False)
    transforms = classification_transforms(True, size=SIDE, to_float=to_float)
    return ClassificationDataset(table, transforms=transforms, reading=ImageReading(decode=decode), cache=cache)


def our_loaders(
    datasets: Mapping[str, Dataset[Any]],
    order: Sequence[int],
    collate: Callable[[Any], Any],
    batch_size: int = BATCH_SIZE,
) -> dict[str, TorchDataLoader[Any]]:
    """Return lit_loader's loaders over data sets, with processes and with threads.

    Args:
        datasets: Datasets by name; ``*`` in a name is replaced by ``processes`` or ``threads``.
        order: Indices of an epoch.
        collate: Collate function.
        batch_size: Samples per batch.
    """
    ours: Any = DataLoader
    return {
        name.replace("*", method): ours(
            dataset, batch_size, sampler=order, collate_fn=collate, worker_method=worker_method, **WORKERS
        )
        for name, dataset in datasets.items()
        for method, worker_method in (("processes", "multiprocessing"), ("threads", "thread"))
    }


@contextmanager
def contenders(root: Path, paths: Sequence[Path], size: tuple[int, int]) -> Iterator[dict[str, Pass]]:
    """Yield passes over the loaders, the peers, and the bare calls."""
    order = epoch_order(size)
    recipes = {name: Recipe(paths, getattr(torch, name)) for name in ("float32", "uint8")}
    steps = functools.partial(BareSteps, paths=paths, crops=draw_crops(size, SIDE))
    work = {"bare, exact float32": steps(kind="exact"), "bare, fast uint8": steps(kind="fast")}
    with bare_passes(work, order) as bare:
        loaders: dict[str, TorchDataLoader[Any]] = {
            f"torch, recipe, {name}": TorchDataLoader(recipe, BATCH_SIZE, sampler=order, **WORKERS)
            for name, recipe in recipes.items()
        }
        recipe_names = {f"ours, *, recipe, {name}": recipe for name, recipe in recipes.items()}
        loaders |= our_loaders(recipe_names, order, default_collate)
        datasets = {
            "our data set, *, exact float32": our_dataset(root, decode="exact", to_float=True),
            "our data set, *, fast uint8": our_dataset(root, decode="fast", to_float=False),
        }
        loaders |= our_loaders(datasets, order, ClassificationCollate())
        yield passes(loaders, size=BATCH_SIZE) | _peers(root, paths, recipes["float32"], order) | bare


def _peers(root: Path, paths: Sequence[Path], recipe: Recipe, order: Sequence[int]) -> dict[str, Pass]:
    peer_passes = {}
    if has_spdl():
        pipeline = functools.partial(spdl_pass, order=order, batch_size=BATCH_SIZE)
        peer_passes["SPDL, threads, recipe, float32"] = pipeline(recipe.__getitem__, collate=default_collate)
        scaled = functools.partial(_scaled_crop, paths)
        peer_passes["SPDL, threads, scaled decode, uint8"] = pipeline(scaled, collate=_as_batch)
    if has_ffcv():
        images = [decode_image(path).permute(1, 2, 0).numpy() for path in paths]
        crops = functools.partial(ffcv_pass, side=SIDE, order=order, batch_size=BATCH_SIZE)
        peer_passes["FFCV, JPEG, uint8"] = crops(images, root.with_suffix(".beton"), mode="jpg")
    return peer_passes


def _scaled_crop(paths: Sequence[Path], index: int) -> tuple[Any, int]:
    """Make a sample with `scaled_decode` from a crop of a 4:3 image, drawn as in torchvision."""
    while True:
        area = random.uniform(0.08, 1)
        ratio = (3 / 4) ** random.uniform(-1, 1)
        width = (area * ratio * 3 / 4) ** 0.5
        height = (area / ratio * 4 / 3) ** 0.5
        if width <= 1 and height <= 1:
            break
    left = random.uniform(0, 1 - width)
    top = random.uniform(0, 1 - height)
    region = (left, top, left + width, top + height)
    is_mirrored = random.random() < 0.5
    return scaled_decode(paths[index], region, (SIDE, SIDE), is_mirrored=is_mirrored), index % 10


def _as_batch(samples: Sequence[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels)


def main(rounds: int) -> None:
    """Compare rates and CPU time on small and large files."""
    for size, (num_files, _) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "images")
            paths = write_photographs(root / "all", num_files, size=size)
            question = f"photographs {size[0]}x{size[1]}, RandomResizedCrop({SIDE}), batch {BATCH_SIZE}"
            with contenders(root, paths, size) as work:
                figures = compare(question, work, rounds=rounds, unit="image", as_rates=True)
            for name, bar in BARS[size].items():
                judge(f"{name}, torch's rate", figures.rate_ratio(name, REFERENCE), at_least=bar)


if __name__ == "__main__":
    run(main, rounds=5)
