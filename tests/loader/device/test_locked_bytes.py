"""Guarantee: page-locked are at most twice the bytes that batches use of their slots, and 2 MiB a slot; then none."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from torch.utils.data import Dataset

from benchmarks.transfer import RACE_BATCH, RACE_SIZES, race
from benchmarks.transfer import Numbered as RaceSamples
from lit_loader import DataLoader
from lit_loader.loader.device import page_lock
from lit_loader.memory import Slots
from lit_loader.memory.batch_memory import LARGE_BYTES
from tests.loader.device.test_page_lock import Cuda
from tests.support.in_threads import as_list
from tests.support.simulated_device import present

MIB = 1 << 20
NUM_BATCHES = 10
BATCH = 4
SETTINGS = {"batch_size": BATCH, "seed": 1, "num_workers": 2, "pin_memory": True, "device": "cuda"}

# elements (uint8) of each sample of a batch, by the batch's number
SHAPES = {
    "small": lambda number: 20_000,
    "of 400 KB": lambda number: 100_000,
    "large": lambda number: MIB + 5,
    "growing": lambda number: 30_000 * (number + 1) ** 2,
    "shrinking": lambda number: 30_000 * (NUM_BATCHES - number) ** 2,
    "varying": lambda number: random.Random(number).choice([16_384, 50_000, 400_000, 2 * MIB, 4 * MIB]),
}


class Sized(Dataset):
    """A large tensor, full of the sample's number, the number, and perhaps a mask."""

    def __init__(self, num_elements, mask=False):
        self.num_elements = num_elements
        self.mask = mask

    def __len__(self):
        return NUM_BATCHES * BATCH

    def __getitem__(self, index):
        count = SHAPES[self.num_elements](index // BATCH)
        sample = {"image": torch.full((count,), index % 251, dtype=torch.uint8), "number": index % 251}
        if self.mask:
            sample["mask"] = torch.zeros(count, dtype=torch.uint8)
        return sample


def padded(samples):
    """Copies samples that are already in the slot, and leaves the masks out."""
    images = torch.nn.utils.rnn.pad_sequence([sample["image"] for sample in samples], batch_first=True)
    return {"image": images, "number": torch.tensor([sample["number"] for sample in samples])}


@pytest.fixture
def cuda(monkeypatch):
    """A loader's device is simulated, and so is the CUDA runtime; what slots are used for is written down."""
    device = present(monkeypatch)
    actual = Cuda()
    actual.device = device
    monkeypatch.setattr(page_lock, "_cudart", lambda: actual)
    actual.peaks = {}
    actual.most = 0
    open_batch = Slots._open

    def opened(slots, ticket, ranges):
        slot = (id(slots), ticket.number)
        used = sum(end - start for start, end in ranges)
        actual.peaks[slot] = max(actual.peaks.get(slot, 0), used)
        lease = open_batch(slots, ticket, ranges)
        locked = sum(actual.registered.values())
        actual.most = max(actual.most, locked)
        assert locked <= sum(2 * peak + 2 * MIB for peak in actual.peaks.values())
        return lease

    monkeypatch.setattr(Slots, "_open", opened)
    return actual


pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


@pytest.mark.parametrize("collate_fn", [None, as_list, padded], ids=["stacked", "listed", "padded"])
@pytest.mark.parametrize("sizes", SHAPES)
def test_locked_bytes_are_bounded_and_all_are_unlocked_at_the_end(cuda, sizes, collate_fn):
    dataset = Sized(sizes, mask=collate_fn is padded)
    with DataLoader(dataset, persistent_workers=True, collate_fn=collate_fn, **SETTINGS) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                images = [sample["image"] for sample in batch] if collate_fn is as_list else batch["image"]
                for row, image in enumerate(images):
                    assert (image == (number * BATCH + row) % 251).all()
        del batch, images, image
    assert cuda.most > 0
    assert cuda.registered == {}


def test_eight_workers_lock_no_more_for_each_slot(cuda):
    with DataLoader(Sized("of 400 KB"), **{**SETTINGS, "num_workers": 8}) as loader:
        assert len(list(loader)) == NUM_BATCHES
    assert 0 < cuda.most <= 2 * MIB * len(cuda.peaks)
    assert cuda.registered == {}


def test_a_pass_that_is_broken_off_leaves_nothing_locked(cuda):
    loader = DataLoader(Sized("large"), **SETTINGS)
    iterator = iter(loader)
    next(iterator)
    assert cuda.registered != {}
    del iterator
    loader.close()
    assert cuda.registered == {}


@pytest.mark.parametrize("collected", [False, True])
def test_a_loader_that_is_closed_while_a_graph_is_captured_unlocks_its_memory_later(cuda, collected):
    loader = DataLoader(Sized("of 400 KB"), **SETTINGS)
    iterator = iter(loader)
    next(iterator)
    cuda.device.drain()
    calls = list(cuda.calls)
    locked = set(cuda.registered)
    assert locked
    cuda.device.capturing = True
    if collected:
        del iterator, loader
        gc.collect()
    else:
        iterator.close()
        loader.close()
    assert cuda.calls == calls
    cuda.device.capturing = False
    with DataLoader(Sized("of 400 KB"), **SETTINGS) as other:
        assert len(list(other)) == NUM_BATCHES
    assert locked <= {call[1] for call in cuda.calls if call[0] == "unregister"}
    assert cuda.registered == {}


def test_batches_of_the_race_are_copied_from_locked_slots(cuda, monkeypatch):
    """Or the race on a GPU would prove nothing."""
    from_locked = []
    copy_to_device = cuda.device.copy_to_device

    def noting(tensor):
        if tensor.ndim == 4:
            start = tensor.data_ptr()
            end = start + tensor.nbytes
            ranges = cuda.registered.items()
            from_locked.append(any(first <= start and end <= first + size for first, size in ranges))
        return copy_to_device(tensor)

    cuda.device.copy_to_device = noting
    samples = RaceSamples(2 * RACE_BATCH * len(RACE_SIZES))
    with DataLoader(samples, **{**SETTINGS, "batch_size": RACE_BATCH, "seed": 0}) as loader:
        list(loader)
    large = [RACE_BATCH * 3 * size**2 >= LARGE_BYTES for size in RACE_SIZES]
    assert from_locked == 2 * large
    assert sum(large) >= 5


def test_the_race_counts_no_wrong_value_and_every_wrong_one(monkeypatch):
    assert race(7, own_stream=False, device=None) == 0
    monkeypatch.setattr(
        RaceSamples, "__getitem__", lambda samples, index: (torch.zeros(3, 2, 2, dtype=torch.uint8), index % 2)
    )
    assert race(7, own_stream=False, device=None) == 7 * 2 * 12  # half of the samples of each batch


def test_batches_that_the_user_copies_lie_in_no_locked_slot(cuda, monkeypatch):
    """Without a device the user may copy on any stream, so torch's own allocator pins the batches."""
    with DataLoader(Sized("of 400 KB"), **{**SETTINGS, "device": None}) as loader:
        list(loader)
    assert cuda.calls == []
