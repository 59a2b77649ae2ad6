"""Samples of any structure and kind, drawn from two numbers: one for the structure, one for the values."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate
from torchvision import tv_tensors

from tests.support.collate_samples import Frozen, Row
from tests.support.toys import Point

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
NUMPY_DTYPES = ["?", "u1", "i2", "<i4", "i8", "f2", "<f4", "f8", "c8", "c16"]
OTHER_NUMPY_DTYPES = [">f4", ">i2", "U3", "S4", "M8[s]", "O", [("a", "i4"), ("b", "f8")]]
SMALL = [(), (1,), (3,), (0,), (2, 3), (2, 0, 3), (1, 2, 2, 3)]
LARGE = [(20_000,), (150, 140), (1, 4, 80, 70), (3, 90, 90)]


class Key(NamedTuple):
    """Names a sample: its structure, its values, and how the batch that it is in is collated."""

    structure: int
    values: int
    mode: str


class Drawn(Dataset):
    """Samples by `Key`.

    Args:
        has_mode: True if samples are pairs of a mode of collation and the data.
    """

    def __init__(self, *, has_mode: bool) -> None:
        self.has_mode = has_mode

    def __getitem__(self, key: Any) -> Any:
        key = Key(*key)
        sample = draw(key, stackable=key.mode in STACKABLE)
        return (key.mode, sample) if self.has_mode else sample


def draw(key: Key, *, stackable: bool) -> Any:
    """Return a sample; two keys of one structure give values that default collation can put together."""
    return _Drawer(random.Random(key.structure), random.Random(key.values), stackable).sample()


class _Drawer:
    def __init__(self, structure: random.Random, values: random.Random, stackable: bool) -> None:
        self.shape = structure if stackable else random.Random(f"{structure.random()}, {values.random()}")
        self.values = values
        self.stackable = stackable
        self.made: list[torch.Tensor] = []

    def sample(self, depth: int = 0) -> Any:
        kind = self.shape.random()
        if depth >= 3 or kind < 0.5:
            return self.leaf()
        items = [self.sample(depth + 1) for _ in range(self.shape.randint(1, 3))]
        if kind < 0.6:
            return tuple(items)
        if kind < 0.7:
            return items
        if kind < 0.8:
            return {f"f{n}": item for n, item in enumerate(items)}
        if kind < 0.9:
            return Point(items[0], items[-1])
        return Frozen({"a": items[0]}) if kind < 0.95 else Row(items)

    def leaf(self) -> Any:
        kind = self.shape.random()
        if kind < 0.5:
            return self.tensor()
        if kind < 0.75:
            return self.array()
        number = self.values.randint(-100, 100)
        plain = [number, number / 7, bool(number % 2), f"s{number}", b"%d" % number]
        plain += [np.float32(number), np.int16(number), np.bool_(number % 2)]
        if not self.stackable:
            plain += [None, range(3), {1, 2}, 2j, object, np.datetime64(number, "D"), bytes(20_000), "x" * 20_000]
        return self.shape.choice(plain)

    def tensor(self) -> torch.Tensor:
        dtype = self.shape.choice(DTYPES)
        shape = self.shape.choice(self.shape.choice([SMALL, LARGE]))
        generator = torch.Generator().manual_seed(self.values.getrandbits(60))
        tensor = torch.randint(0, 100, shape, generator=generator).to(dtype)
        form = self.shape.randrange(12)
        if form == 0 and tensor.ndim:
            tensor = tensor.transpose(0, -1)
        elif form == 1 and tensor.ndim:
            tensor = tensor[::2]
        elif form == 2 and tensor.ndim and len(tensor):
            tensor = tensor[:1].expand(3, *tensor.shape[1:])
        elif form == 3 and tensor.ndim == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        elif form == 4 and self.made and not self.stackable:
            tensor = self.shape.choice(self.made)  # twice in a sample
        elif form == 5 and self.made and not self.stackable:
            tensor = self.shape.choice(self.made).reshape(-1)[1:]  # a view of another
        elif form == 6 and tensor.ndim == 3 and not self.stackable:
            return tv_tensors.Image(tensor)
        elif form == 7 and not self.stackable:
            tensor.note = "a note"
        elif form == 8 and tensor.ndim == 2 and tensor.shape[1] == 4 and not self.stackable:
            return tv_tensors.BoundingBoxes(tensor, format="XYXY", canvas_size=(3, 4))
        elif form == 9 and dtype.is_floating_point and not self.stackable:
            return tensor.requires_grad_()
        elif form == 10 and dtype.is_complex and not self.stackable:
            return tensor.conj()
        self.made.append(tensor)
        return tensor

    def array(self) -> np.ndarray:
        dtype = self.shape.choice(NUMPY_DTYPES + ([] if self.stackable else OTHER_NUMPY_DTYPES))
        shape = self.shape.choice(self.shape.choice([SMALL, LARGE]))
        numbers = np.random.default_rng(self.values.getrandbits(60)).integers(0, 100, shape)
        if isinstance(dtype, list):
            array = np.zeros(shape, dtype)
            array["a"] = numbers
        else:
            array = numbers.astype(dtype) if dtype != "M8[s]" else numbers.astype("i8").view(dtype)
        form = self.shape.randrange(6)
        if form == 0:
            array = np.asfortranarray(array)
        elif form == 1 and array.ndim:
            array = array[::2]
        elif form == 2 and array.ndim and not self.stackable:
            array = array[::-1]
        elif form == 3 and not self.stackable:
            array.flags.writeable = False
        return array


def tensors_in(data: Any) -> list[torch.Tensor]:
    """Return all tensors in data, in order."""
    if isinstance(data, torch.Tensor):
        return [data]
    if isinstance(data, Mapping):
        return [tensor for value in data.values() for tensor in tensors_in(value)]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | range):
        return [tensor for item in data for tensor in tensors_in(item)]
    return []


def _stacked(samples: list[Any]) -> Any:
    tensors = [tensors_in(sample) for sample in samples]
    return [torch.stack(column) for column in zip(*tensors, strict=True)]


def _views(samples: list[Any]) -> Any:
    tensors = tensors_in(samples)
    return [(tensor, tensor[1:], tensor.T, tensor) if tensor.ndim == 2 else tensor for tensor in tensors]


def _as_numpy(samples: list[Any]) -> Any:
    return [tensor.numpy() for tensor in tensors_in(samples) if tensor.dtype is not torch.bfloat16]


def _flat(samples: list[Any]) -> Any:
    return [
        torch.cat([t.detach().reshape(-1).double() for t in tensors_in(sample)] or [torch.ones(1)])
        for sample in samples
    ]


COLLATIONS = {
    "default": default_collate,
    "samples and their stack": lambda samples: (list(samples), default_collate(samples)),
    "stacked by itself": _stacked,
    "views": _views,
    "numpy": _as_numpy,
    "list": list,
    "list twice": lambda samples: [samples, samples],
    "flat": _flat,
    "changed in place": lambda samples: [t.zero_() for s in samples for t in tensors_in(s) if t.is_contiguous()],
}
STACKABLE = ["default", "samples and their stack", "stacked by itself", "views", "numpy", "changed in place"]
MODES = list(COLLATIONS)


def collate_by_mode(samples: list[Any]) -> Any:
    """Collate by the mode of the first sample."""
    return COLLATIONS[samples[0][0]]([sample for _, sample in samples])


def assert_same(actual: Any, expected: Any) -> None:
    """Assert that two batches are equal: types, dtypes, shapes, values, dense layouts, attributes."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(actual, expected)
    elif isinstance(expected, np.ndarray):
        # numpy's own pickling may convert another byte order to this machine's
        native = actual.dtype.newbyteorder("="), expected.dtype.newbyteorder("=")
        assert (native[0], actual.shape) == (native[1], expected.shape)
        assert np.array_equal(actual, expected)
        assert actual.flags.f_contiguous == expected.flags.f_contiguous or not expected.flags.f_contiguous
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, Sequence) and not isinstance(expected, str | bytes | range):
        assert len(actual) == len(expected)
        for actual_item, expected_item in zip(actual, expected, strict=True):
            assert_same(actual_item, expected_item)
    else:
        assert actual == expected or (actual != actual and expected != expected)


def _assert_same_tensor(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.requires_grad == expected.requires_grad
    assert {**actual.__dict__} == {**expected.__dict__}
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.equal(actual.detach(), expected.detach())
        order = sorted(range(expected.ndim), key=expected.stride, reverse=True)
        # In a worker, torch's default_collate stacks channels-last samples (4 dimensions) into contiguous memory.
        if expected.ndim < 5 and expected.permute(order).is_contiguous() and expected.numel() > 1:
            real = [n for n in range(expected.ndim) if expected.shape[n] > 1]
            assert [actual.stride(n) for n in real] == [expected.stride(n) for n in real]
