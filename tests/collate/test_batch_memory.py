"""Large batches request huge pages before they are written, and otherwise equal torch's."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate
from torchvision import tv_tensors

from lit_loader.collate import default, default_collate
from lit_loader.memory import batch_memory

LARGE = torch.arange(default.HUGE_BYTES // 8, dtype=torch.float32).reshape(2, -1)  # two of them are enough


@pytest.fixture
def huge_page_ranges(monkeypatch):
    """Ranges for which huge pages were requested, as (address, bytes)."""
    ranges: list[tuple[int, int]] = []

    def madvise(address: int, num_bytes: int, advice: int) -> int:
        assert advice == 14
        ranges.append((address, num_bytes))
        return 0

    monkeypatch.setattr(default, "_madvise", madvise)
    return ranges


@pytest.mark.parametrize("sample", [LARGE, LARGE.numpy()], ids=["tensor", "array"])
def test_large_batch_requests_huge_pages_for_its_own_memory(huge_page_ranges, sample):
    batch = default_collate([sample, sample])
    (address, num_bytes) = huge_page_ranges[0]
    assert len(huge_page_ranges) == 1
    assert batch.data_ptr() <= address < batch.data_ptr() + mmap.PAGESIZE
    assert batch.data_ptr() + batch.nbytes - mmap.PAGESIZE < address + num_bytes
    assert address + num_bytes <= batch.data_ptr() + batch.nbytes
    assert address % mmap.PAGESIZE == num_bytes % mmap.PAGESIZE == 0


@pytest.mark.parametrize("sample", [LARGE[:, :-1].contiguous(), LARGE.numpy()[:, 1:]], ids=["tensor", "array"])
def test_smaller_batch_requests_no_huge_pages(huge_page_ranges, sample):
    default_collate([sample, sample])
    assert huge_page_ranges == []


def test_the_system_takes_the_advice():
    assert default._madvise is not None
    batch = torch.empty(default.HUGE_BYTES, dtype=torch.uint8)
    first = -(-batch.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    assert default._madvise(first, mmap.PAGESIZE, 14) == 0


@pytest.mark.parametrize(
    "samples",
    [
        [LARGE, LARGE + 1],
        [LARGE.T, LARGE.T],
        [LARGE, LARGE.T.reshape(2, -1)],
        [LARGE, LARGE.to(torch.float64)],
        [LARGE, LARGE.clone().requires_grad_()],
        [LARGE.unflatten(1, (4, 2, -1)).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)] * 2,
        [LARGE.unflatten(1, (4, 2, -1)).transpose(1, 3)] * 2,
        [LARGE[0].unflatten(0, (64, -1, 4)).permute(2, 0, 1), LARGE[1].unflatten(0, (64, -1, 4)).permute(2, 0, 1)],
        [LARGE.to(torch.complex64).conj()] * 2,
        [LARGE.numpy(), LARGE.numpy().astype(np.float64)],
        [LARGE.numpy().T] * 2,
    ],
    ids=[
        "equal layout",
        "transposed",
        "mixed",
        "dtypes",
        "grad",
        "channels last",
        "strided",
        "images, channels last",
        "conj",
        "arrays",
        "fortran",
    ],
)
def test_large_batches_equal_torchs(samples):
    ours = default_collate(samples)
    torchs = torch_default_collate(samples)
    assert torch.equal(ours, torchs)
    assert (ours.dtype, ours.stride(), ours.requires_grad) == (torchs.dtype, torchs.stride(), torchs.requires_grad)


class Rows:
    """Shared memory that holds all samples as one stack."""

    def empty(self, shape, dtype):
        return None

    def rows(self, addresses, shape, dtype):
        return torch.zeros((len(addresses), *shape), dtype=dtype)


def test_rows_in_shared_memory_are_the_batch():
    with batch_memory.using(Rows()):
        assert default_collate([LARGE, LARGE]).count_nonzero() == 0


def test_conjugated_rows_are_stacked():
    samples = [torch.complex(LARGE, LARGE + 1).conj()] * 2
    with batch_memory.using(Rows()):
        assert torch.equal(default_collate(samples), torch_default_collate(samples))


def test_large_samples_of_different_sizes_are_refused_as_torch_does():
    samples = [LARGE, LARGE[:, 1:]]
    with pytest.raises(RuntimeError) as torchs:
        torch_default_collate(samples)
    with pytest.raises(RuntimeError) as ours:
        default_collate(samples)
    assert str(ours.value) == str(torchs.value)


def test_a_batch_can_be_resized():
    for batch in default_collate([(LARGE, LARGE.numpy(), 1, 2.5, np.float32(1))] * 2):
        num_values = batch.numel() * 2
        assert batch.resize_(num_values).numel() == num_values


@pytest.mark.parametrize("keeps", [False, True])
def test_large_tv_tensors_are_stacked_as_by_torch(keeps):
    images = [tv_tensors.Image(torch.full((3, 600, 600), n, dtype=torch.uint8)) for n in range(4)]
    with tv_tensors.set_return_type("TVTensor" if keeps else "Tensor"):
        ours = default_collate(images)
        theirs = torch_default_collate(images)
    assert type(ours) is type(theirs)
    assert torch.equal(ours.as_subclass(torch.Tensor), theirs.as_subclass(torch.Tensor))
