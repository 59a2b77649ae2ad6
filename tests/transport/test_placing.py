"""Samples moved into a slot: which are, what the collate function sees of them, when it ends; and who keeps what."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from lit_loader.transport.placing import find_leaves
from tests.transport.link import Link, collate_in, large

Pair = namedtuple("Pair", ["x", "y"])


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def seen(link, sample):
    """Return what a collate function gets for a sample, and whether its first large tensor was moved."""
    found = []
    link.collate([sample], lambda samples: found.append(samples[0]) or 0)
    return found[0]


MOVED = {
    "tensor": large(1),
    "array": large(1).numpy(),
    "in a tuple": (large(1), "s"),
    "in a named tuple": Pair(1, large(1)),
    "in a list": [[large(1)]],
    "in a dict": {"a": {"b": large(1)}, "c": None},
    "image": tv_tensors.Image(torch.ones(3, 100, 100)),
}


def tensors_of(data):
    if isinstance(data, torch.Tensor | np.ndarray):
        return [data]
    if isinstance(data, Mapping):
        return [tensor for value in data.values() for tensor in tensors_of(value)]
    return [tensor for item in data for tensor in tensors_of(item)] if isinstance(data, tuple | list) else []


@pytest.mark.parametrize("name", MOVED)
def test_large_tensors_are_moved_and_all_around_them_is_as_it_was(link, name):
    sample = MOVED[name]
    (original,), moved = tensors_of(sample), seen(link, sample)
    (tensor,) = tensors_of(moved)
    assert tensor is not original
    assert type(moved) is type(sample)
    assert type(tensor) is type(original)
    assert tensor.dtype == original.dtype
    assert tensor.shape == original.shape
    assert bool((tensor == original).all())


class Listed(list):
    pass


class Noted(Pair):
    """A named tuple that is more than its items."""


def noted():
    pair = Noted(large(1), 2)
    pair.note = "n"
    return pair


NOT_MOVED = {
    "small": torch.ones(10),
    "transposed": large(1).T,
    "bfloat16": large(1).bfloat16().repeat(2, 1),
    "needs gradients": large(1).requires_grad_(),
    "parameter": torch.nn.Parameter(large(1)),
    "conjugate": large(1).to(torch.complex64).conj(),
    "sparse": large(1).to_sparse(),
    "big-endian": large(1).numpy().astype(">f4"),
    "fortran": np.asfortranarray(large(1).numpy()),
    "masked": np.ma.masked_array(large(1).numpy()),
    "in a kind of list": Listed([large(1)]),
    "in a named tuple with a note": noted(),
}


@pytest.mark.parametrize("name", NOT_MOVED)
def test_what_is_more_than_its_dense_bytes_stays_as_it_is(link, name):
    assert seen(link, NOT_MOVED[name]) is NOT_MOVED[name]


def test_attributes_of_a_moved_tensor_stay_with_it(link):
    tensor, boxes = large(1), tv_tensors.BoundingBoxes(large(1, 2000, 4), format="XYXY", canvas_size=(5, 6))
    tensor.path = "a.jpg"
    moved, moved_boxes = seen(link, (tensor, boxes))
    assert moved is not tensor
    assert moved.path == "a.jpg"
    assert moved_boxes.canvas_size == (5, 6)


def test_a_tensor_or_a_container_that_a_sample_holds_twice_is_one_thing_still(link):
    tensor, fields = large(1), {"x": large(2)}
    one, other, first, second = seen(link, (tensor, tensor, fields, fields))
    assert one is other
    assert first is second
    assert first is not fields


def test_the_samples_themselves_are_never_changed(link):
    sample = {"a": [large(1)], "b": Pair(large(2), 3)}
    tensor, pair = sample["a"][0], sample["b"]
    link.collate([sample], lambda samples: samples[0]["a"][0].zero_())
    assert sample["a"][0] is tensor
    assert sample["b"] is pair
    assert (tensor == 1).all()


def test_a_stack_of_moved_samples_is_where_they_are(link):
    """Each sample is copied once: the addresses of the rows are those of the stack."""
    found = []

    def collate(samples):
        batch = collate_in(link)(samples)
        found.append((samples[0]["x"].data_ptr(), batch["x"].data_ptr()))
        return batch

    for number in range(3):
        batch = link.collate([{"x": large(n + number), "y": n} for n in range(5)], collate)
        assert [float(row.mean()) for row in batch["x"]] == [n + number for n in range(5)]
        assert batch["y"].tolist() == list(range(5))
    assert all(sample == stack for sample, stack in found)


def test_two_stacks_of_one_moved_tensor_are_apart(link):
    for _ in range(3):
        samples = [(tensor, tensor) for tensor in (large(1), large(2))]
        one, other = link.collate(samples, collate_in(link))
        one += 5
        assert [float(row.mean()) for row in other] == [1, 2]


def test_samples_and_their_stack_do_not_share_memory_where_both_are_sent():
    link = Link(joins=False)
    for _ in range(3):
        samples, stack = link.collate(
            [large(1), large(2)], lambda samples: (list(samples), collate_in(link)(samples))
        )
        stack += 5
        assert [float(sample.mean()) for sample in samples] == [1, 2]
        samples[0] += 9
        assert [float(row.mean()) for row in stack] == [6, 7]
    link.close()


@pytest.mark.parametrize("sizes", [(1, 1, 4), (4, 1, 1), (3, 5, 2), (1, 9, 1)])
def test_batches_of_different_lengths_and_shapes_follow_each_other(link, sizes):
    shapes = [(64, 100), (64, 100), (3, 80, 80), (64, 100)]
    for count in sizes:
        for shape in shapes:
            batch = link.collate([[large(n, *shape), n] for n in range(count)], collate_in(link))
            assert [float(row.mean()) for row in batch[0]] == list(range(count))


def test_ragged_samples_arrive_as_they_are(link):
    for number in range(4):
        samples = [large(n, 50 + (n + number) % 3, 100) for n in range(6)]
        batch = link.collate(samples, list)
        assert all(torch.equal(one, other) for one, other in zip(batch, samples, strict=True))


def test_a_collate_function_that_copies_again_ends_the_moving_and_is_right(link):
    """Two batches for nothing are enough."""
    moved = []

    def stack_itself(samples):
        moved.append(samples[0] is not first)
        return torch.stack(samples)

    for number in range(5):
        first = large(number)
        batch = link.collate([first, large(number + 1)], stack_itself)
        assert [float(row.mean()) for row in batch] == [number, number + 1]
    assert moved == [True, True, False, False, False]


def test_two_kinds_of_samples_in_turn_use_rows_only_where_they_fit(link):
    assert find_leaves((large(1), [large(2).numpy()], torch.ones(1))) == [(torch.float32, (64, 100))] * 2
    for number in range(6):
        shape = ((64, 100), (100, 64))[number % 2]
        samples = [(large(n, *shape), large(-n, *shape)) for n in range(3)]
        one, other = link.collate(samples, collate_in(link))
        assert [float(row.mean()) for row in one] == [0, 1, 2]
        assert [float(row.mean()) for row in other] == [0, -1, -2]
