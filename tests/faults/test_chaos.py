"""Workers killed at random times, one or two at once: every epoch is the undisturbed one, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings

import psutil
import pytest

from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning
from tests.support.dying_sets import Dying

BATCH = 4
BATCHES_AN_EPOCH = 40


class Killer(threading.Thread):
    """Kills workers of a loader at random times until `stop`."""

    def __init__(self, loader, draw, *, pause_s):
        super().__init__(daemon=True)
        self.loader = loader
        self.draw = draw
        self.pause_s = pause_s
        self.stopping = threading.Event()
        self.num_killed = 0

    def run(self):
        while not self.stopping.wait(self.draw.uniform(0, 2 * self.pause_s)):
            backend = self.loader._worker_manager.backend
            workers = [] if backend is None else list(backend._workers)
            for worker in self.draw.sample(workers, min(len(workers), self.draw.choice([1, 1, 1, 2]))):
                try:
                    pid = worker.process.pid
                    if psutil.Process(pid).ppid() in (os.getpid(), _forkserver_pid()):
                        os.kill(pid, signal.SIGKILL)
                        self.num_killed += 1
                except (ValueError, TypeError, ProcessLookupError, psutil.NoSuchProcess):
                    continue  # it was replaced meanwhile


def _forkserver_pid():
    from multiprocessing import forkserver

    return getattr(forkserver._forkserver, "_forkserver_pid", None)


def checksum(batch):
    values = [batch["noise"].double().sum(), batch["array"].sum(), batch["number"].sum()]
    return (batch["index"].tolist(), *(float(value) for value in values))


def run_chaos(tmp_path, *, method, side, num_batches, pause_s, seed):
    dataset = Dying(BATCH * BATCHES_AN_EPOCH, tmp_path, side=side)
    settings = {"batch_size": BATCH, "shuffle": True, "seed": seed}
    epochs = -(-num_batches // BATCHES_AN_EPOCH)
    plain = DataLoader(dataset, **settings)
    loader = DataLoader(
        dataset,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        max_worker_restarts=10_000,
        **settings,
    )
    killer = Killer(loader, random.Random(seed), pause_s=pause_s)
    held_noises = []
    with warnings.catch_warnings(record=True) as caught, loader:
        warnings.simplefilter("always", WorkerRestartWarning)
        killer.start()
        try:
            for _ in range(epochs):
                checksums = []
                for batch in loader:
                    checksums.append(checksum(batch))
                    batch["noise"] += 1  # its slot must not be written to again
                    held_noises = [*held_noises[-3:], (batch["noise"], float(batch["noise"].double().sum()))]
                    assert all(float(noise.double().sum()) == total for noise, total in held_noises)
                    time.sleep(0.0005)
                assert checksums == [checksum(batch) for batch in plain]
        finally:
            killer.stopping.set()
            killer.join()
    return killer.num_killed, len([warning for warning in caught if warning.category is WorkerRestartWarning])


@pytest.mark.parametrize(
    ("method", "side", "num_batches"),
    [
        ("fork", 70, 400),
        ("forkserver", 20, 400),
        *(
            pytest.param(method, side, 10_000, marks=(pytest.mark.soak, pytest.mark.timeout(3600)))
            for method in ("fork", "forkserver")
            for side in (20, 70)
        ),
    ],
)
def test_workers_killed_at_random_moments_change_no_batch(tmp_path, method, side, num_batches):
    killed, replaced = run_chaos(tmp_path, method=method, side=side, num_batches=num_batches, pause_s=0.05, seed=7)
    assert killed > num_batches // 400
    assert 0 < replaced <= killed
