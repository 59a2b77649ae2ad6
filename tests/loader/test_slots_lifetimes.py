"""Guarantee: a batch that the consumer keeps does not change; the memory of others is used again."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.memory import Slots
from tests.support.slot_sets import Large, is_right, loader_of, memfds_of, num_mappings, slots_of, used_bytes

EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


@EACH_SEED
def test_an_epoch_that_is_kept_stays_as_it_is_and_is_all_in_slots(seed):
    with loader_of(Large(), seed=seed) as loader:
        kept = list(loader)
        assert all(is_right(batch) for batch in kept)
        assert slots_of(loader)._num_slots >= 16
        for batch in loader:
            batch[0].fill_(-1)
            batch[1].fill_(-1)
        assert all(is_right(batch) for batch in kept)
        kept.clear()
        for batch in loader:
            assert is_right(batch)
    assert is_right(batch)


@EACH_SEED
def test_batches_kept_beyond_the_bound_are_copied_and_right(seed, monkeypatch):
    monkeypatch.setitem(Slots.__init__.__kwdefaults__, "kept_bytes", 5 << 19)
    with loader_of(Large(120), seed=seed) as loader:
        kept = list(loader)
        slots = slots_of(loader)
        assert slots.kept_bytes <= 5 << 19
        assert slots._num_slots <= 20
        assert len(kept) == 30
        assert all(is_right(batch) for batch in kept)
        for batch in kept:
            batch[0].fill_(-1)
        assert all(is_right(batch) for batch in loader)
        assert all((batch[0] == -1).all() for batch in kept)


def test_slots_and_memory_come_back_when_batches_are_let_go():
    with loader_of(Large(160)) as loader:
        for batch in loader:
            assert is_right(batch)
        slots = slots_of(loader)
        steady = slots._num_slots
        memory = used_bytes(slots)
        assert steady <= 10
        kept = list(loader)
        assert used_bytes(slots) > 2 * memory
        most = slots._num_slots
        kept.clear()
        for _ in range(3):
            for batch in loader:
                assert is_right(batch)
        del batch
        assert slots._num_slots == most
        assert slots.kept_bytes == 0
        assert used_bytes(slots) <= 2 * memory


@EACH_SEED
def test_two_thousand_batches_of_random_lives_with_edits_in_place_none_wrong_and_all_flat(seed):
    draw = random.Random(0)
    held = []
    wrong = 0
    facts = []
    with loader_of(Large(1000), batch_size=2, seed=seed) as loader:
        for _ in range(3):
            for batch in loader:
                wrong += not is_right(batch)
                kept = draw.choice([batch, [batch[0].view(-1).view(batch[0].shape), *batch[1:]], None])
                if kept is not None:
                    held.append((kept, is_right(kept)))
                    if draw.random() < 0.5:
                        kept[0].add_(1)
                        kept[1].add_(1)
                        kept[2].add_(1)
                while len(held) > 20:
                    old, was_right = held.pop(draw.randrange(len(held)))
                    wrong += not (was_right and is_right(old))
                del batch, kept
            facts.append((slots_of(loader)._num_slots < 40, len(os.listdir("/proc/self/fd")), num_mappings() < 40))
    assert wrong == 0
    assert len(set(facts)) == 1
    assert facts[0][0]
    assert facts[0][2]


@EACH_SEED
def test_a_fork_of_the_consumer_sees_what_it_held_after_hundreds_of_further_batches(seed):
    with loader_of(Large(400), batch_size=2, seed=seed) as loader:
        iterator = iter(loader)
        held = [next(iterator) for _ in range(5)]
        to_child, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(to_child, 1)
            os._exit(0 if all(is_right(batch) for batch in held) else 7)
        address = held[0][0].data_ptr()
        held[0][0].add_(1)
        held[0][1].add_(1)
        held[0][2].add_(1)
        for number, batch in enumerate(iterator):
            assert is_right(batch)
            if number == 100:
                del held[2:]
        for batch in loader:
            assert is_right(batch)
        assert held[0][0].data_ptr() == address
        assert all(is_right(batch) for batch in held)
        os.write(go, b"1")
        _, status = os.waitpid(pid, 0)
        for fd in (to_child, go):
            os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0


def test_workers_of_another_loader_may_be_forked_while_batches_are_held():
    with loader_of(Large(40)) as loader, loader_of(Large(40)) as other:
        iterator = iter(loader)
        held = [next(iterator), next(iterator)]
        assert all(is_right(batch) for batch in other)
        held += list(iterator)
        assert len(held) == 10
        assert all(is_right(batch) for batch in held)
        assert all(is_right(batch) for batch in loader)
        assert all(is_right(batch) for batch in held)


def test_one_descriptor_a_pool_and_a_worker_whatever_is_held():
    with loader_of(Large(200), batch_size=2) as loader:
        iterator = iter(loader)
        next(iterator)
        before = memfds_of("self"), len(os.listdir("/proc/self/fd"))
        workers = [worker.process.pid for worker in loader._worker_manager.backend._workers]
        held = list(iterator)
        assert (memfds_of("self"), len(os.listdir("/proc/self/fd"))) == before
        assert before[0] == 1
        assert [memfds_of(pid) for pid in workers] == [1, 1]
        assert len(held) == 99


def test_making_batches_adds_no_files_to_dev_shm():
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm here")
    names = ("torch_", "psm_", "sem.", "lit")
    with loader_of(Large(100)) as loader:
        for batch in loader:
            actual = [entry.name for entry in Path("/dev/shm").iterdir() if str(os.getpid()) in entry.name]
            assert not [name for name in actual if name.startswith(names)]
            assert not batch[0].is_shared()


def test_batches_outlive_their_loader_and_then_its_memory_is_gone():
    gc.collect()
    before = num_mappings()
    loader = loader_of(Large(64, (128, 1000)))
    held = [batch for batch, _ in zip(loader, range(3), strict=False)]
    copy = os.dup(slots_of(loader).file._fd)
    loader.close()
    try:
        del loader
        gc.collect()
        assert all(is_right(batch) for batch in held)
        held[0][0].fill_(1)
        one_batch = 4 * 128 * 1000 * (4 + 8)
        assert os.fstat(copy).st_blocks * 512 < 5 * (one_batch + (1 << 20))
        held.clear()
        assert os.fstat(copy).st_blocks == 0
        assert num_mappings() == before
    finally:
        os.close(copy)


def test_a_script_that_ends_with_batches_in_hand_ends_quietly():
    text = """
