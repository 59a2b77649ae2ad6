"""Default collation of any samples gives torch's result or torch's error."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, UserList, deque
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate as torch_default_collate
from torchvision import tv_tensors

from lit_loader.collate import default_collate
from tests.support.toys import Point

NUMPY_DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "u2", "u8", ">i4", "U2", "O"]
TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]


class Colour(IntEnum):
    RED = 1
    BLUE = 2


class Named(dict):
    """A mapping with more in it than its items."""

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.extra = "kept"


class Listed(list):
    extra = "kept"


class Indexed:
    """Converts to numbers, but is not a number."""

    def __index__(self) -> int:
        return 3

    def __float__(self) -> float:
        return 3.0


def outcome(function, data):
    """Return a description of the result, or the error.

    Warnings are ignored, because torch gives some of them only once per process.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return described(function(data))
    except Exception as error:
        return type(error), str(error)


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return type(value), value.layout, described(value.to_dense())
        bits = [repr(x) for x in value.detach().flatten().tolist()]  # repr: a NaN equals a NaN
        facts = value.dtype, tuple(value.shape), value.stride(), value.requires_grad, value.device.type
        return type(value), facts, bits, value.untyped_storage().resizable()
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, repr(value.tolist())
    if isinstance(value, dict | UserDict | MappingProxyType):
        return type(value), getattr(value, "extra", None), [(k, described(v)) for k, v in value.items()]
    if isinstance(value, tuple | list | UserList | deque):
        return type(value), getattr(value, "extra", None), [described(item) for item in value]
    return type(value), repr(value)


@st.composite
def arrays(draw, dtype=None):
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)) if dtype is None else dtype)
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 3), (1, 2, 2)]))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    layout = draw(st.sampled_from(["C", "C", "C", "F", "reversed", "strided"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "reversed" and array.ndim:
        return array[::-1]
    return np.repeat(array, 2, axis=-1)[..., ::2] if layout == "strided" and array.ndim else array


@st.composite
def tensors(draw, dtype=None):
    dtype = draw(st.sampled_from(TORCH_DTYPES)) if dtype is None else dtype
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 3), (1, 2, 2)]))
    tensor = torch.arange(np.prod(shape, dtype=int)).reshape(shape).to(dtype)
    kind = draw(st.sampled_from(["plain"] * 6 + ["permuted", "grad", "sparse", "tv", "parameter", "conj"]))
    if kind == "permuted" and tensor.ndim:
        return tensor.permute(*range(tensor.ndim)[::-1])
    if kind == "grad" and dtype.is_floating_point:
        return tensor.requires_grad_()
    if kind == "sparse" and tensor.ndim:
        return tensor.to_sparse()
    if kind == "tv":
        return tv_tensors.Mask(tensor)
    if kind == "parameter" and dtype.is_floating_point:
        return torch.nn.Parameter(tensor)
    return tensor.conj() if kind == "conj" else tensor


NUMPY_SCALARS = [np.float32(1.5), np.float64(2.5), np.float64(1e300), np.int64(3), np.uint8(4), np.bool_(True)]
NUMPY_SCALARS += [np.float16(1), np.complex64(1j), np.uint16(7), np.str_("text"), np.bytes_(b"b")]
SCALARS = st.sampled_from([*NUMPY_SCALARS, np.datetime64("2020")])
NUMBERS = st.one_of(st.integers(-(2**64), 2**65), st.integers(-5, 5), st.floats(), st.booleans())
OTHERS = st.sampled_from(["a", "", b"b", None, 1j, object, Indexed(), Colour.RED, Colour.BLUE, range(2), {1}])
LEAVES = [st.integers(-(2**63), 2**63 - 1), st.integers(2**62, 2**64), st.floats(), st.booleans(), st.text()]
LEAVES += [st.just(b"b"), SCALARS, OTHERS, arrays(), tensors(), arrays("f4"), tensors(torch.float32)]
ANYTHING = st.one_of(NUMBERS, OTHERS, SCALARS, arrays(), tensors(), st.tuples(NUMBERS), st.lists(NUMBERS))
WRAPPERS = [tuple, list, tuple, list, UserList, Listed, deque]
MAPPINGS = [dict, dict, OrderedDict, UserDict, MappingProxyType, Named]


@st.composite
def columns(draw, length: int, depth: int = 2):
    """Draw the values of one field of a batch; most have one type."""
    kind = draw(st.sampled_from(["leaf", "leaf", "sequence", "mapping", "point"])) if depth else "leaf"
    if kind == "leaf":
        leaf = draw(st.sampled_from(LEAVES))
        if draw(st.booleans()):
            return [draw(leaf)] * length
        return [draw(leaf) for _ in range(length)]
    width = 2 if kind == "point" else draw(st.integers(0, 3))
    fields = [draw(columns(length, depth - 1)) for _ in range(width)]
    rows = list(zip(*fields, strict=True)) if fields else [()] * length
    if kind == "point":
        return [Point(*row) for row in rows]
    if kind == "mapping":
        mapping = draw(st.sampled_from(MAPPINGS))
        return [mapping(dict(zip("abc", row, strict=False))) for row in rows]
    return [*map(draw(st.sampled_from(WRAPPERS)), rows)]


@st.composite
def batches(draw):
    length = draw(st.integers(1, 4))
    batch = draw(columns(length))
    if draw(st.integers(0, 3)) == 0:
        batch[draw(st.integers(0, length - 1))] = draw(ANYTHING)
    return batch


@given(batches())
def test_collation_gives_torchs_result_or_torchs_error(batch):
    assert outcome(default_collate, batch) == outcome(torch_default_collate, batch)


@pytest.mark.parametrize(
    "column",
    [
        [1, 2**63],
        [-(2**63), 2**63 - 1],
        [2.5, "a"],
        [1.0, 10**400],
        [1, Indexed()],
        [1.0, Indexed()],
        [1, np.uint64(2)],
        [np.float32(1), np.float64(1e300)],
        [Colour.RED, 2],
        [np.zeros(2), np.zeros((2, 1))],
        [np.zeros(2), np.zeros(1)],
        [np.array(1.0), np.zeros(1)],
        [np.zeros(2), np.ma.masked_array([1.0, 2.0], [True, False])],
        [torch.zeros(2), tv_tensors.Mask(torch.zeros(2))],
        [(1, 2), {3: 1, 4: 1}],
        [(1, 2), (3,), 4],
        [(1, 2), 4, (3,)],
        [(1, 2), Point(3, 4)],
        [Point(3, 4), (1, 2, 3)],
        [{"a": 1}, [1]],
        [],
        "text",
        torch.zeros(2, 3),
        np.zeros((2, 3)),
        ((1, 2.5), (3, 4.5)),
        {0: 1.5},
    ],
)
def test_columns_of_mixed_types_equal_torchs(column):
    assert outcome(default_collate, column) == outcome(torch_default_collate, column)


def test_batch_is_on_the_default_device():
    batch = [(1, 2.5, np.float32(3), np.zeros(2))] * 2
    with torch.device("meta"):
        ours = default_collate(batch)
        torchs = torch_default_collate(batch)
    assert [tensor.device.type for tensor in ours] == [tensor.device.type for tensor in torchs] == ["meta"] * 4
