"""With a seed, a worker that ends is replaced and its work done again: nothing lost, nothing twice, the same bits."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
import warnings
from functools import partial
from itertools import product

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import WorkerDiedError, WorkerRestartWarning
from tests.support.dying_sets import Dying, Waiting, backend_of, die, first_time, poison_pipe, poison_slot

pytestmark = pytest.mark.filterwarnings("ignore::lit_loader.errors.WorkerRestartWarning")
SIZE = 64
BATCH = 4
METHODS = ["fork", "forkserver"]


def make_loader(dataset, **arguments):
    settings = {"batch_size": BATCH, "num_workers": 2, "seed": 3, "shuffle": True, **arguments}
    return DataLoader(dataset, **settings)


def flat(batch):
    return {key: value.clone() for key, value in batch.items()}


def assert_same(received, expected):
    assert len(received) == len(expected)
    for batch, other in zip(received, expected, strict=True):
        assert batch.keys() == other.keys()
        for key in batch:
            assert torch.equal(batch[key], other[key]), key


@pytest.fixture
def expected(tmp_path):
    """Two epochs without workers."""
    loader = make_loader(Dying(SIZE, tmp_path), num_workers=0)
    return [[flat(batch) for batch in loader] for _ in range(2)]


def run(loader, expected, *, restarts):
    """Iterate two epochs, and check them and the warnings."""
    with warnings.catch_warnings(record=True) as caught, loader:
        warnings.simplefilter("always", WorkerRestartWarning)
        for epoch in expected:
            assert_same(list(loader), epoch)
    assert len(caught) == restarts
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("deaths", "restarts"),
    [({17: "kill"}, 1), ({0: "term", 40: "exit", 41: "kill"}, 3), ({1: "kill", 2: "kill"}, 2)],
    ids=["one", "three ways", "two at once"],
)
def test_worker_that_dies_in_getitem_is_replaced(tmp_path, expected, method, deaths, restarts):
    dataset = Dying(SIZE, tmp_path, deaths)
    loader = make_loader(dataset, persistent_workers=True, multiprocessing_context=method)
    texts = run(loader, expected, restarts=restarts)
    ways = {"kill": "killed by signal SIGKILL", "term": "killed by signal SIGTERM", "exit": "exit code 7"}
    for how in deaths.values():
        assert any(ways[how] in text for text in texts)
    assert all(re.search(r"worker \d \(pid \d+\) .*max_worker_restarts=3", text) for text in texts)


def _kill_in_init(marks, worker_id):
    if worker_id == 1:
        if first_time(marks, "init"):
            die()
        (marks / "replaced").touch()
    # else the other worker may make everything before the death is noticed
    while not (marks / "replaced").exists():
        time.sleep(0.001)


def _poison(poison, marks, num_samples, worker_id):
    poison(marks, num_samples)


def places_to_die():
    """Every point and time with forks; with the fork server, whose workers die the same way, one time of each point."""
    for num_samples, point, method in product((0, 3), ("init", "slot", "pipe"), METHODS):
        is_quick = method == "fork" or num_samples == 0
        marks = () if is_quick else pytest.mark.soak
        yield pytest.param(method, point, num_samples, id=f"{num_samples}-{point}-{method}", marks=marks)


@pytest.mark.parametrize(("method", "point", "num_samples"), [*places_to_die()])
def test_worker_that_dies_anywhere_is_replaced(tmp_path, expected, method, point, num_samples):
    init = {
        "init": partial(_kill_in_init, tmp_path),
        "slot": partial(_poison, poison_slot, tmp_path, num_samples),
        "pipe": partial(_poison, poison_pipe, tmp_path, num_samples),
    }[point]
    loader = make_loader(
        Dying(SIZE, tmp_path, side=70), worker_init_fn=init, multiprocessing_context=method, persistent_workers=True
    )
    without = make_loader(Dying(SIZE, tmp_path, side=70), num_workers=0)
    run(loader, [[flat(batch) for batch in without] for _ in range(2)], restarts=1)
    assert (tmp_path / point).exists()


@pytest.mark.parametrize(("most", "deaths"), [(1, 2), (0, 1), (2, 3)])
def test_more_deaths_than_max_worker_restarts_raise(tmp_path, most, deaths):
    dataset = Dying(SIZE, tmp_path, {20 + 10 * number: "kill" for number in range(deaths)})
    loader = make_loader(dataset, shuffle=False, max_worker_restarts=most, num_workers=1)
    with pytest.raises(WorkerDiedError, match=r"SIGKILL") as raised:
        list(loader)
    assert (f"has used up max_worker_restarts={most}" in str(raised.value)) == (most > 0)


@pytest.mark.parametrize("most", [1, 3])
def test_prefetched_epoch_does_not_reset_the_restart_count(tmp_path, most):
    dataset = Waiting(SIZE, tmp_path, dict.fromkeys((9, 17, 25)[:most], "kill"), at=SIZE - 2)
    loader = make_loader(dataset, shuffle=False, num_workers=1, persistent_workers=True, max_worker_restarts=most)
    with loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WorkerRestartWarning)
        batches = iter(loader)
        for _ in range(SIZE // BATCH - 2):
            next(batches)
        assert len(caught) == most
        # the next epoch is begun, and this one is not over
        assert len(loader._worker_manager.next_epoch[-1]._in_flight) >= 1
        (tmp_path / "go").touch()
        with pytest.raises(WorkerDiedError, match=f"has used up max_worker_restarts={most}"):
            list(batches)
    assert len(caught) == most


def test_second_iterator_does_not_reset_the_restart_count(tmp_path):
    dataset = Dying(SIZE, tmp_path, {9: "kill", 25: "kill"})
    loader = make_loader(dataset, shuffle=False, num_workers=1, persistent_workers=True, max_worker_restarts=1)
    with loader:
        batches = iter(loader)
        with pytest.raises(WorkerDiedError, match="has used up max_worker_restarts=1"):
            for _ in batches:
                next(iter(loader))  # a look at another epoch


@pytest.mark.parametrize("method", METHODS)
def test_claimed_prefetched_epoch_has_all_its_restarts(tmp_path, expected, method):
    loader = make_loader(
        Dying(SIZE, tmp_path), persistent_workers=True, multiprocessing_context=method, max_worker_restarts=1
    )
    with loader:
        for number, epoch in enumerate(expected):
            assert (loader._worker_manager.next_epoch is not None) is (number > 0)
            batches = iter(loader)
            received = [flat(next(batches))]
            process = backend_of(loader).workers[0]
            process.kill()
            process.join()
            with pytest.warns(WorkerRestartWarning, match="restart 1 of max_worker_restarts=1"):
                received += [flat(batch) for batch in batches]
            assert_same(received, epoch)


def test_death_without_a_seed_raises_as_in_torch(tmp_path):
    loader = DataLoader(Dying(SIZE, tmp_path, {20: "kill"}), batch_size=BATCH, num_workers=2)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly.*SIGKILL"):
        list(loader)


@pytest.fixture(params=["SIGCHLD ignored", "another thread waits"])
def reap(request):
    """Return a function that is given the workers, whose exit codes do not reach multiprocessing."""
    if request.param == "SIGCHLD ignored":
        handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        yield lambda processes: None
        signal.signal(signal.SIGCHLD, handler)
        return
    threads = []

    def wait_for(pid):
        with contextlib.suppress(ChildProcessError):  # multiprocessing was faster
            os.waitpid(pid, 0)

    def take_exit_codes(processes):
        for process in processes:
            threads.append(threading.Thread(target=wait_for, args=(process.pid,)))
            threads[-1].start()

    yield take_exit_codes
    for thread in threads:
        thread.join(10)


def test_workers_with_lost_exit_codes_end_with_their_epoch(reap):
    loader = DataLoader(range(8), num_workers=2, seed=3)
    batches = iter(loader)
    next(batches)
    workers = batches._workers
    reap(workers)
    time.sleep(0.1)  # until the threads wait, which then are the first to learn of an end
    start = time.monotonic()
    assert len(list(batches)) == 7
    assert time.monotonic() - start < 4  # 5 to finish a sample, 1 after SIGTERM, 1 after SIGKILL
    assert not any(worker.is_alive() for worker in workers)


def test_worker_with_a_lost_exit_code_is_replaced(reap, tmp_path):
    with make_loader(Dying(SIZE, tmp_path), max_worker_restarts=1) as loader:
        batches = iter(loader)
        next(batches)
        reap(batches._workers)
        time.sleep(0.1)
        pid = batches._workers[0].pid
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([end], [], [], 10)
        os.close(end)
        start = time.monotonic()
        with pytest.warns(WorkerRestartWarning, match=r"SIGKILL|exit code 255, or an unknown one"):
            assert len(list(batches)) == SIZE // BATCH - 1
        assert time.monotonic() - start < 4
