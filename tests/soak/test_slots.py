"""A hundred thousand batches with random lifetimes, forks and interrupted epochs: no wrong batch, memory stays flat."""

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
        "number of slots": slots.num_slots,
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "mappings": num_mappings(),
    }


def assert_flat(early, late):
    assert late["pss"] < early["pss"] * 1.1 + (16 << 20)
    assert late["number of slots"] <= early["number of slots"] + 12
    assert late["slots"] < early["slots"] * 1.5 + (6 << 20)  # as many slots have memory, of half a MB each
    assert late["descriptors"] <= early["descriptors"]
    assert late["mappings"] <= early["mappings"] + 12


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [None, 3], ids=["unseeded", "seeded"])
def test_hundred_thousand_batches_are_right_and_memory_stays_flat(seed):
    draw = random.Random(0)
    recent = []
    wrong = 0
    count = 0
    early_facts = None
    with loader_of(Large(10_000), batch_size=2, seed=seed) as loader:
        while count < 100_000:
            for batch in loader:
                count += 1
                wrong += not is_right(batch)
                recent.append(batch)
                if draw.random() < 0.5:
                    for part in batch:
                        part.add_(1)
                while len(recent) > 30:
                    wrong += not is_right(recent.pop(draw.randrange(len(recent))))
                del batch
            if count >= 10_000 and early_facts is None:
                early_facts = facts(loader)
        assert_flat(early_facts, facts(loader))
    assert wrong == 0


@pytest.mark.timeout(900)
def test_memory_stays_flat_over_interrupted_epochs_and_forks():
    draw = random.Random(1)
    recent = []
    facts_over_time = []
    with loader_of(Large(400), seed=2) as loader:
        for number in range(500):
            iterator = iter(loader)
            for _ in range(draw.randrange(1, 40)):
                recent.append(next(iterator))
                recent = recent[-draw.randrange(1, 12) :]
                if draw.random() < 0.03:
                    pid = os.fork()
                    if pid == 0:
                        os._exit(0 if all(map(is_right, recent)) else 7)
                    assert os.waitpid(pid, 0)[1] == 0
            assert all(map(is_right, recent))
            del iterator
            if number in (100, 499):
                # How many of the recent batches are in slots depends on when the last fork was.
                recent.clear()
                gc.collect()
                facts_over_time.append(facts(loader))
    assert_flat(*facts_over_time)
