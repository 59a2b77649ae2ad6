"""Worker threads write samples straight into the memory of their batch, which nothing else uses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.collate import ClassificationCollate, DetectionCollate, default_collate, detection_collate
from lit_loader.collate.sample_stack import SampleStack, StackPool, stacks_samples
from lit_loader.memory import batch_memory

SHAPE = (3, 64, 64)


def image(number, *, dtype=torch.float32):
    return torch.full(SHAPE, number, dtype=dtype)


def pool_of(shape=SHAPE, dtype=torch.float32):
    """Return the pool of a loader that has made a batch."""
    pool = StackPool(1)
    SampleStack(1, pool).moved(torch.zeros(shape, dtype=dtype))
    return pool


def collated(stack, samples):
    with batch_memory.using(stack):
        return default_collate(samples)


@pytest.mark.parametrize("kind", [torch.Tensor, tv_tensors.Image])
def test_stack_becomes_the_batch_without_a_copy(kind):
    stack = SampleStack(3, StackPool(1))
    dataset_images = [image(n).as_subclass(kind) for n in range(3)]
    samples = [stack.moved((dataset_image, n)) for n, dataset_image in enumerate(dataset_images)]
    assert all(type(sample[0]) is kind for sample in samples)
    images, labels = collated(stack, samples)
    assert images.data_ptr() == samples[0][0].data_ptr()
    assert type(images) is torch.Tensor
    assert torch.equal(images, torch.stack([image(n) for n in range(3)]))
    assert labels.tolist() == [0, 1, 2]
    images += 100  # an edit of the consumer does not reach the dataset
    assert all(torch.equal(dataset_image, image(n)) for n, dataset_image in enumerate(dataset_images))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0,)], ids=str)
def test_samples_in_another_order_are_stacked_in_theirs(order):
    stack = SampleStack(5, StackPool(1))
    samples = [stack.moved(image(n)) for n in range(2)]
    batch = collated(stack, [samples[n] for n in order])
    assert torch.equal(batch, torch.stack([image(n) for n in order]))


def test_first_image_of_a_sample_is_stacked():
    stack = SampleStack(2, StackPool(1))
    images = torch.rand(4, *SHAPE)
    samples = [stack.moved((0, images[0], images[1])), stack.moved((1, images[2], images[3]))]
    assert [len(sample) for sample in samples] == [3, 3]
    assert torch.equal(stack.rows([sample[1].data_ptr() for sample in samples], SHAPE, torch.float32), images[::2])
    assert [sample[2].data_ptr() for sample in samples] == [images[1].data_ptr(), images[3].data_ptr()]


def test_values_that_cannot_be_stacked_are_not_moved():
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


def written(stack, n):
    """Return a sample that is written to the next row, or to ordinary memory if there is none."""
    row = stack.empty(SHAPE, torch.float32)
    return (torch.empty(SHAPE) if row is None else row).copy_(image(n))


def test_sample_written_to_its_row_is_not_copied():
    stack = SampleStack(3, pool_of())
    addresses = []
    samples = []
    for n in range(3):
        sample = written(stack, n)
        addresses.append(sample.data_ptr())
        samples.append(stack.moved((sample, n)))
    del sample
    stack.end_samples()
    images, _ = collated(stack, samples)
    assert addresses == [row.data_ptr() for row in images]
    assert torch.equal(images, torch.stack([image(n) for n in range(3)]))


def test_channels_last_images_are_written_to_rows_without_a_copy():
    rows = ((80, 80, 3), torch.uint8)
    images = torch.randint(256, (3, 3, 80, 80), dtype=torch.uint8)
    stack = SampleStack(3, pool_of(*rows))
    addresses = []
    samples = []
    for n, pixels in enumerate(images):
        # the second is made elsewhere, and copied to its row
        row = torch.empty(rows[0], dtype=torch.uint8) if n == 1 else stack.empty(*rows)
        samples.append(stack.moved((row.permute(2, 0, 1).copy_(pixels), n, 0, False)))
        addresses.append(samples[-1][0].data_ptr())
        del row
    stack.end_samples()
    with batch_memory.using(stack):
        batch = ClassificationCollate()(samples)
    assert addresses == [row.data_ptr() for row in batch.images]
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.images, images)


def test_batch_is_a_copy_if_the_dataset_keeps_a_sample():
    stack = SampleStack(3, pool_of())
    dataset_sample = written(stack, 0)
    samples = [stack.moved(dataset_sample)]
    samples += [stack.moved(written(stack, n)) for n in (1, 2)]
    stack.end_samples()
    images = collated(stack, samples)
    images.zero_()
    assert torch.equal(dataset_sample, image(0))


def test_pool_offers_no_rows_after_the_dataset_kept_one():
    pool = pool_of()
    stack = SampleStack(1, pool)
    dataset_sample = written(stack, 0)
    stack.moved(dataset_sample)
    stack.end_samples()
    assert stack.rows([dataset_sample.data_ptr()], SHAPE, torch.float32) is None
    assert SampleStack(1, pool).empty(SHAPE, torch.float32) is None
    assert SampleStack(1, pool_of()).empty(SHAPE, torch.float32) is not None


def test_intermediate_images_of_another_shape_get_no_row():
    pool = StackPool(1)
    for _ in range(2):
        stack = SampleStack(2, pool)
        samples = []
        for n in range(2):
            assert stack.empty((3, 200, 200), torch.float32) is None
            samples.append(stack.moved(image(n)))
        assert collated(stack, samples).data_ptr() == samples[0].data_ptr()
    assert SampleStack(2, pool).empty(SHAPE, torch.float32) is not None


def test_unused_row_is_offered_again_once_released():
    stack = SampleStack(2, pool_of())
    first = written(stack, 5)
    second = stack.empty(SHAPE, torch.float32)
    assert second is None
    mapping = {"a": first, "b": image(1)}  # tensors in mappings are not stacked
    assert stack.moved(mapping) is mapping
    assert stack.empty(SHAPE, torch.float32) is None
    other_image = image(7)
    assert stack.moved(other_image) is other_image
    address = first.data_ptr()
    del first
    assert torch.equal(mapping.pop("a"), image(5))
    row = stack.empty(SHAPE, torch.float32)
    assert row.data_ptr() == address
    del row
    assert stack.moved(image(6)).data_ptr() == address


def test_rows_are_for_samples_of_one_shape_and_not_for_batches():
    stack = SampleStack(2, pool_of())
    assert stack.empty((4,), torch.float32) is None
    assert stack.empty(SHAPE, torch.bfloat16) is None
    assert stack.empty(SHAPE, torch.float32) is not None
    assert stack.empty(SHAPE, torch.uint8) is None
    assert stack.empty((3, 65, 64), torch.float32) is None
    stack.end_samples()
    assert stack.empty(SHAPE, torch.float32) is None


def test_memory_is_reused_only_without_references():
    pool = StackPool(2)
    first = pool.take((4, *SHAPE), torch.float32)
    address = first.data_ptr()
    array = first[1:2].numpy()
    del first
    assert pool.take((4, *SHAPE), torch.float32).data_ptr() != address  # an array of it is left
    del array
    stacks = [pool.take((4, *SHAPE), torch.float32) for _ in range(2)]
    assert address in {stack.data_ptr() for stack in stacks}


def test_pool_bounds_its_unused_stacks_and_drops_other_sizes():
    pool = StackPool(2)
    for dtype in (torch.float32, torch.uint8):
        stacks = [pool.take((4, *SHAPE), dtype) for _ in range(6)]
        stacks.clear()
        pool.take((4, *SHAPE), dtype)
        assert [memory.nbytes for memory in pool._free] == 2 * [4 * 3 * 64 * 64 * dtype.itemsize]


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


class Placed(Dataset):
    """Samples that ask for memory of the batch; some are kept."""

    def __init__(self, kept_every):
        self.kept = {}
        self._every = kept_every

    def __len__(self):
        return 24

    def __getitem__(self, index):
        sample = batch_memory.empty(SHAPE, torch.uint8).fill_(index)
        if self._every and index % self._every == 0:
            self.kept[index] = sample
        return sample, index


@pytest.mark.parametrize("kept_every", [0, 1, 5])
def test_thread_loader_yields_each_sample_once_and_preserves_kept_ones(kept_every):
    dataset = Placed(kept_every)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, worker_method="thread", collate_fn=default_collate)
    for _ in range(3):
        seen = []
        for images, numbers in loader:
            assert torch.equal(images, numbers.to(torch.uint8)[:, None, None, None].expand(-1, *SHAPE))
            seen += numbers.tolist()
            images.zero_()
        assert seen == list(range(24))
        assert all(bool((sample == index).all()) for index, sample in dataset.kept.items())
