"""Encoded data is decoded to equal values, types, dtypes, shapes and layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

from lit_loader.memory import decode, encode
from tests.support.toys import Point


def there_and_back(data):
    return decode([memoryview(bytearray(buffer)) for buffer in encode(data)])


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 4), max_size=4),
    permute=st.booleans(),
    step=st.integers(1, 2),
)
def test_tensors_come_back_equal(dtype, shape, permute, step):
    tensor = (torch.arange(math.prod(shape)) % 7).reshape(shape).to(dtype)
    if permute:
        tensor = tensor.permute(list(reversed(range(tensor.ndim))))
    if tensor.ndim:
        tensor = tensor[::step]
    back = there_and_back(tensor)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_dense_permuted_layout_is_preserved():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert there_and_back(image).is_contiguous(memory_format=torch.channels_last)


def test_view_of_a_large_tensor_sends_only_its_own_bytes():
    assert sum(len(memoryview(buffer)) for buffer in encode(torch.zeros(1_000_000)[:10])) < 2000


def test_tensor_bytes_are_outside_the_pickle():
    assert len(encode(torch.zeros(100_000))[0]) < 1000


def test_subclasses_keep_their_type_and_attributes():
    boxes = tv_tensors.BoundingBoxes(torch.rand(2, 4), format="XYXY", canvas_size=(5, 6))
    back = there_and_back({"boxes": boxes, "image": tv_tensors.Image(torch.zeros(3, 2, 2, dtype=torch.uint8))})
    assert type(back["boxes"]) is tv_tensors.BoundingBoxes
    assert back["boxes"].canvas_size == (5, 6)
    assert torch.equal(back["boxes"], boxes)
    assert type(back["image"]) is tv_tensors.Image


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
    ],
    ids=["sparse", "conjugate", "parameter", "requires_grad"],
)
def test_tensors_that_are_more_than_bytes_use_their_own_pickling(tensor):
    back = there_and_back(tensor)
    assert type(back) is type(tensor)
    assert back.requires_grad == tensor.requires_grad
    assert torch.equal(back.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())


def test_nested_containers_are_unchanged():
    data = {
        "a": [1, None, "s", b"b"],
        "p": Point(np.arange(3), torch.tensor(2)),
        "ragged": [torch.ones(n) for n in (0, 2)],
    }
    back = there_and_back(data)
    assert back["a"] == data["a"]
    assert type(back["p"]) is Point
    assert back["p"].x.tolist() == [0, 1, 2]
    assert [len(t) for t in back["ragged"]] == [0, 2]


def test_decoded_tensors_and_arrays_are_writable():
    back = there_and_back({"t": torch.zeros(3), "a": np.zeros(3)})
    back["t"] += 1
    back["a"] += 1
    assert back["t"].tolist() == back["a"].tolist() == [1, 1, 1]


def test_a_tensor_with_a_graph_is_refused_with_the_remedy():
    """Its graph cannot be sent, and a leaf instead of it would silently train nothing."""
    with pytest.raises(RuntimeError, match=r"return tensor\.detach"):
        encode({"deep": [torch.ones(2, requires_grad=True) * 2]})


@pytest.mark.parametrize("size", [0, 3, 10_000])
def test_storage_is_decoded_as_storage(size):
    storage = torch.arange(size, dtype=torch.uint8).untyped_storage()
    back = there_and_back(storage)
    assert type(back) is torch.UntypedStorage
    assert back.tolist() == storage.tolist()
