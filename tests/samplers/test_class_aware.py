"""`ClassAwareSampler`: classes in turns, images in turns, over batches, ranks and epochs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import ClassAwareSampler, ClassBalancedSampler
from lit_loader.samplers.shuffle import shuffled_cycles

single_labels = st.lists(st.integers(-1, 4), min_size=6, max_size=40).filter(lambda labels: max(labels) >= 0)


def _row(sampler, *, seed, epochs):
    return np.concatenate([sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(epochs)])


@given(labels=single_labels, num_samples=st.integers(1, 60), empty_as_class=st.booleans(), seed=st.integers())
def test_every_turn_holds_every_class_once_across_epochs(labels, num_samples, empty_as_class, seed):
    sampler = ClassAwareSampler(labels, num_samples=num_samples, empty_as_class=empty_as_class)
    row = np.array(labels)[_row(sampler, seed=seed, epochs=4)]
    classes = sorted(c for c in set(labels) if c >= 0 or empty_as_class)
    assert sampler.classes == tuple(c for c in classes if c >= 0)
    for start in range(0, len(row) - len(classes) + 1, len(classes)):
        assert sorted(row[start : start + len(classes)].tolist()) == classes


def test_every_batch_is_balanced_unlike_batches_of_shuffled_quotas():
    labels = np.repeat(np.arange(4), [80, 10, 6, 4])
    aware = ClassAwareSampler(labels)
    quotas = ClassBalancedSampler(labels, exponent=1.0)
    assert np.bincount(labels[aware.order(seed=0, epoch=0)[:]]).tolist() == quotas.quotas.tolist() == [25] * 4
    for sampler in (aware, quotas):
        batches = labels[sampler.order(seed=0, epoch=0)[:96]].reshape(12, 8)
        is_even = [np.bincount(batch, minlength=4).tolist() == [2] * 4 for batch in batches]
        assert all(is_even) == (sampler is aware)


@pytest.mark.parametrize("family", [ClassAwareSampler, ClassBalancedSampler])
def test_first_slice_computes_only_its_own_classes(family, monkeypatch):
    visited = []

    def counted(key, count, start, stop):
        visited.append(key)
        return shuffled_cycles(key, count, start, stop)

    monkeypatch.setattr("lit_loader.samplers.class_balanced.shuffled_cycles", counted)
    order = family(np.arange(2000) % 500).order(seed=0, epoch=3)
    indices = family(np.arange(2000) % 500).order(seed=0, epoch=3)[:]
    visited.clear()
    first = order[0:20]
    assert 0 < len(visited) <= 20
    order[0:20]
    assert len(visited) <= 20
    np.testing.assert_array_equal(first, indices[0:20])
    np.testing.assert_array_equal(order[:], indices)
    assert len(visited) == len(set(visited)) == 500


def test_images_take_turns_in_each_of_their_classes():
    labels = [[0, 1], [0], [0, 0, 0], []]
    sampler = ClassAwareSampler(labels, num_samples=12)
    np.testing.assert_allclose(sampler.expected_visits(), [8, 2, 2, 0])
    assert np.bincount(sampler.order(seed=0, epoch=0)[:], minlength=4).tolist() == [8, 2, 2, 0]
    with_empty = ClassAwareSampler(labels, num_samples=9, empty_as_class=True)
    np.testing.assert_allclose(with_empty.expected_visits(), [4, 1, 1, 3])
    assert np.bincount(with_empty.order(seed=0, epoch=0)[:], minlength=4).tolist() == [4, 1, 1, 3]


def test_absent_classes_take_no_turn():
    sampler = ClassAwareSampler([7, 7, 2], num_samples=4)
    assert sampler.classes == (2, 7)
    assert np.count_nonzero(sampler.order(seed=0, epoch=0)[:] == 2) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"labels": [-1, -1]}, ValueError, "none of the 2 images has a class.*set empty_as_class=True"),
        ({"num_samples": 0}, ValueError, "num_samples=0"),
        ({"num_samples": 1.0}, TypeError, "`num_samples` must be an int"),
        ({"empty_as_class": 1}, TypeError, "`empty_as_class` must be True or False"),
        ({"labels": [0, -2]}, ValueError, r"labels\[1\]=-2"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ClassAwareSampler(**{"labels": [0, 1], **arguments})


def test_empty_images_alone_form_a_class():
    order = ClassAwareSampler([-1, -1, -1], empty_as_class=True).order(seed=0, epoch=0)
    assert sorted(order[:].tolist()) == [0, 1, 2]
