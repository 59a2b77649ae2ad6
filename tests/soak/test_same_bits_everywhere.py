"""The whole matrix of workers and start methods, on whole epochs of the embedded set and of BCCD."""

from __future__ import annotations

from hashlib import blake2b

import pytest
import torch

from lit_loader import DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
from lit_loader.datamodules import ClassBalancedSamplerConfig
from lit_loader.datasets import ShapesSource, VocSource

pytestmark = pytest.mark.soak

WORKERS = [(method, count) for method in ("fork", "spawn", "forkserver", "thread") for count in (1, 2, 4)]


TASKS = {
    "detection": (DetectionDataModule, {"size": 160, "vflip": 0.5, "photometric": 0.5, "iou_crop": 0.3}),
    "landmarks": (LandmarkDataModule, {"size": 64, "shift": 0.1, "rotation": 20, "photometric": 0.5}),
    "unified": (MultiTaskDataModule, {"size": 96, "rotation": 10, "zoom_out": 0.3, "iou_crop": 0.3}),
}


def digest(batch):
    """Return a hash of every bit of a batch."""
    hasher = blake2b()
    for tensor in tensors_in(batch):
        hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.as_subclass(torch.Tensor).numpy().tobytes())
    return hasher.hexdigest()


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def epochs(source, task, **workers):
    module, transforms = TASKS[task]
    datamodule = module(
        source, batch_size=8, train_sampler=ClassBalancedSamplerConfig(), train_transforms=transforms, seed=4, **workers
    )
    with datamodule.train_dataloader() as loader:
        return [digest(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize(
    ("name", "task"), [("shapes", "detection"), ("bccd", "detection"), ("shapes", "landmarks"), ("shapes", "unified")]
)
def test_all_numbers_of_workers_and_start_methods_give_the_inline_batches(name, task, request, tmp_path):
    if name == "bccd":
        root = request.getfixturevalue("shared_data") / "bccd" / "BCCD"
        source = VocSource(root=str(root), cache_dir=str(tmp_path), progress=False)
    else:
        counts = {"train": 300, "val": 20, "test": 20}
        source = ShapesSource(
            num_images=counts, cache_dir=str(tmp_path), class_shares=(0.8, 0.15, 0.05), progress=False
        )
    inline = epochs(source, task)
    assert len(set(inline)) == len(inline) > 10
    for method, count in WORKERS:
        kind = {"worker_method": method} if method == "thread" else {"multiprocessing_context": method}
        got = epochs(source, task, num_workers=count, workers=kind)
        assert got == inline, (method, count)
