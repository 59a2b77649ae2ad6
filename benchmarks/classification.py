"""How fast are classification batches? JPEG, RandomResizedCrop(224), flip, batches of 64; a unit is an image."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from benchmarks.detection import draw_images
from benchmarks.rounds import Figures, compare, judge, passes, run
from lit_loader import DataLoader, batch_memory
from lit_loader.datasets import ClassificationDataset, ImageReading
from lit_loader.datasets.jpeg import decode_region, jpeg_frame
from lit_loader.formats import read_annotations
from lit_loader.transforms import DecodeAwareCompose, RandomHorizontalFlip, ToFloat32, ToUInt8

REPEATS, BATCH_SIZE, SIDE = 16, 64, 224
LARGE = (1280, 960)
WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


class TorchvisionRecipe(Dataset[tuple[torch.Tensor, int]]):
    """What torchvision's reference does for training, on a decoded tensor."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(path) for path in sorted(folder.rglob("*.jpg"))]
        self.transform = v2.Compose(
            [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        )

    def __len__(self) -> int:
        return REPEATS * len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index % len(self.paths)])))
        return self.transform(image), index % 10


class Repeated(Dataset[Any]):
    """Every sample of a data set several times, so that an epoch has enough batches."""

    def __init__(self, dataset: ClassificationDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return REPEATS * len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index % len(self.dataset)]


class BareSteps(Dataset[tuple[torch.Tensor, int]]):
    """The fast path's work with nothing around it: crops drawn beforehand, whole pixels, no EXIF; the limit."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(path) for path in sorted(folder.rglob("*.jpg"))]
        frame = jpeg_frame(Path(self.paths[0]).read_bytes())
        assert frame is not None
        shape = tv_tensors.Image(torch.zeros(()).expand(3, frame.height, frame.width))
        draw = v2.RandomResizedCrop(SIDE).make_params
        self.crops = [tuple(draw([shape]).values()) for _ in range(512)]

    def __len__(self) -> int:
        return REPEATS * len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        top, left, height, width = self.crops[index % len(self.crops)]
        data = Path(self.paths[index % len(self.paths)]).read_bytes()
        frame = jpeg_frame(data)
        assert frame is not None
        zoom = max(SIDE / height, SIDE / width)
        by = next((by for by in (8, 4, 2) if zoom * by <= 1), 1)
        cut = decode_region(data, frame, (left, top, left + width, top + height), shrink=by)
        shown = functional.resize_image(cut, [SIDE, SIDE], antialias=True)
        out = batch_memory.empty((3, SIDE, SIDE), torch.uint8)
        out.copy_(shown.flip(-1) if index % 2 else shown)
        return out, index % 10


def our_dataset(folder: Path, *, decode: Any, to_float: bool) -> Repeated:
    """Return our data set with the same crop and flip."""
    last = ToFloat32() if to_float else ToUInt8()
    transform = DecodeAwareCompose([v2.RandomResizedCrop(SIDE), RandomHorizontalFlip(flip_pairs=[]), last])
    table = read_annotations("image_folder", folder, use_cache=False, num_workers=0, progress=False)
    return Repeated(ClassificationDataset(table, transforms=transform, reading=ImageReading(decode=decode)))


def contenders(folder: Path) -> dict[str, TorchDataLoader[Any]]:
    """Return the loaders; torch's is the reference."""
    recipe = TorchvisionRecipe(folder)
    fast = our_dataset(folder, decode="fast", to_float=False)
    exact = our_dataset(folder, decode="exact", to_float=True)
    bare = BareSteps(folder)
    ours: Any = DataLoader
    arguments = {"batch_size": BATCH_SIZE, **WORKERS}
    found: dict[str, TorchDataLoader[Any]] = {"torch": TorchDataLoader(recipe, **arguments)}
    for name, method in (("processes", "multiprocessing"), ("threads", "thread")):
        ways = {
            **arguments,
            "worker_method": method,
        }  # no seed, as torch's: an epoch of 16 batches makes 6 of the next
        found[f"ours, {name}, same recipe"] = ours(recipe, **ways)
        found[f"our data set, {name}, exact float32"] = ours(exact, **ways)
        found[f"our data set, {name}, fast uint8"] = ours(fast, **ways)
        found[f"bare steps, {name}, uint8"] = ours(bare, **ways)
    return found


def enlarge(small: Path, large: Path) -> None:
    """Write the images of a folder again at 1280x960."""
    for path in small.rglob("*.jpg"):
        target = large / path.relative_to(small)
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize(LARGE).save(target, quality=90)


def _judge(found: Figures, *, same: float | None, fast: float) -> None:
    for name in ("processes", "threads"):
        if same is not None:
            ratio = found.rate_ratio(f"ours, {name}, same recipe", "torch")
            judge(f"ours, {name}, same recipe, torch's rate", ratio, at_least=same)
        ratio = found.rate_ratio(f"our data set, {name}, fast uint8", "torch")
        judge(f"fast uint8, {name}, torch's rate", ratio, at_least=fast)


def main(rounds: int) -> None:
    """Compare rates on small and large JPEG files."""
    with tempfile.TemporaryDirectory() as root:
        small, large = Path(root, "small"), Path(root, "large")
        (small / "all").mkdir(parents=True)
        draw_images(small / "all")
        enlarge(small, large)
        found = compare(
            "JPEG 500x375, RandomResizedCrop(224), batch 64",
            passes(contenders(small), size=BATCH_SIZE),
            rounds=rounds,
            unit="image",
        )
        _judge(found, same=1.1, fast=1.9)
        found = compare(
            "JPEG 1280x960, RandomResizedCrop(224), batch 64",
            passes(contenders(large), size=BATCH_SIZE),
            rounds=rounds,
            unit="image",
        )
        _judge(found, same=None, fast=1.5)


if __name__ == "__main__":
    run(main, rounds=5)
