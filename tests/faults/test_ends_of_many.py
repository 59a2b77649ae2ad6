"""Guarantee: loaders of every backend that are made, half used and dropped, or left in odd places, leave nothing."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from lit_loader import DataLoader
from tests.support.outcomes import BACKENDS, FEW_BACKENDS
from tests.support.slot_sets import Large, is_right
from tests.support.toys import Slow

EACH = pytest.mark.parametrize("backend", FEW_BACKENDS)
BATCH_BYTES = 4 * 2 * 64 * 100 * 4


def use(draw, number):
    """Make a loader, use some of it, and leave it in one way or another."""
    workers = dict(BACKENDS[draw.choice(list(BACKENDS))])
    if workers and draw.random() < 0.5:
        workers["persistent_workers"] = True
    seed = draw.choice([None, number])
    loader = DataLoader(Large(80), batch_size=4, seed=seed, **workers)
    iterator = iter(loader)
    recent_batches = []
    for _ in range(draw.randrange(25)):
        recent_batches = [*recent_batches[-3:], next(iterator, None)]
    if draw.random() < 0.3:
        loader.close()
    elif draw.random() < 0.3:
        next(iter(loader))
    return all(batch is None or is_right(batch) for batch in recent_batches)


def belongings():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(psutil.Process().children())


def pss_bytes():
    """Return this process's share of memory without files, whose shares change with other processes."""
    num_bytes = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, amount = line.partition(":")
        num_bytes += 1024 * int(amount.split()[0]) if name in ("Pss_Anon", "Pss_Shmem") else 0
    assert num_bytes
    return num_bytes


def check_flat(count):
    """Compare the resources in use after the first half of loaders with those after the second.

    The bound on memory is exceeded if one batch of each loader stays alive. Half of it is a fair share for an allocator
    that has seen 15 loaders.
    """
    draw = random.Random(count)
    for number in range(8):
        assert use(draw, number)
    usages = []
    for half in range(2):
        for number in range(count // 2):
            assert use(draw, number)
        usages.append((belongings(), pss_bytes()))
        if half == 0:
            continue
        (first, first_pss), (second, second_pss) = usages
        assert second == first
        assert second_pss - first_pss < max(count // 2 * BATCH_BYTES, 8 << 20)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_hundred_loaders_leave_everything_flat():
    check_flat(300)


@EACH
def test_loader_is_usable_after_an_error_in_the_loop(backend):
    belongings_before = belongings()
    loader = DataLoader(Large(80), batch_size=4, seed=1, **BACKENDS[backend])
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            for batch in loader:
                assert is_right(batch)
                1 / 0
        del batch
    assert len(list(loader)) == 20
    del loader
    assert belongings() == belongings_before


@EACH
@pytest.mark.parametrize("num_taken", [0, 3, pytest.param(20, marks=pytest.mark.soak), 21])
@pytest.mark.parametrize("ending", ["drop", pytest.param("close", marks=pytest.mark.soak), "throw"])
def test_generator_over_a_loader_leaves_nothing_however_it_ends(backend, num_taken, ending):
    def batches():
        yield from DataLoader(Large(80), batch_size=4, seed=1, **BACKENDS[backend])

    belongings_before = belongings()
    generator = batches()
    taken_batches = [batch for _, batch in zip(range(num_taken), generator, strict=False)]
    assert len(taken_batches) == min(num_taken, 20)
    assert all(map(is_right, taken_batches))
    if ending == "close":
        generator.close()
    elif ending == "throw":
        with pytest.raises(KeyError):
            generator.throw(KeyError("thrown"))
    del generator
    taken_batches.clear()
    assert belongings() == belongings_before


@EACH
def test_loop_in_another_thread_is_not_affected_by_ctrl_c(backend):
    """The interrupt is the main thread's alone: the other one's batches come all the same, and it leaves nothing."""
    belongings_before = belongings()
    wrong = []
    finished = threading.Event()

    def iterate():
        try:
            loader = DataLoader(Slow(0.001, 200), batch_size=4, seed=1, **BACKENDS[backend])
            for number, batch in enumerate(loader):
                if batch.shape != (4,):
                    wrong.append(batch)
                if number == 20:
                    break
            loader.set_epoch(0)
            samples = sorted(int(sample) for batch in loader for sample in batch)
            if samples != list(range(200)):
                wrong.append(samples)
        except BaseException as error:
            wrong.append(error)
        finally:
            finished.set()

    thread = threading.Thread(target=iterate)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts = 0
    try:
        thread.start()
        while not finished.is_set():
            try:
                time.sleep(0.02)
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.signal(signal.SIGINT, handler)
    thread.join()
    assert wrong == []
    assert interrupts > 3
    del thread
    assert belongings() == belongings_before


def run_script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.soak
def test_fork_with_live_iterators_ends_cleanly(tmp_path):
    """All finalizers of the fork run, including multiprocessing's, and the parent's iterators continue."""
    process = run_script(
        tmp_path,
        """
        import os, sys
        from lit_loader import DataLoader
        from tests.support.slot_sets import Large, is_right

        ways = ({}, {"multiprocessing_context": "fork"}, {"worker_method": "thread"})
        ways = [{**way, "num_workers": 2 if way else 0} for way in ways]
        loaders = [DataLoader(Large(80), batch_size=4, seed=1, **way) for way in ways]
        iterators = [iter(loader) for loader in loaders]
        held = [next(iterator) for iterator in iterators]
        pid = os.fork()
        if pid == 0:
            for loader in loaders:
                loader.set_epoch(0)
                assert sum(map(is_right, loader)) == 20
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        for iterator, batch in zip(iterators, held):
            assert is_right(batch) and sum(map(is_right, iterator)) == 19
        sys.exit(6)
        """,
    )
    assert (process.returncode, process.stderr) == (6, "")


def test_ctrl_c_while_a_dropped_iterator_ends_its_workers_is_raised():
    """Iterators are collected then, and an error of a finalizer is only printed."""
    dataset = Slow(0.5, 64)  # workers end with the sample in hand
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        iterator = iter(DataLoader(dataset, num_workers=2, seed=1))
        next(iterator)
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            del iterator
            time.sleep(60)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, handler)
