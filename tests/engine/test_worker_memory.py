"""Memory of a worker process: frozen objects, freed images, shared memory."""

from __future__ import annotations

import gc
import os
import resource
import sys
from functools import partial
from multiprocessing import util
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data._utils import collate as torch_collate

from lit_loader import DataLoader
from lit_loader.collate import default_collate
from lit_loader.engine import worker as engine_worker


class Frozen(Dataset):
    """Samples are the number of objects that garbage collection ignores."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return gc.get_freeze_count()


def test_collection_in_a_worker_ignores_inherited_objects():
    num_frozen = gc.get_freeze_count()
    objects = [[] for _ in range(10_000)]
    (count,) = DataLoader(Frozen(), num_workers=1, collate_fn=int_of)
    assert count > num_frozen + len(objects) // 2
    # Nothing more is frozen in this process.
    assert gc.get_freeze_count() <= num_frozen


def int_of(samples):
    return samples[0]


class Faults(Dataset):
    """Page faults of making 20 batches of 6 images, each freed before the next."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        for number in range(25):
            if number == 5:
                faults_at_start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            images = [torch.ones(3, 400, 800) for _ in range(6)]
            del images
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_at_start


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mallopt")
def test_worker_reuses_memory_of_freed_images():
    (faults,) = DataLoader(Faults(), num_workers=1, collate_fn=int_of)
    assert faults < 20 * 6 * 100  # an image has 938 pages


@pytest.mark.parametrize(
    ("name", "value", "is_kept"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_THRESHOLD_", "131072", False),
        ("MALLOC_TOP_PAD_", "0", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4:glibc.malloc.trim_threshold=131072", False),
        ("MALLOC_ARENA_MAX", "2", True),  # not about freed memory
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mallopt")
def test_allocator_settings_of_the_user_are_respected(name, value, is_kept, monkeypatch):
    calls = []
    libc = SimpleNamespace(mallopt=lambda *knob: calls.append(knob))
    monkeypatch.setattr(engine_worker.ctypes, "CDLL", lambda _: libc)
    monkeypatch.setenv(name, value)
    engine_worker._keep_freed_memory()
    assert bool(calls) is is_kept
    monkeypatch.delenv(name)
    calls.clear()
    engine_worker._keep_freed_memory()
    assert len(calls) == 2


def shares_of(samples):
    return torch_default_collate(samples).is_shared(), default_collate(samples).is_shared()


def test_default_collation_in_a_worker_uses_no_shared_memory():
    """torch's own default collation, called by the user's collate function, does, as in torch's workers."""
    table = dict(torch_collate.default_collate_fn_map)
    dataset = [torch.zeros(3)] * 4
    assert list(DataLoader(dataset, 2, num_workers=1, collate_fn=shares_of)) == [(True, False)] * 2
    (is_unchanged,) = DataLoader(dataset, 4, num_workers=1, collate_fn=lambda _: is_torchs_table())
    assert is_unchanged
    assert torch_collate.default_collate_fn_map == table


def is_torchs_table():
    return torch_collate.default_collate_fn_map[torch.Tensor] is torch_collate.collate_tensor_fn


class Images(Dataset):
    """Large tensors and small ones, and how many descriptors the worker has open."""

    def __len__(self):
        return 80

    def __getitem__(self, index):
        return {
            "image": torch.full((3, 128, 128), float(index)),
            "index": index,
            "array": np.full(5, index),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }


def by_torchs(samples):
    return torch_default_collate(samples)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
@pytest.mark.parametrize("by_pipe", [False, True], ids=["slots", "pipe"])
@pytest.mark.parametrize("seed", [None, 0])
def test_batches_in_torch_shared_memory_arrive_and_leave_no_files(seed, by_pipe, monkeypatch):
    if by_pipe:
        monkeypatch.delattr(os, "memfd_create")
    with DataLoader(Images(), 4, num_workers=2, seed=seed, collate_fn=by_torchs, persistent_workers=True) as loader:
        batches = [batch for _ in range(3) for batch in loader]
        main_process = psutil.Process()
        pids = {str(process.pid) for process in (main_process, *main_process.children(recursive=True))}
    # Look only for names of this process and of its workers, which have ended: other processes have files there.
    assert not [name for name in os.listdir("/dev/shm") if pids & {*name.split("_")}]
    for number, batch in enumerate(batches):
        indices = torch.arange(4) + number % 20 * 4
        assert torch.equal(batch["index"], indices)
        assert torch.equal(batch["array"], indices[:, None].expand(4, 5))
        assert (batch["image"] == indices[:, None, None, None]).all()
    counts = torch.cat([batch["descriptors"] for batch in batches])
    assert counts.max() <= counts.min() + 30  # three per batch that waits to be sent; a leak would be 90


def note_at_the_end(file, _worker_id):
    """Let the worker write, at its end, the number of objects that its collector ignores."""
    util.Finalize(None, lambda: file.write_text(str(gc.get_freeze_count())), exitpriority=0)


@pytest.mark.soak
def test_spawned_worker_frees_all_objects_at_its_end(tmp_path):
    """Otherwise libraries print at its exit which objects were not freed."""
    note = partial(note_at_the_end, tmp_path / "frozen")
    list(DataLoader(range(2), num_workers=1, multiprocessing_context="spawn", worker_init_fn=note))
    assert (tmp_path / "frozen").read_text() == "0"


def test_forked_worker_does_not_free_inherited_objects_at_its_end(tmp_path):
    """A fork must not finalize CUDA's objects, for example."""
    note = partial(note_at_the_end, tmp_path / "frozen")
    list(DataLoader(range(2), num_workers=1, multiprocessing_context="fork", worker_init_fn=note))
    assert int((tmp_path / "frozen").read_text()) > 0
