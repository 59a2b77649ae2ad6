"""Page-locking: every batch type and every warning, on an accelerator that is only pretended."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from types import MappingProxyType

import pytest
import torch

from tests.support.parity_backends import FORK, INLINE, THREAD, close, described, each_of, error_of
from tests.support.parity_datasets import Numbers

Pair = namedtuple("Pair", ["a", "b"])


class Leaf:
    """Counts how often it was page-locked."""

    def __init__(self, count=0):
        self.count = count

    def __repr__(self):
        return f"pinned {self.count} times"

    def pin_memory(self):
        return Leaf(self.count + 1)


class Refusing(Leaf):
    def pin_memory(self):
        raise ValueError("cannot be pinned")


class PinnedMapping(dict):
    """A container with a method of its own, which is asked instead of its items."""

    def pin_memory(self):
        return {"own": "method"}


BATCHES = {
    "custom type": lambda samples: Leaf(),
    "tensor": lambda samples: torch.ones(2),
    "list": lambda samples: [Leaf(), 1, "text", b"bytes", None],
    "tuple": lambda samples: (Leaf(), (Leaf(),)),
    "namedtuple": lambda samples: Pair(Leaf(), [Leaf()]),
    "dict": lambda samples: {"a": Leaf(), "b": {"c": Leaf()}},
    "OrderedDict": lambda samples: OrderedDict(b=Leaf(), a=Leaf()),
    "UserDict": lambda samples: UserDict(a=Leaf()),
    "deque": lambda samples: deque([Leaf(), Leaf()]),
    "range": lambda samples: range(3),
    "set": lambda samples: {1, 2},
    "mapping with its own method": lambda samples: PinnedMapping(a=Leaf()),
    "number": lambda samples: 3,
}


@pytest.fixture
def accelerator(monkeypatch):
    """Pretend that there is one, whose memory is locked by doing nothing; its kind may be changed."""
    actual = {"type": "cuda"}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(actual["type"]))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 100)
    return actual


def observed(backend, **arguments):
    """Return each loader's batches and warnings over two epochs."""
    actual = []
    for kind, workers in backend.both:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(**{"dataset": Numbers(2), **arguments}, pin_memory=True, **workers)
            batches = [described(batch) for _ in range(2) for batch in loader]
            close(loader)
            del loader
        texts = ["".join(str(warning.message).split()) for warning in caught]
        of_processes = ("workerprocesses", "ismulti-threaded")
        actual.append((batches, [text for text in texts if not any(part in text for part in of_processes)]))
    return actual


def one_of_each(samples):
    (number,) = samples
    return list(BATCHES.values())[number](samples)


@each_of(INLINE, FORK, THREAD)
def test_batches_of_every_type_are_pinned_as_torch_does(accelerator, backend):
    torchs, ours = observed(backend, dataset=Numbers(len(BATCHES)), collate_fn=one_of_each)
    assert ours == torchs
    assert len(ours[0]) == 2 * len(BATCHES)
    assert "pinned 1 times" in str(ours)
    assert "pinned 0 times" not in str(ours)


def test_mappings_that_cannot_be_changed_are_pinned_as_torch_does(accelerator):
    torchs, ours = observed(INLINE, collate_fn=lambda samples: MappingProxyType({"a": Leaf()}))
    assert ours == torchs


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("device", ["", "cuda:1"])
def test_warnings_where_an_accelerator_is_are_torchs(accelerator, backend, kind, device):
    accelerator["type"] = kind
    torchs, ours = observed(backend, pin_memory_device=device, collate_fn=BATCHES["custom type"])
    assert ours == torchs
    assert bool(ours[1]) is (kind == "mps" or device != "")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is here")
@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("device", ["", "cuda:1"])
def test_warnings_where_none_is_are_torchs(backend, device):
    torchs, ours = observed(backend, pin_memory_device=device)
    assert ours == torchs
    assert any("noacceleratorisfound" in text for text in ours[1])


@each_of(INLINE, FORK, THREAD)
def test_an_error_of_pinning_keeps_its_type(accelerator, backend):
    for kind, workers in backend.both:
        loader = kind(Numbers(1), pin_memory=True, collate_fn=lambda samples: Refusing(), **workers)
        iterator = iter(loader)
        error = error_of(next, iterator)
        assert type(error) is ValueError
        assert "cannot be pinned" in str(error)
        assert error_of(next, iterator).__class__ is StopIteration
