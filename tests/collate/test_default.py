"""Default collation equals torch's, in a worker too, and needs no shared memory there."""

from __future__ import annotations

import os
from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data._utils import collate as torch_collate

from lit_loader import DataLoader
from lit_loader.collate import default_collate
from tests.support.toys import Mixed, Point

BATCHES = {
    "tensors": [torch.ones(2), torch.zeros(2)],
    "0-dim": [torch.tensor(1), torch.tensor(2)],
    "numpy": [np.arange(3), np.arange(3)],
    "numpy scalars": [np.float32(1), np.float32(2)],
    "numbers": [1, 2.5],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "namedtuples": [Point(1, "x"), Point(2, "y")],
    "mappings": [OrderedDict(a=1), OrderedDict(a=2)],
    "other mappings": [UserDict(a=1), UserDict(a=2)],
    "nested": [(1, [torch.ones(1)]), (2, [torch.zeros(1)])],
}


@pytest.mark.parametrize("name", BATCHES)
def test_result_equals_torchs(name):
    ours = default_collate(BATCHES[name])
    torchs = torch_default_collate(BATCHES[name])
    assert type(ours) is type(torchs)
    assert str(ours) == str(torchs)


@pytest.mark.parametrize(
    "batch",
    [
        [object(), object()],
        [torch.ones(1), torch.ones(2)],
        [[1, 2], [1]],
        [np.array(["a"]), np.array(["b"])],
        [torch.eye(2).to_sparse()] * 2,
    ],
    ids=["objects", "sizes", "lengths", "strings in arrays", "sparse"],
)
def test_errors_equal_torchs(batch):
    with pytest.raises((TypeError, RuntimeError)) as torchs:
        torch_default_collate(batch)
    with pytest.raises(type(torchs.value)) as ours:
        default_collate(batch)
    assert str(ours.value) == str(torchs.value)


def test_a_function_that_the_user_registered_is_called(monkeypatch):
    def shout(batch, *, collate_fn_map):
        return [text.upper() for text in batch]

    monkeypatch.setitem(torch_collate.default_collate_fn_map, str, shout)
    assert default_collate(["a", "b"]) == ["A", "B"]


def test_a_function_that_the_user_registered_for_tensors_gets_arrays_too(monkeypatch):
    def double(batch, *, collate_fn_map):
        return torch.stack(batch) * 2

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, double)
    batch = [(torch.ones(2), np.ones(2)), (torch.ones(2), np.ones(2))]
    assert str(default_collate(batch)) == str(torch_default_collate(batch))
    assert default_collate(batch)[1][0, 0] == 2


def test_workers_leave_shared_memory_alone(monkeypatch):
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", None)  # torch's collation would call it
    with pytest.raises(TypeError, match="not callable"):
        torch.zeros(2)._typed_storage()._new_shared(3)
    before = set(os.listdir("/dev/shm"))
    loader = DataLoader(Mixed(), batch_size=3, num_workers=1)
    assert len(list(loader)) == 3
    assert set(os.listdir("/dev/shm")) - before == set()
