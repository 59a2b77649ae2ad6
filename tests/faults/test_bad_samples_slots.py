"""Guarantee: batches that shrank, or hold replacements, are whole in shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_loader.memory import batch_memory
from tests.support.faulty_set import Faulty, loader_of
from tests.support.outcomes import BACKENDS
from tests.support.slot_sets import slots_of

pytestmark = pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
SHAPE = (64, 100)  # 25 kB: large enough to be moved
BAD = {index: ValueError("no") for index in (0, 3, 4, 13)}
PROCESSES = {name: workers for name, workers in BACKENDS.items() if "fork" in name}


class Large(Faulty):
    """Tensors and arrays full of the index and a draw."""

    def __getitem__(self, index):
        drawn = torch.rand(())
        image = torch.full(self.shape, float(index)) + drawn
        other = np.full(self.shape, index)
        if index in self.bad:
            raise self.bad[index]
        return image, other, index, drawn


class InPlace(Large):
    """Samples are made in the batch's memory, where a bad one leaves something behind."""

    def __getitem__(self, index):
        drawn = torch.rand(())
        image = batch_memory.empty(self.shape, torch.float32)
        image.fill_(1e9 if index in self.bad else index)
        if index in self.bad:
            raise self.bad[index]
        return (image + drawn if index % 5 == 0 else image.add_(drawn), np.full(self.shape, index), index, drawn)


def check(batch):
    image, other, index, drawn = batch
    expected = (index + drawn).view(-1, 1, 1)
    assert torch.equal(image, expected.to(image.dtype).expand(len(index), *SHAPE))
    assert torch.equal(other, index.view(-1, 1, 1).expand(len(index), *SHAPE))


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("kind", [Large, InPlace])
@pytest.mark.parametrize("workers", PROCESSES.values(), ids=PROCESSES)
def test_batches_with_bad_samples_in_slots_equal_inline_batches(workers, kind, policy):
    dataset = kind(BAD, 32, SHAPE)
    arguments = {"batch_size": 8, "on_bad_sample": policy}
    inline = loader_of(dataset, **arguments)
    batches = []
    with loader_of(dataset, persistent_workers=True, **arguments, **workers) as loader:
        for _ in range(3):
            epoch_batches = list(loader)
            expected = list(inline)
            assert loader.bad_samples == inline.bad_samples
            for batch, other in zip(epoch_batches, expected, strict=True):
                check(batch)
                assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, other, strict=True))
            batches += epoch_batches  # batches that are kept must not change
        assert slots_of(loader) is not None
        for batch in batches:
            check(batch)


def test_shrunk_batch_is_in_a_slot():
    """The memory of a shrunk batch belongs to the mapping of a slot."""
    with loader_of(Large(BAD, 32, SHAPE), 8, persistent_workers=True, **BACKENDS["fork"]) as loader:
        batch = max(loader, key=lambda batch: len(BAD) - len(batch[0]))
        with open("/proc/self/maps") as lines:
            ranges = [line.split()[0].split("-") for line in lines if "/memfd:lit_loader" in line]
        address = batch[0].data_ptr()
        assert len(batch[0]) < 8
        assert any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)
