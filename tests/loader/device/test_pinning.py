"""Page-locking: asked for as torch does, custom batch types by their own method, off where it cannot be."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.loader.device import find_pin
from tests.support.toys import Drawing


class Custom:
    """A batch type that page-locks itself; it only remembers that it was asked."""

    def __init__(self, samples):
        self.samples = samples
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


@pytest.fixture
def accelerator(monkeypatch):
    """Pretend that there is one; its name may be changed."""
    actual = {"type": "cuda"}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(actual["type"]))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    return actual


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_custom_batch_type_is_pinned_by_its_own_method(accelerator, seed, num_workers):
    def loader(**arguments):
        return DataLoader(Drawing(6), batch_size=2, seed=seed, num_workers=num_workers, collate_fn=Custom, **arguments)

    assert [batch.pinned for batch in loader(pin_memory=True)] == [True] * 3
    assert [batch.pinned for batch in loader()] == [False] * 3


def test_tv_tensors_keep_their_class(accelerator, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.contiguous())  # plain, as torch's is
    boxes = tv_tensors.BoundingBoxes(torch.ones(2, 4), format="XYXY", canvas_size=(5, 6))
    pinned = find_pin(True, "")({"boxes": boxes, "image": torch.ones(1)})
    assert type(pinned["boxes"]) is tv_tensors.BoundingBoxes
    assert (pinned["boxes"].format, pinned["boxes"].canvas_size) == (boxes.format, (5, 6))
    assert type(pinned["image"]) is torch.Tensor


@pytest.mark.parametrize("text", ["cannot pin a sparse tensor", "CUDA error: out of memory"])
def test_an_error_of_torchs_is_raised(accelerator, monkeypatch, text):
    def pin(tensor):
        raise RuntimeError(text)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with pytest.raises(RuntimeError, match=text):
        next(iter(DataLoader(Drawing(6), batch_size=2, seed=1, pin_memory=True)))
