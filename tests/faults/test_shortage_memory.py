"""Guarantee: where memory is short a batch arrives whole in another way, or the error says how much was wanted."""

from __future__ import annotations

import os
import resource
import signal

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.memory import mapping
from tests.support.slot_sets import Large, is_right, loader_of, slots_of

BIG_BYTES = 256 << 20
EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


@EACH_SEED
@pytest.mark.parametrize("num_bytes", [0, 300_000, 1 << 20, (1 << 36) + (1 << 18)])
def test_full_memory_file_ends_no_worker(seed, num_bytes, monkeypatch):
    """As the kernel tells a process that writes where it has no page to give: SIGBUS, unless it was asked before."""
    shrink = os.ftruncate
    monkeypatch.setattr(mapping.os, "ftruncate", lambda fd, _: shrink(fd, num_bytes))
    with loader_of(Large(96), seed=seed) as loader:
        batches = [batch for _ in range(2) for batch in loader]
        assert len(batches) == 48
        assert all(is_right(batch) for batch in batches)
        assert slots_of(loader) is not None


def mapped_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit_address_space(worker):
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + (1 << 30),) * 2)


@EACH_SEED
def test_workers_that_cannot_map_slots_send_by_pipe(seed):
    with loader_of(Large(96), worker_init_fn=limit_address_space, seed=seed) as loader:
        batches = [batch for _ in range(2) for batch in loader]
        assert len(batches) == 48
        assert all(is_right(batch) for batch in batches)


class OneBig(Dataset):
    """The third batch is large."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((BIG_BYTES if index == 2 else 100_000,), index, dtype=torch.uint8)


def in_a_fork(check):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            code = check()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def limited():
    """Let this process map half of the large batch, as far as it may at all."""
    limits_before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + BIG_BYTES // 2, limits_before[1]))
    return limits_before


def wants(error):
    return isinstance(error, MemoryError) and f"no memory for {BIG_BYTES} bytes of a batch" in str(error)


@pytest.mark.parametrize("by_pipe", [False, True], ids=["in a slot", "by pipe"])
def test_memory_error_of_the_main_process_names_the_size_of_the_batch(by_pipe, monkeypatch):
    if by_pipe:
        monkeypatch.delattr("os.memfd_create")

    def check():
        loader = DataLoader(OneBig(), batch_size=None, num_workers=1, prefetch_factor=1, persistent_workers=True)
        iterator = iter(loader)
        outcomes = []
        batches = []
        limits_before = None
        for _ in range(8):
            try:
                batches.append(next(iterator))  # so that each is in a slot of its own
                outcomes.append(batches[-1][0].item())
                limits_before = limits_before or limited()  # with the workers started
            except Exception as error:
                outcomes.append(error.with_traceback(None))
        resource.setrlimit(resource.RLIMIT_AS, limits_before)
        batches.clear()
        if by_pipe:  # what follows in the pipe cannot be read any more
            fine = (
                outcomes[:2] == [0, 1] and wants(outcomes[2]) and all("closed" in str(error) for error in outcomes[3:])
            )
        else:
            fine = wants(outcomes[2]) and [*outcomes[:2], *outcomes[3:]] == [0, 1, 3, 4, 5, 6, 7]
        second_epoch = [batch[0].item() for batch in loader]
        loader.close()
        if not fine or second_epoch != list(range(8)):
            os.write(2, f"{outcomes} {second_epoch}".encode())
            return 2
        return 0

    assert in_a_fork(check) == 0
