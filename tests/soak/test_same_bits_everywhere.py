"""The whole matrix of workers and start methods, on whole epochs of the embedded set and of BCCD."""

from __future__ import annotations

from hashlib import blake2b

import pytest
import torch

from lit_loader import DetectionDataModule
from lit_loader.datamodules import ClassBalancedSampling
from lit_loader.datasets import ShapesSource, VocSource
from lit_loader.transforms import detection_transforms

pytestmark = pytest.mark.soak

WORKERS = [(method, count) for method in ("fork", "spawn", "forkserver") for count in (1, 2, 4)]


def digest(batch):
    """Return a hash of every bit of a batch."""
    images, targets = batch
    hasher = blake2b()
    for tensor in (*images, *(target[key] for target in targets for key in ("boxes", "labels", "area"))):
        hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.as_subclass(torch.Tensor).numpy().tobytes())
    return hasher.hexdigest()


def epochs(source, **workers):
    transforms = detection_transforms(train=True, size=160, vflip=0.5, photometric=0.5, iou_crop=0.3)
    datamodule = DetectionDataModule(
        source,
        batch_size=8,
        train_sampler=ClassBalancedSampling(),
        train_transforms=transforms,
        seed=4,
        **workers,
    )
    with datamodule.train_dataloader() as loader:
        return [digest(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("name", ["shapes", "bccd"])
def test_every_number_of_workers_and_start_method(name, request, tmp_path):
    if name == "bccd":
        root = request.getfixturevalue("shared_data") / "bccd" / "BCCD"
        source = VocSource(root=str(root), cache_dir=str(tmp_path), progress=False)
    else:
        counts = {"train": 300, "val": 20, "test": 20}
        source = ShapesSource(
            num_images=counts, cache_dir=str(tmp_path), class_shares=(0.8, 0.15, 0.05), progress=False
        )
    inline = epochs(source)
    for method, count in WORKERS:
        assert epochs(source, num_workers=count, multiprocessing_context=method) == inline, (method, count)
