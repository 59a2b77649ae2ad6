"""Guarantee: torchvision v2's random transforms, and this package's own, give in worker threads the inline bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import DataLoader, DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
from lit_loader.datasets import ShapesSource
from lit_loader.seeding import draw_modes
from lit_loader.transforms import classification_transforms, detection_transforms
from tests.support.drawn_samples import PAIRS, draw
from tests.support.in_threads import Calls, as_list

SIDE = 40


def picture(index):
    """Return a picture that tells its places apart."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE + 8), indexing="ij")
    return torch.stack([x * 5, y * 6, (x * y + 31 * index) % 256]).to(torch.uint8)


class Transformed(Dataset):
    """A picture and its boxes, transformed."""

    def __init__(self, transform, kind="image", length=24):
        self.transform = transform
        self.kind = kind
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = tv_tensors.Image(picture(index))
        if self.kind == "float":
            image = tv_tensors.Image(image.float() / 255)
        if self.kind == "pil":
            image = Image.fromarray(picture(index).permute(1, 2, 0).numpy())
        if self.kind != "boxes":
            return self.transform(image)
        boxes = torch.tensor([[2.0, 3, 20, 25], [10, 10, 39, 30]])
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=image.shape[-2:]),
            "labels": torch.tensor([1, 2]),
        }
        return self.transform(image, target)


def leaves(batch):
    """Yield the type, dtype, shape and bits of each part of a batch."""
    for part in tree_leaves(batch):
        array = np.asarray(part)
        yield type(part).__name__, str(array.dtype), array.shape, array.tobytes()


def batches(dataset, num_workers, *, collate_fn=as_list):
    loader = DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        seed=5,
        num_workers=num_workers,
        worker_method="thread",
        collate_fn=collate_fn,
    )
    return [list(leaves(batch)) for batch in loader]


def assert_same_in_threads(dataset, *, distinct=True, **arguments):
    inline = batches(dataset, 0, **arguments)
    assert inline == batches(dataset, 0, **arguments)
    for num_workers in (2, 3):
        assert batches(dataset, num_workers, **arguments) == inline
    if distinct:  # it draws: another epoch differs
        loader = DataLoader(dataset, batch_size=4, shuffle=True, seed=5, collate_fn=as_list)
        loader.set_epoch(1)
        next_epoch = sorted(str(leaf) for batch in loader for leaf in leaves(batch))
        loader.set_epoch(0)
        assert next_epoch != sorted(str(leaf) for batch in loader for leaf in leaves(batch))


IMAGE_TRANSFORMS = {
    "RandomResizedCrop": v2.RandomResizedCrop(24, antialias=True),
    "RandomCrop": v2.RandomCrop(24, padding=4),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(),
    "RandomVerticalFlip": v2.RandomVerticalFlip(),
    "ColorJitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.2),
    "RandomRotation": v2.RandomRotation(30),
    "RandomAffine": v2.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 5),
    "RandomPerspective": v2.RandomPerspective(p=0.8),
    "GaussianBlur": v2.GaussianBlur(5),
    "ElasticTransform": v2.ElasticTransform(),
    "RandomErasing": v2.RandomErasing(p=0.8),
    "RandomErasing with noise": v2.RandomErasing(p=0.8, value="random"),
    "RandomPhotometricDistort": v2.RandomPhotometricDistort(),
    "RandomZoomOut": v2.RandomZoomOut(p=0.8),
    "RandomResize": v2.RandomResize(20, 40),
    "ScaleJitter": v2.ScaleJitter((32, 32)),
    "RandomShortestSize": v2.RandomShortestSize([16, 20, 24]),
    "RandomInvert": v2.RandomInvert(),
    "RandomPosterize": v2.RandomPosterize(3),
    "RandomSolarize": v2.RandomSolarize(100),
    "RandomAdjustSharpness": v2.RandomAdjustSharpness(2.0),
    "RandomAutocontrast": v2.RandomAutocontrast(),
    "RandomEqualize": v2.RandomEqualize(),
    "RandomGrayscale": v2.RandomGrayscale(0.5),
    "RandomChannelPermutation": v2.RandomChannelPermutation(),
    "AutoAugment": v2.AutoAugment(),
    "AutoAugment for SVHN": v2.AutoAugment(v2.AutoAugmentPolicy.SVHN),
    "RandAugment": v2.RandAugment(),
    "TrivialAugmentWide": v2.TrivialAugmentWide(),
    "AugMix": v2.AugMix(),
    "RandomApply": v2.RandomApply([v2.GaussianBlur(3), v2.RandomRotation(9)], 0.5),
    "RandomChoice": v2.RandomChoice([v2.RandomVerticalFlip(1.0), v2.RandomInvert(0.5), v2.Identity()]),
    "RandomOrder": v2.RandomOrder([v2.RandomRotation(20), v2.ColorJitter(0.5), v2.RandomHorizontalFlip()]),
    "Compose": v2.Compose([v2.RandomResizedCrop(20), v2.ColorJitter(0.3), v2.RandomErasing()]),
}


