"""Guarantee: a batch that the consumer keeps does not change; the memory of others is used again."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import psutil
import pytest

from tests.support.scripts import run_code
from tests.support.slot_sets import Large, is_right, loader_of, memfds_of, num_mappings, num_slots, slots_of, used_bytes

EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


def test_slots_and_memory_come_back_when_batches_are_let_go():
    with loader_of(Large(160)) as loader:
        for batch in loader:
            assert is_right(batch)
        slots = slots_of(loader)
        steady = num_slots(loader)
        memory = used_bytes(slots)
        assert steady <= 10
        batches = list(loader)
        assert used_bytes(slots) > 2 * memory
        most = num_slots(loader)
        batches.clear()
        for _ in range(3):
            for batch in loader:
                assert is_right(batch)
        del batch
        assert num_slots(loader) == most
        assert slots.kept_bytes == 0
        assert used_bytes(slots) <= 2 * memory


@EACH_SEED
def test_two_thousand_batches_of_random_lives_with_edits_in_place_none_wrong_and_all_flat(seed):
    draw = random.Random(0)
    live_batches = []
    wrong = 0
    facts = []
    with loader_of(Large(1000), batch_size=2, seed=seed) as loader:
        for _ in range(3):
            for batch in loader:
                wrong += not is_right(batch)
                choice = draw.choice([batch, [batch[0].view(-1).view(batch[0].shape), *batch[1:]], None])
                if choice is not None:
                    live_batches.append((choice, is_right(choice)))
                    if draw.random() < 0.5:
                        choice[0].add_(1)
                        choice[1].add_(1)
                        choice[2].add_(1)
                while len(live_batches) > 20:
                    old, was_right = live_batches.pop(draw.randrange(len(live_batches)))
                    wrong += not (was_right and is_right(old))
                del batch, choice
            facts.append((num_slots(loader) < 40, len(os.listdir("/proc/self/fd")), num_mappings() < 40))
    assert wrong == 0
    assert len(set(facts)) == 1
    assert facts[0][0]
    assert facts[0][2]


@EACH_SEED
def test_a_fork_of_the_consumer_sees_what_it_held_after_hundreds_of_further_batches(seed):
    with loader_of(Large(400), batch_size=2, seed=seed) as loader:
        iterator = iter(loader)
        live_batches = [next(iterator) for _ in range(5)]
        to_child, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(to_child, 1)
            os._exit(0 if all(is_right(batch) for batch in live_batches) else 7)
        address = live_batches[0][0].data_ptr()
        live_batches[0][0].add_(1)
        live_batches[0][1].add_(1)
        live_batches[0][2].add_(1)
        for number, batch in enumerate(iterator):
            assert is_right(batch)
            if number == 100:
                del live_batches[2:]
        for batch in loader:
            assert is_right(batch)
        assert live_batches[0][0].data_ptr() == address
        assert all(is_right(batch) for batch in live_batches)
        os.write(go, b"1")
        _, status = os.waitpid(pid, 0)
        for fd in (to_child, go):
            os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0


def test_one_descriptor_a_pool_and_a_worker_whatever_is_held():
    earlier_children = set(psutil.Process().children())
    with loader_of(Large(200), batch_size=2) as loader:
        iterator = iter(loader)
        next(iterator)
        initial = memfds_of("self"), len(os.listdir("/proc/self/fd"))
        workers = [child.pid for child in set(psutil.Process().children()) - earlier_children]
        live_batches = list(iterator)
        assert (memfds_of("self"), len(os.listdir("/proc/self/fd"))) == initial
        assert initial[0] == 1
        assert [memfds_of(pid) for pid in workers] == [1, 1]
        assert len(live_batches) == 99


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
    initial = num_mappings()
    loader = loader_of(Large(64, (128, 1000)))
    live_batches = [batch for batch, _ in zip(loader, range(3), strict=False)]
    copy = os.dup(slots_of(loader).file.fd)
    loader.close()
    try:
        del loader
        gc.collect()
        assert all(is_right(batch) for batch in live_batches)
        live_batches[0][0].fill_(1)
        one_batch = 4 * 128 * 1000 * (4 + 8)
        assert os.fstat(copy).st_blocks * 512 < 5 * (one_batch + (1 << 20))
        live_batches.clear()
        assert os.fstat(copy).st_blocks == 0
        assert num_mappings() == initial
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
    errors = run_code(text).stderr
    assert "Exception" not in errors
    assert "Error" not in errors


def test_memory_of_main_process_and_workers_stays_at_what_is_in_use():
    earlier_children = set(psutil.Process().children())
    with loader_of(Large(300, (64, 1000)), batch_size=8) as loader:
        sizes = []
        for _ in range(3):
            for batch in loader:
                assert is_right(batch)
            processes = [psutil.Process(), *(set(psutil.Process().children()) - earlier_children)]
            sizes.append(sum(process.memory_full_info().pss for process in processes))
        assert sizes[-1] < sizes[0] * 1.05 + (8 << 20)
