"""A classification batch unpacks as two and stays whole: workers, page-locking, devices, Lightning."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.utilities.data import extract_batch_size
from torch.utils.data import Dataset
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import DataLoader
from lit_loader.collate import ClassificationBatch, ClassificationCollate
from lit_loader.loader.device import find_pin, moved
from lit_loader.transforms import ToUInt8

FIELDS = ("images", "labels", "image_ids", "is_duplicate")


class Labelled(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        # ToUInt8 leaves images channels last.
        image = torch.arange(3 * 80 * 80, dtype=torch.uint8).view(3, 80, 80) + index
        return ToUInt8()(tv_tensors.Image(image)), index % 3, 10 + index, False


def batch_of(indices=(0, 1)):
    return ClassificationCollate()([Labelled()[index] for index in indices])


def assert_same(batch, other):
    assert type(batch) is ClassificationBatch
    for name in FIELDS:
        assert torch.equal(getattr(batch, name), getattr(other, name))


def test_batch_unpacks_as_images_and_labels():
    batch = batch_of()
    images, labels = batch
    assert images is batch.images
    assert labels is batch.labels
    assert batch.image_ids.tolist() == [10, 11]
    assert batch.is_duplicate.tolist() == [False, False]


WORKERS = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 1, "worker_method": "thread"},
    "fork": {"num_workers": 1, "worker_method": "multiprocessing", "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 1, "worker_method": "multiprocessing", "multiprocessing_context": "forkserver"},
}


def test_a_batch_is_contiguous_unless_all_images_are_uint8_and_channels_last():
    turned = Labelled()[0][0]
    plain = torch.zeros(3, 80, 80, dtype=torch.uint8)
    grey = torch.zeros(1, 80, 80, dtype=torch.uint8)
    floats = torch.rand(80, 80, 3).permute(2, 0, 1)
    for images in ([turned, plain], [plain, turned], [plain, plain], [grey, grey], [floats, floats]):
        batch = ClassificationCollate()([(image, 0, 0, False) for image in images])
        assert torch.equal(batch.images, torch.stack([image.as_subclass(torch.Tensor) for image in images]))
        assert batch.images.is_contiguous()


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_batch_from_workers_has_all_fields(workers):
    loader = DataLoader(Labelled(), batch_size=3, collate_fn=ClassificationCollate(), **workers)
    for number, batch in enumerate(loader):
        assert_same(batch, batch_of(range(3 * number, 3 * number + 3)))
        assert torch.equal(batch.images[0], Labelled()[3 * number][0].as_subclass(torch.Tensor))
        assert batch.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("pin", [pin_memory, lambda batch: find_pin(True, "")(batch)], ids=["torch", "ours"])
def test_every_field_is_page_locked(monkeypatch, pin):
    locked = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *device: locked.append(tensor) or tensor.clone())
    batch = batch_of()
    assert_same(pin(batch), batch)
    assert all(tensor is field for tensor, field in zip(locked, vars(batch).values(), strict=True))


@pytest.mark.parametrize("move", [move_data_to_device, moved], ids=["lightning", "prefetch"])
def test_every_field_is_moved_to_a_device_and_the_original_is_unchanged(move):
    batch = batch_of()
    copy = move(batch, torch.device("meta"))
    assert type(copy) is ClassificationBatch
    assert {getattr(copy, name).device.type for name in FIELDS} == {"meta"}
    assert {getattr(batch, name).device.type for name in FIELDS} == {"cpu"}


def test_torchvision_transforms_change_only_images():
    batch = batch_of()
    batch.images = torch.rand(2, 3, 4, 5)
    flipped = v2.RandomHorizontalFlip(1.0)(batch)
    assert torch.equal(flipped.images, batch.images.flip(-1))
    flipped.images = batch.images
    assert_same(flipped, batch)


def test_lightning_finds_its_size():
    assert extract_batch_size(batch_of((0, 1, 2))) == 3
