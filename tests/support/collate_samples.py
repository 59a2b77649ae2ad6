"""A batch of samples for every type that default collation and conversion distinguish, by name."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import torch
from torchvision import tv_tensors

Point = namedtuple("Point", ["x", "y"])

# Names of SAMPLES for which torch's collation into shared memory differs from torch's inline collation.
OTHERWISE_IN_TORCHS_WORKERS = [
    "tensors of two types",
    "int and float tensors",
    "tensor, then array",
    "arrays of two types",
    "ragged tensors",
    "conjugated",
    "negated",
    "quantized",
    *(["on no device"] if torch.__version__ < (2, 14) else []),  # seen with 2.11, no longer with 2.14
]
# Names of SAMPLES that torch's shared memory changes even without collation.
CHANGED_BY_TORCHS_WORKERS = ["conjugated", "negated", "quantized"]


@dataclasses.dataclass
class Data:
    x: int


class Frozen(Mapping):
    """A mapping that cannot be changed, and can be rebuilt from a dict."""

    def __init__(self, items):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class FrozenFromNothing(Frozen):
    """One that cannot be rebuilt."""

    def __init__(self):
        super().__init__({"a": 1, "b": np.ones(2)})


class Changing(Frozen, MutableMapping):
    """One that can be changed, and has something to keep."""

    note = None

    def __setitem__(self, key, value):
        self.items_ = {**self.items_, key: value}

    def __delitem__(self, key):
        raise NotImplementedError


class Stubborn(Changing):
    """One that cannot be updated."""

    def update(self, *args, **kwargs):
        raise TypeError("no")


class Row(Sequence):
    """A sequence that cannot be changed, and can be rebuilt from a list."""

    def __init__(self, items):
        self.row = list(items)

    def __getitem__(self, index):
        return self.row[index]

    def __len__(self):
        return len(self.row)


class RowFromNothing(Row):
    def __init__(self):
        super().__init__([1, np.ones(2)])


class ChangingRow(Row, MutableSequence):
    note = None

    def __copy__(self):
        other = type(self)(self.row)
        other.note = self.note
        return other

    def __setitem__(self, index, value):
        self.row[index] = value

    def __delitem__(self, index):
        raise NotImplementedError

    def insert(self, index, value):
        raise NotImplementedError


class StubbornRow(ChangingRow):
    def __setitem__(self, index, value):
        raise TypeError("no")


class TupleLike(tuple):
    __slots__ = ()


class ListLike(list):
    pass


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Marked(torch.Tensor):
    """A tensor subclass."""


def noted(value, note):
    value.note = note
    return value


ARRAY_TYPES = "? b B h H i I l L q Q e f d g F D G S3 U3 O M8[s] m8[s] V4".split()  # noqa: SIM905


def tensor_types():
    """Return every dtype that a tensor of numbers can have in this torch."""
    actual = []
    for dtype in {item for item in vars(torch).values() if isinstance(item, torch.dtype)}:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some are experimental
                torch.zeros(2).to(dtype).tolist()
        except (RuntimeError, NotImplementedError):
            continue
        actual.append(dtype)
    return sorted(actual, key=str)


def array_of(code):
    return np.zeros(2, dtype=code)


def tensor_of(dtype):
    return torch.tensor([0.0, 1.0]).to(dtype)


SAMPLES = {
    **{f"array of {code}": lambda code=code: [array_of(code), array_of(code)] for code in ARRAY_TYPES},
    **{f"tensor of {dtype}": lambda dtype=dtype: [tensor_of(dtype)] * 2 for dtype in tensor_types()},
    **{f"scalar of {code}": lambda code=code: [array_of(code)[0], array_of(code)[1]] for code in ARRAY_TYPES},
    **{f"0-dim array of {code}": lambda code=code: [array_of(code)[0, ...]] * 2 for code in ("d", "l", "O", "U3")},
    "tensors": lambda: [torch.ones(2, 3), torch.zeros(2, 3)],
    "0-dim tensors": lambda: [torch.tensor(1), torch.tensor(2)],
    "empty tensors": lambda: [torch.empty(0, 4), torch.empty(0, 4)],
    "tensors of two types": lambda: [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    "int and float tensors": lambda: [torch.ones(2, dtype=torch.int32), torch.ones(2)],
    "tensor, then array": lambda: [torch.ones(2), np.ones(2)],
    "array, then tensor": lambda: [np.ones(2), torch.ones(2)],
    "arrays of two types": lambda: [np.ones(2, dtype=np.int32), np.ones(2, dtype=np.float64)],
    "read-only view": lambda: [np.arange(6)[::2], np.arange(6)[1::2]],
    "reversed array": lambda: [np.arange(3)[::-1], np.arange(3)[::-1]],
    "big-endian array": lambda: [np.ones(2, dtype=">f8")] * 2,
    "structured array": lambda: [np.zeros(2, dtype=[("a", "i4")])] * 2,
    "masked array": lambda: [np.ma.masked_array([1.0, 2.0], mask=[0, 1])] * 2,
    "record": lambda: [np.zeros(1, dtype=[("a", "i4")])[0]] * 2,
    "channels last": lambda: [torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)] * 2,
    "expanded": lambda: [torch.ones(1).expand(4), torch.zeros(4)],
    "conjugated": lambda: [torch.ones(2, dtype=torch.complex64).conj()] * 2,
    "nested": lambda: [torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])] * 2,
    "jagged": lambda: [torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)] * 2,
    "sparse coo": lambda: [torch.eye(2).to_sparse()] * 2,
    "sparse csr": lambda: [torch.eye(2).to_sparse_csr()] * 2,
    "sparse csc": lambda: [torch.eye(2).to_sparse_csc()] * 2,
    "negated": lambda: [torch.tensor([1 + 2j]).conj().imag] * 2,
    "ragged tensors": lambda: [torch.ones(5), torch.ones(1)],
    "quantized": lambda: [torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)] * 2,
    "on no device": lambda: [torch.ones(2, device="meta")] * 2,
    "tensor subclass": lambda: [torch.ones(2).as_subclass(Marked)] * 2,
    "subclass, then tensor": lambda: [torch.ones(2).as_subclass(Marked), torch.zeros(2)],
    "parameter of no gradient": lambda: [torch.nn.Parameter(torch.ones(2), requires_grad=False)] * 2,
    "tv image": lambda: [tv_tensors.Image(torch.ones(3, 2, 2))] * 2,
    "tv boxes": lambda: [tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(4, 4))] * 2,
    "ints": lambda: [1, 2],
    "large ints": lambda: [2**62, -(2**62)],
    "ints too large": lambda: [2**70, 1],
    "int, then float": lambda: [1, 2.5],
    "float, then int": lambda: [2.5, 1],
    "bools": lambda: [True, False],
    "bool, then int": lambda: [True, 2],
    "int, then bool": lambda: [2, True],
    "floats": lambda: [0.1, float("nan")],
    "complex numbers": lambda: [1 + 2j, 3j],
    "int subclass": lambda: [Whole(1), Whole(2)],
    "number, then tensor": lambda: [1, torch.tensor(2)],
    "number, then text": lambda: [1, "a"],
    "numpy scalar, then number": lambda: [np.float32(1), 2.5],
    "number, then numpy scalar": lambda: [1, np.float32(2.5)],
    "numpy scalars of two types": lambda: [np.int64(1), np.float32(2.5)],
    "texts": lambda: ["a", "bc"],
    "text subclass": lambda: [Text("a"), Text("b")],
    "numpy texts": lambda: [np.str_("a"), np.str_("b")],
    "bytes": lambda: [b"a", b""],
    "bytearrays": lambda: [bytearray(b"ab"), bytearray(b"cd")],
    "numpy bytes": lambda: [np.bytes_(b"a"), np.bytes_(b"b")],
    "text, then none": lambda: ["a", None],
    "none": lambda: [None, None],
    "none in a dict": lambda: [{"a": None}, {"a": 1}],
    "objects": lambda: [SimpleNamespace(a=1), SimpleNamespace(a=2)],
    "classes": lambda: [int, float],
    "decimals": lambda: [Decimal(1), Decimal(2)],
    "dataclass": lambda: [Data(1), Data(2)],
    "sets": lambda: [{1}, {2}],
    "slices": lambda: [slice(1), slice(2)],
    "ellipses": lambda: [..., ...],
    "namedtuple": lambda: [Point(1, "a"), Point(2, "b")],
    "namedtuple of arrays": lambda: [Point(np.array(0), np.array(1.5))] * 2,
    "tuples": lambda: [(1, 2.5, "a"), (3, 4, "b")],
    "tuple subclass": lambda: [TupleLike((1, 2)), TupleLike((3, 4))],
    "lists": lambda: [[1, np.ones(1)], [2, np.zeros(1)]],
    "list subclass": lambda: [noted(ListLike([1, 2]), "kept"), ListLike([3, 4])],
    "empty lists": lambda: [[], []],
    "empty tuples": lambda: [(), ()],
    "empty dicts": lambda: [{}, {}],
    "ragged lists": lambda: [[1, 2], [3]],
    "ragged tuples": lambda: [(1,), (1, 2)],
    "ragged namedtuples": lambda: [Point(1, 2), (3,)],
    "list, then tuple": lambda: [[1, 2], (3, 4)],
    "list, then number": lambda: [[1, 2], 3],
    "list of texts, then text": lambda: [["a", "b"], "cd"],
    "ranges": lambda: [range(2), range(2, 4)],
    "deques": lambda: [deque([1, 2]), deque([3, 4])],
    "bounded deques": lambda: [deque([1, 2], maxlen=2), deque([3, 4], maxlen=2)],
    "memory views": lambda: [memoryview(b"ab")] * 2,
    "UserList": lambda: [UserList([1, 2]), UserList([3, 4])],
    "dicts": lambda: [{"a": 1, 2: "b"}, {"a": 3, 2: "c", "more": 5}],
    "a key missing": lambda: [{"a": 1}, {"b": 2}],
    "OrderedDict": lambda: [OrderedDict(b=1, a=2), OrderedDict(a=3, b=4)],
    "defaultdict": lambda: [defaultdict(list, a=1), defaultdict(list, a=2)],
    "Counter": lambda: [Counter("aab"), Counter("ab")],
    "UserDict": lambda: [noted(UserDict(a=1), "kept"), UserDict(a=2)],
    "mapping": lambda: [Frozen({"a": 1}), Frozen({"a": 2})],
    "mapping that cannot be rebuilt": lambda: [FrozenFromNothing(), FrozenFromNothing()],
    "mutable mapping": lambda: [noted(Changing({"a": 1}), "kept"), Changing({"a": 2})],
    "mutable mapping that refuses": lambda: [Stubborn({"a": 1}), Stubborn({"a": 2})],
    "sequence": lambda: [Row([1, np.ones(1)]), Row([2, np.ones(1)])],
    "sequence that cannot be rebuilt": lambda: [RowFromNothing(), RowFromNothing()],
    "mutable sequence": lambda: [noted(ChangingRow([1, 2]), "kept"), ChangingRow([3, 4])],
    "mutable sequence that refuses": lambda: [StubbornRow([1, 2]), StubbornRow([3, 4])],
    "deep": lambda: [{"a": [(1, {"b": Point(np.ones(1), ["x"])})], "c": {"d": {}}}] * 2,
    "one sample": lambda: [{"a": 1}],
    "many samples": lambda: [(n, float(n), str(n)) for n in range(300)],
}

with warnings.catch_warnings():  # torch says once that some are experimental or deprecated
    warnings.simplefilter("ignore")
    for _make in SAMPLES.values():
        _make()
