"""Default collation calls the functions that users registered with torch, and needs no shared memory of torch."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data._utils import collate as torch_collate

from lit_loader import DataLoader
from lit_loader.collate import default_collate
from tests.support.toys import Mixed


def test_registered_function_is_called(monkeypatch):
    def shout(batch, *, collate_fn_map):
        return [text.upper() for text in batch]

    monkeypatch.setitem(torch_collate.default_collate_fn_map, str, shout)
    assert default_collate(["a", "b"]) == ["A", "B"]


def test_function_registered_for_tensors_gets_arrays_as_well(monkeypatch):
    def double(batch, *, collate_fn_map):
        return torch.stack(batch) * 2

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, double)
    batch = [(torch.ones(2), np.ones(2)), (torch.ones(2), np.ones(2))]
    assert str(default_collate(batch)) == str(torch_default_collate(batch))
    assert default_collate(batch)[1][0, 0] == 2


def test_workers_do_not_use_torchs_shared_memory(monkeypatch):
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", None)  # torch's collation would call it
    with pytest.raises(TypeError, match="not callable"):
        torch.zeros(2)._typed_storage()._new_shared(3)
    files = set(os.listdir("/dev/shm"))
    loader = DataLoader(Mixed(), batch_size=3, num_workers=1)
    assert len(list(loader)) == 3
    assert set(os.listdir("/dev/shm")) - files == set()