import os, torch
from lit_loader import DataLoader
from tests.support.slot_sets import Large
loader = DataLoader(Large(), batch_size=4, num_workers=2, seed=0)
iterator = iter(loader)
held = [next(iterator), next(iterator)]
view = held[0][0][1:].numpy()
cycle = [view]; cycle.append(cycle)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0
    assert "Exception" not in done.stderr
    assert "Error" not in done.stderr


def test_memory_of_main_process_and_workers_stays_at_what_is_in_use():
    with loader_of(Large(300, (64, 1000)), batch_size=8) as loader:
        sizes = []
        for _ in range(3):
            for batch in loader:
                assert is_right(batch)
            processes = [psutil.Process(), *psutil.Process().children()]
            sizes.append(sum(process.memory_full_info().pss for process in processes if is_ours(process, loader)))
        assert sizes[-1] < sizes[0] * 1.05 + (8 << 20)


def is_ours(process, loader):
    return process.pid in [os.getpid(), *(worker.process.pid for worker in loader._worker_manager.backend._workers)]


def test_a_loader_without_slots_is_used_in_the_same_way(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with loader_of(Large()) as loader:
        kept = list(loader)
        assert loader._worker_manager.backend._slots is None
        assert all(is_right(batch) for batch in kept)
        assert all(is_right(batch) for batch in loader)
        assert isinstance(loader, DataLoader)
        assert isinstance(kept[0][0], torch.Tensor)
