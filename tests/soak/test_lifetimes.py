"""Hundreds of loaders made, half used and dropped, and main processes killed at random times."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from lit_loader import DataLoader
from tests.support.toys import Drawing

pytestmark = pytest.mark.soak

SCRIPT = """
from lit_loader import DataLoader
from tests.support.toys import Slow
while True:
    for batch in DataLoader(Slow(0.001), batch_size=4, num_workers=2, seed=1):
        print("batch", flush=True)
"""


def test_three_hundred_loaders_leave_descriptors_threads_and_memory_flat():
    draw = random.Random(0)

    def use(number):
        loader = DataLoader(
            Drawing(),
            batch_size=2,
            num_workers=draw.choice([1, 2]),
            seed=draw.choice([None, number]),
            persistent_workers=draw.random() < 0.5,
        )
        iterator = iter(loader)
        for _ in range(draw.randrange(12)):
            next(iterator)

    for number in range(20):
        use(number)
    gc.collect()
    before = (len(os.listdir("/proc/self/fd")), threading.active_count(), psutil.Process().memory_full_info().uss)
    for number in range(300):
        use(number)
    gc.collect()
    after = (len(os.listdir("/proc/self/fd")), threading.active_count(), psutil.Process().memory_full_info().uss)
    assert after[0] <= before[0] + 1
    assert after[1] == before[1]
    assert after[2] < before[2] * 1.1 + 2**20


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_a_main_process_ended_at_a_random_moment(signal_number):
    draw = random.Random(int(signal_number))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(25):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        process.stdout.readline()
        time.sleep(draw.random() * 0.3)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal_number)
        process.communicate(timeout=30)
        _, alive = psutil.wait_procs(workers, timeout=2)
        assert [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE] == []
