"""Default collation and conversion of every type, called directly, inline and in workers."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import default_collate as torch_collate
from torch.utils.data import default_convert as torch_convert
from torch.utils.data._utils import collate as torch_module

from lit_loader import DataLoader
from lit_loader.collate import default_collate
from tests.support.collate_samples import CHANGED_BY_TORCHS_WORKERS, OTHERWISE_IN_TORCHS_WORKERS, SAMPLES, Marked, Point
from tests.support.parity_backends import FORK, INLINE, THREAD, assert_alike, described, error_event
from tests.support.parity_datasets import Samples

# torch's: nested, sparse and quantized tensors are experimental or deprecated
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def outcome(function, *arguments):
    try:
        return described(function(*arguments))
    except Exception as error:
        return error_event(error)


@pytest.mark.parametrize("name", SAMPLES)
def test_batch_is_collated_or_refused_like_torchs(name):
    assert outcome(default_collate, SAMPLES[name]()) == outcome(torch_collate, SAMPLES[name]())


@pytest.mark.parametrize("as_type", [list, tuple])
def test_batch_is_any_sequence_of_samples(as_type):
    for name in ("tensors", "floats", "texts", "array of d", "namedtuple", "tuples", "dicts"):
        batch = as_type(SAMPLES[name]())
        assert outcome(default_collate, batch) == outcome(torch_collate, batch)


def test_samples_that_cannot_be_collated_raise_torchs_error():
    for batch in ([], (), {}, None, 3, "text", torch.ones(2, 2), {"a": [1]}):
        assert outcome(default_collate, batch) == outcome(torch_collate, batch)


def every_sample(without=()):
    """Return a dataset of all samples, and the batches in which they belong together."""
    samples = []
    batches = []
    for name in SAMPLES:
        if name not in without:
            batches.append(range(len(samples), len(samples) + len(SAMPLES[name]())))
            samples += SAMPLES[name]()
    return Samples(samples), {"batch_sampler": batches}


def test_batches_of_every_type_are_torchs():
    actual = assert_alike(every_sample, INLINE, num_epochs=1)
    assert len(actual["epochs"][0]) == len(SAMPLES) + 2
    assert_alike(lambda: every_sample(OTHERWISE_IN_TORCHS_WORKERS), FORK, THREAD, num_epochs=1)


def test_converted_samples_of_every_type_are_torchs():
    actual = assert_alike(lambda: (every_sample()[0], {"batch_size": None}), INLINE, num_epochs=1)
    assert len(actual["epochs"][0]) > len(SAMPLES)
    assert_alike(lambda: (every_sample(CHANGED_BY_TORCHS_WORKERS)[0], {"batch_size": None}), FORK, THREAD, num_epochs=1)


def test_conversion_is_torchs_own():
    for name in SAMPLES:
        sample = SAMPLES[name]()[0]
        assert outcome(next, iter(DataLoader([sample], batch_size=None))) == outcome(torch_convert, sample)


def shout(batch, *, collate_fn_map):
    return [text.upper() for text in batch]


def name_classes(batch, *, collate_fn_map):
    return [type(item).__name__ for item in batch]


def double(batch, *, collate_fn_map):
    return torch.stack(batch) * 2


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (str, shout),
        (Point, name_classes),
        ((set, frozenset), name_classes),
        (torch.Tensor, double),
        (object, name_classes),
        (dict, name_classes),
    ],
    ids=["str", "class", "classes", "Tensor", "object", "dict"],
)
def test_entries_added_to_torchs_table_are_used(monkeypatch, kind, function):
    monkeypatch.setitem(torch_module.default_collate_fn_map, kind, function)
    for name in SAMPLES:
        assert outcome(default_collate, SAMPLES[name]()) == outcome(torch_collate, SAMPLES[name]()), name
    assert_alike(lambda: (Samples(["a", "b", "c"]), {"batch_size": 2}), FORK, THREAD, num_epochs=1)


def test_entries_removed_from_torchs_table_are_not_used(monkeypatch):
    monkeypatch.delitem(torch_module.default_collate_fn_map, int)
    for name in ("ints", "bools", "tuples", "floats"):
        assert outcome(default_collate, SAMPLES[name]()) == outcome(torch_collate, SAMPLES[name]())


def test_order_of_entries_decides_like_in_torch(monkeypatch):
    monkeypatch.setitem(torch_module.default_collate_fn_map, Marked, name_classes)  # after Tensor, but the class itself
    samples = SAMPLES["tensor subclass"]()
    assert outcome(default_collate, samples) == outcome(torch_collate, samples) == described(["Marked", "Marked"])
