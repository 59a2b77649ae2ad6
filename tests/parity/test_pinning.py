"""Page-locking: every batch type and every warning, on a simulated accelerator."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from types import MappingProxyType

import pytest
import torch

from tests.support.parity_backends import FORK, INLINE, THREAD, close, described, each_of, error_of, same_for_both
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
    """A container with ``pin_memory``, which is called instead of the items' methods."""

    def pin_memory(self):
        return {"pinned by": "its method"}


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
    """Simulate one, whose pinned tensors are recognised by their values; its type may be changed."""
    actual = {"type": "cuda"}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(actual["type"]))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 100)
    return actual


def same_batches_and_warnings(backend, **arguments):
    """Return the batches and warnings of two epochs, which are the same for both classes."""

    def observe(kind, workers):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(**{"dataset": Numbers(2), **arguments}, pin_memory=True, **workers)
            batches = [described(batch) for _ in range(2) for batch in loader]
            close(loader)
            del loader
        texts = ["".join(str(warning.message).split()) for warning in caught]
        unrelated = ("workerprocesses", "ismulti-threaded")
        return batches, [text for text in texts if not any(part in text for part in unrelated)]

    return same_for_both(backend, observe)


def one_of_each(samples):
    (number,) = samples
    return list(BATCHES.values())[number](samples)


@each_of(INLINE, FORK, THREAD)
def test_batches_of_every_type_are_pinned_like_torchs(accelerator, backend):
    batches, _ = same_batches_and_warnings(backend, dataset=Numbers(len(BATCHES)), collate_fn=one_of_each)
    assert len(batches) == 2 * len(BATCHES)
    assert "pinned 1 times" in str(batches)
    assert "pinned 0 times" not in str(batches)


def test_immutable_mappings_are_pinned_like_torchs(accelerator):
    same_batches_and_warnings(INLINE, collate_fn=lambda samples: MappingProxyType({"a": Leaf()}))


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("device", ["", "cuda:1"])
def test_warnings_with_an_accelerator_are_torchs(accelerator, backend, kind, device):
    accelerator["type"] = kind
    _, texts = same_batches_and_warnings(backend, pin_memory_device=device, collate_fn=BATCHES["custom type"])
    assert bool(texts) is (kind == "mps" or device != "")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("device", ["", "cuda:1"])
def test_warnings_without_an_accelerator_are_torchs(backend, device):
    _, texts = same_batches_and_warnings(backend, pin_memory_device=device)
    assert any("noacceleratorisfound" in text for text in texts)


@each_of(INLINE, FORK, THREAD)
def test_error_of_pinning_keeps_its_type(accelerator, backend):
    for kind, workers in backend.both:
        loader = kind(Numbers(1), pin_memory=True, collate_fn=lambda samples: Refusing(), **workers)
        iterator = iter(loader)
        error = error_of(next, iterator)
        assert type(error) is ValueError
        assert "cannot be pinned" in str(error)
        assert error_of(next, iterator).__class__ is StopIteration
