"""Page-locking: asked for as torch does, custom batch types by their own method, off where it cannot be."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.device import Pinner
from tests.toys import Drawing


class Custom:
    """A batch type that page-locks itself; it only remembers that it was asked."""

    def __init__(self, samples):
        self.samples, self.pinned = samples, False

    def pin_memory(self):
        self.pinned = True
        return self


@pytest.fixture
def accelerator(monkeypatch):
    """Pretend that there is one; its name may be changed."""
    found = {"type": "cuda"}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(found["type"]))
    return found


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_custom_batch_type_is_pinned_by_its_own_method(accelerator, seed, num_workers):
    def loader(**arguments):
        return DataLoader(
            Drawing(6), batch_size=2, seed=seed, num_workers=num_workers, collate_fn=Custom, **arguments
        )

    assert [batch.pinned for batch in loader(pin_memory=True)] == [True] * 3
    assert [batch.pinned for batch in loader()] == [False] * 3


def test_nested_batches_are_pinned_leaf_by_leaf_and_keep_their_shape(accelerator):
    batch = Pinner(True, "")({"a": [Custom(1), "text"], "b": (Custom(2), 3)})
    assert batch["a"][0].pinned
    assert batch["b"][0].pinned
    assert (batch["a"][1], batch["b"][1]) == ("text", 3)
    assert isinstance(batch["b"], tuple)


def test_where_it_is_not_supported_it_is_off_with_torchs_warning(accelerator):
    accelerator["type"] = "mps"
    with pytest.warns(UserWarning, match="not supported on MPS"):
        pinner = Pinner(True, "")
    assert not pinner(Custom(1)).pinned


def test_a_named_device_is_deprecated_as_in_torch(accelerator):
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
        Pinner(True, "cuda:1")


def test_tv_tensors_keep_their_class(accelerator, monkeypatch):
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: tensor.contiguous()
    )  # plain, as torch's is
    boxes = tv_tensors.BoundingBoxes(torch.ones(2, 4), format="XYXY", canvas_size=(5, 6))
    pinned = Pinner(True, "")({"boxes": boxes, "image": torch.ones(1)})
    assert type(pinned["boxes"]) is tv_tensors.BoundingBoxes
    assert (pinned["boxes"].format, pinned["boxes"].canvas_size) == (boxes.format, (5, 6))
    assert type(pinned["image"]) is torch.Tensor


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("CUDA error: out of memory\nlong text"),
    RuntimeError("[enforce fail] posix_memalign: Cannot allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_without_memory_to_lock_the_epoch_goes_on_unpinned_and_one_warning_says_so(
    accelerator, monkeypatch, error
):
    asked = []

    def pin(tensor):
        asked.append(tensor)
        raise error

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    loader = DataLoader(Drawing(6), batch_size=2, seed=1, pin_memory=True)
    expected = [batch["torch"] for batch in DataLoader(Drawing(6), batch_size=2, seed=1)]
    with pytest.warns(UserWarning, match="goes on unpinned.*pin_memory=False") as caught:
        found = [batch["torch"] for batch in loader]
    assert len(caught) == len(asked) == 1
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_another_error_of_torchs_is_raised(accelerator, monkeypatch):
    def pin(tensor):
        raise RuntimeError("cannot pin a sparse tensor")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with pytest.raises(RuntimeError, match="sparse"):
        next(iter(DataLoader(Drawing(6), batch_size=2, seed=1, pin_memory=True)))
