"""Samples of worker threads lie in their batch as soon as they are made, in memory that nothing else uses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from lit_loader import DataLoader, batch_memory
from lit_loader.collate import ClassificationCollate, DetectionCollate, default_collate, detection_collate
from lit_loader.collate.sample_stack import SampleStack, StackPool, stacks_samples

SHAPE = (3, 64, 64)


def image(number, *, dtype=torch.float32):
    return torch.full(SHAPE, number, dtype=dtype)


def collated(stack, samples):
    with batch_memory.using(stack):
        return default_collate(samples)


@pytest.mark.parametrize("kind", [torch.Tensor, tv_tensors.Image])
def test_the_stack_is_the_batch_and_nothing_is_copied_for_it(kind):
    stack = SampleStack(3, StackPool(1))
    samples = [stack.moved((image(n).as_subclass(kind), n)) for n in range(3)]
    assert all(type(sample[0]) is kind for sample in samples)
    images, labels = collated(stack, samples)
    assert images.data_ptr() == samples[0][0].data_ptr()
    assert type(images) is torch.Tensor
    assert torch.equal(images, torch.stack([image(n) for n in range(3)]))
    assert labels.tolist() == [0, 1, 2]


def test_a_batch_of_fewer_samples_is_their_stack():
    stack = SampleStack(5, StackPool(1))
    found = collated(stack, [stack.moved(image(n)) for n in range(2)])
    assert torch.equal(found, torch.stack([image(0), image(1)]))


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,)], ids=str)
def test_samples_in_another_order_are_stacked_in_theirs(order):
    stack = SampleStack(2, StackPool(1))
    samples = [stack.moved(image(n)) for n in range(2)]
    found = collated(stack, [samples[n] for n in order])
    assert torch.equal(found, torch.stack([image(n) for n in order]))


def test_what_is_not_stacked_as_it_is_stays_where_it_is():
    stack = SampleStack(8, StackPool(1))
    stack.moved(image(0))
    for value in (
        torch.zeros(4),
        image(0, dtype=torch.float64),
        torch.zeros(3, 65, 64),
        image(0).transpose(1, 2),
        image(0).requires_grad_(),
        torch.nn.Parameter(image(0)),
        tv_tensors.Mask(image(0, dtype=torch.uint8)),
        "text",
        7,
    ):
        assert stack.moved(value) is value
        assert stack.moved((value, 1))[0] is value


def test_memory_is_used_again_when_nothing_refers_to_it_and_never_before():
    pool = StackPool(2)
    first = pool.take((4, *SHAPE), torch.float32)
    address, array = first.data_ptr(), first[1:2].numpy()
    del first
    assert pool.take((4, *SHAPE), torch.float32).data_ptr() != address  # an array of it is left
    del array
    held = [pool.take((4, *SHAPE), torch.float32) for _ in range(2)]
    assert address in {one.data_ptr() for one in held}


def test_no_more_stacks_are_kept_than_asked_for_and_none_of_another_size():
    pool = StackPool(2)
    held = [pool.take((4, *SHAPE), torch.float32) for _ in range(6)]
    held.clear()
    one = pool.take((4, *SHAPE), torch.uint8)
    assert (len(pool._free), len(pool._used)) == (0, 1)
    held = [pool.take((4, *SHAPE), torch.uint8) for _ in range(6)]
    held.clear()
    del one
    pool.take((4, *SHAPE), torch.uint8)
    assert len(pool._free) == 2


@pytest.mark.parametrize(
    ("collate_fn", "expected"),
    [
        (default_collate, True),
        (ClassificationCollate(), True),
        (DetectionCollate(), True),
        (DetectionCollate(images="list"), False),
        (DetectionCollate(images="pad"), False),
        (partial(detection_collate, images="list"), False),
        (partial(detection_collate), True),
        (lambda samples: samples, False),
    ],
)
def test_only_collate_functions_that_stack_get_a_stack(collate_fn, expected):
    assert stacks_samples(collate_fn) is expected


class Keeping(Dataset):
    """Returns the same tensor again, as a data set that keeps its samples does."""

    def __init__(self):
        self.samples = [(image(n), n) for n in range(12)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_batches_of_threads_are_their_own_however_long_they_are_kept(on_bad_sample):
    dataset = Keeping()
    with DataLoader(
        dataset, batch_size=5, num_workers=2, worker_method="thread", on_bad_sample=on_bad_sample
    ) as loader:
        kept = []
        for _ in range(3):
            for images, labels in loader:
                assert torch.equal(images[:, 0, 0, 0].long(), labels)
                images += 100  # a consumer's edit
                kept.append((images, labels))
    for images, labels in kept:
        assert torch.equal(images, torch.stack([image(n) for n in labels.tolist()]) + 100)
    assert all(torch.equal(sample, image(n)) for sample, n in dataset.samples)
