"""What a worker process does with its memory, seen from inside of one."""

from __future__ import annotations

import gc
import resource
import sys

import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data import default_collate as torch_default_collate

from lit_loader import DataLoader


class Frozen(Dataset):
    """How many objects garbage collections pass over."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return gc.get_freeze_count()


def test_a_collection_in_a_worker_leaves_what_it_inherited_alone():
    before = gc.get_freeze_count()
    made = [[] for _ in range(10_000)]
    (count,) = DataLoader(Frozen(), num_workers=1, collate_fn=int_of)
    assert count > before + len(made) // 2  # and what else is there, less what is freed meanwhile
    assert gc.get_freeze_count() <= before  # nothing more is frozen here; of what was, some may be gone


def int_of(samples):
    return samples[0]


class Faults(Dataset):
    """Page faults of making 20 batches of 6 images, each freed before the next."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        for number in range(25):
            if number == 5:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            images = [torch.ones(3, 400, 800) for _ in range(6)]
            del images
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux alone")
def test_a_worker_keeps_the_memory_of_freed_images_for_the_next_ones():
    (faults,) = DataLoader(Faults(), num_workers=1, collate_fn=int_of)
    assert faults < 20 * 6 * 100  # an image has 938 pages


def shares_of(samples):
    return torch_default_collate(samples).is_shared()


def test_torchs_default_collation_called_by_the_user_takes_no_shared_memory_in_a_worker():
    assert list(DataLoader([torch.zeros(3)] * 4, 2, num_workers=1, collate_fn=shares_of)) == [False, False]