def test_every_random_transform_of_the_installed_torchvision_is_here():
    """A new one fails this test until it has been tried."""
    tried = {name.split()[0] for name in IMAGE_TRANSFORMS} | {"GaussianNoise", "MixUp", "CutMix"}
    tried |= {"RandomIoUCrop", "JPEG"}
    random_ones = {name for name in dir(v2) if isinstance(getattr(v2, name), type)}
    random_ones = {name for name in random_ones if "Random" in name or "Aug" in name or "Jitter" in name}
    assert random_ones - tried <= {"AutoAugmentPolicy"}


@pytest.mark.parametrize("name", IMAGE_TRANSFORMS)
def test_a_random_transform(name):
    assert_same_in_threads(Transformed(IMAGE_TRANSFORMS[name]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision")  # of Pillow's next version
@pytest.mark.parametrize("name", ["AutoAugment", "RandAugment", "ColorJitter", "RandomResizedCrop", "AugMix"])
def test_a_random_transform_of_pillow_images(name):
    assert_same_in_threads(Transformed(IMAGE_TRANSFORMS[name], "pil"))


@pytest.mark.parametrize(
    "transform", [v2.GaussianNoise(), v2.RandomErasing(1.0, value="random")], ids=["noise", "erasing"]
)
def test_a_random_transform_of_float_images(transform):
    assert_same_in_threads(Transformed(transform, "float"))


@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomIoUCrop(),
        v2.RandomZoomOut(p=0.7),
        v2.Compose([v2.RandomIoUCrop(), v2.SanitizeBoundingBoxes(), v2.RandomHorizontalFlip()]),
        v2.RandomAffine(20),
    ],
    ids=["iou crop", "zoom out", "detection", "affine"],
)
def test_a_random_transform_of_boxes(transform):
    assert_same_in_threads(Transformed(transform, "boxes"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision")  # of torchvision's own JPEG functions
def test_compression_at_random():
    assert_same_in_threads(Transformed(v2.JPEG((20, 90))))


class MixedUp:
    """MixUp or CutMix as a collate function."""

    def __init__(self, mix):
        self.mix = mix

    def __call__(self, samples):
        return self.mix(torch.stack([sample.float() for sample in samples]), torch.arange(len(samples)) % 3)


@pytest.mark.parametrize("mix", [v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)], ids=["mixup", "cutmix"])
def test_mixing_in_the_collate_function(mix):
    assert_same_in_threads(Transformed(v2.Identity()), collate_fn=MixedUp(mix), distinct=False)
    assert len({str(batch[1]) for batch in batches(Transformed(v2.Identity()), 2, collate_fn=MixedUp(mix))}) > 1


@pytest.mark.filterwarnings("ignore::lit_loader.errors.SharedGeneratorWarning")
def test_without_the_scope_they_would_differ(monkeypatch):
    """The mechanism disabled."""
    monkeypatch.setattr(draw_modes, "_HANDLERS", {})
    with pytest.raises((AssertionError, RuntimeError)):
        assert_same_in_threads(Transformed(v2.RandomResizedCrop(24)))


# -- this package's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [80, pytest.param((60, 90), marks=pytest.mark.soak)])
def test_the_detection_preset(size):
    chances = {"vflip": 0.5, "photometric": 0.7, "zoom_out": 0.5, "iou_crop": 0.5}
    preset = detection_transforms(True, size=size, rotation=15, flip_pairs=PAIRS, **chances)
    assert_same_in_threads(Calls(lambda index: preset(*draw()), 16))


def test_the_classification_preset():
    assert_same_in_threads(Transformed(classification_transforms(True, size=24)))


TASKS = {
    "detection": (DetectionDataModule, {"size": 80, "vflip": 0.5, "photometric": 0.5, "iou_crop": 0.3}, 16),
    "landmarks": (LandmarkDataModule, {"size": 48, "shift": 0.1, "rotation": 20, "photometric": 0.5}, 40),
    "unified": (MultiTaskDataModule, {"size": 64, "rotation": 10, "zoom_out": 0.3, "iou_crop": 0.3}, 16),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_data_module(task, tmp_path):
    module, transforms, num_images = TASKS[task]
    source = ShapesSource(
        num_images={"train": num_images, "val": 8, "test": 8}, cache_dir=str(tmp_path), progress=False
    )

    def epochs(**workers):
        datamodule = module(source, batch_size=4, train_transforms=transforms, seed=4, **workers)
        with datamodule.train_dataloader() as loader:
            return [list(leaves(batch)) for _ in range(2) for batch in loader]

    inline = epochs()
    assert len({str(batch) for batch in inline}) == len(inline) >= 8
    for num_workers in (2, 3):
        workers = {"num_workers": num_workers, "worker_method": "thread"}
        assert epochs(workers=workers) == inline
