"""A hundred thousand batches of random lives through slots, and forks and broken-off epochs: all right, all flat."""

from __future__ import annotations

import gc
import os
import random

import psutil
import pytest

from tests.support.slot_sets import Large, is_right, loader_of, num_mappings, slots_of, used_bytes

pytestmark = pytest.mark.soak


def facts(loader):
    """Return the memory (PSS) of main process and workers, and what else may grow."""
    pids = [os.getpid(), *(worker.process.pid for worker in loader._worker_manager.backend._workers)]
    slots = slots_of(loader)
    return {
        "pss": sum(psutil.Process(pid).memory_full_info().pss for pid in pids),
        "slots": used_bytes(slots),
        "number of slots": slots._num_slots,
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "mappings": num_mappings(),
    }


def assert_flat(before, after):
    assert after["pss"] < before["pss"] * 1.1 + (16 << 20)
    assert after["number of slots"] <= before["number of slots"] + 12
    assert after["slots"] < before["slots"] * 1.5 + (6 << 20)  # as many slots have memory, of half a MB each
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 12


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [None, 3], ids=["unseeded", "seeded"])
def test_a_hundred_thousand_batches_of_random_lives_none_wrong_and_all_flat(seed):
    draw, held, wrong, count, before = random.Random(0), [], 0, 0, None
    with loader_of(Large(10_000), batch_size=2, seed=seed) as loader:
        while count < 100_000:
            for batch in loader:
                count += 1
                wrong += not is_right(batch)
                held.append((batch, draw.random() < 0.5))
                if held[-1][1]:
                    for part in batch:
                        part.add_(1)
                while len(held) > 30:
                    old, _ = held.pop(draw.randrange(len(held)))
                    wrong += not is_right(old)
                del batch
            if count >= 10_000 and before is None:
                before = facts(loader)
        assert_flat(before, facts(loader))
    assert wrong == 0


@pytest.mark.timeout(900)
def test_five_hundred_broken_off_epochs_and_forks_in_the_middle_leave_all_flat():
    draw, before, now, held = random.Random(1), None, None, []
    with loader_of(Large(400), seed=2) as loader:
        for number in range(500):
            iterator = iter(loader)
            for _ in range(draw.randrange(1, 40)):
                held.append(next(iterator))
                held = held[-draw.randrange(1, 12) :]
                if draw.random() < 0.03:
                    pid = os.fork()
                    if pid == 0:
                        os._exit(0 if all(is_right(batch) for batch in held) else 7)
                    assert os.waitpid(pid, 0)[1] == 0
            assert all(is_right(batch) for batch in held)
            del iterator
            if number in (100, 499):
                held.clear()  # how many of the held batches are in slots depends on when the last fork was
                gc.collect()
                now = facts(loader)
                before = before or now
    assert_flat(before, now)
