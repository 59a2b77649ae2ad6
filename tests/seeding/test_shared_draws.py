"""Guarantee: draws from generators that threads share are pinned on certain threads only when it was them."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from lit_loader.errors import SharedGeneratorWarning
from lit_loader.seeding import preserved_generators, thread_draws
from lit_loader.seeding.thread_draws import DrawCheck


@pytest.fixture(autouse=True)
def _as_it_was():
    with preserved_generators():
        yield


class Other:
    """A thread that does what it is given, while this one waits."""

    def __enter__(self):
        self._go, self._done, self._work = threading.Event(), threading.Event(), None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        while True:
            self._go.wait()
            self._go.clear()
            if self._work is None:
                return
            self._work()
            self._done.set()

    def do(self, work):
        self._work = work
        self._go.set()
        self._done.wait()
        self._done.clear()

    def __exit__(self, *exc_info):
        self._work = None
        self._go.set()
        self._thread.join()


def is_certain(work, *others):
    """Check work of this thread, a worker as others may be; return whether the result is certain."""
    check = DrawCheck(1 + len(others), lambda: True)
    check.worker_ready()
    check._workers |= {other._thread.native_id for other in others}
    check.watch(work)
    return not check._is_open


def me():
    return {threading.get_native_id()}


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("random", random.random),
        ("random", lambda: random.shuffle([1, 2, 3])),
        ("random", lambda: random.seed(3)),
        ("numpy", lambda: np.random.rand(1)),
        ("numpy", lambda: np.random.permutation(3)),
        ("numpy", lambda: np.random.seed(3)),
        ("torch", lambda: torch.rand(1)),
    ],
)
def test_a_draw_of_this_thread_is_found_and_named(name, draw):
    assert is_certain(lambda: None)
    with pytest.warns(SharedGeneratorWarning, match=rf"generator of {name};.*sample_rng.*multiprocessing"):
        is_certain(draw)


def test_both_halves_of_a_pair_of_normals_are_found():
    """The second is kept from the first, and takes no bits."""
    for draw in (random.gauss, np.random.standard_normal):
        for _ in range(2):
            with pytest.warns(SharedGeneratorWarning):
                is_certain(draw)


def test_generators_of_the_datasets_own_are_no_draws():
    own, numbers, generator = random.Random(1), np.random.default_rng(1), torch.Generator()

    def draw():
        own.random(), numbers.random(), torch.rand(1, generator=generator), random.SystemRandom().random()

    assert is_certain(draw)


def test_a_draw_of_another_thread_is_not_pinned_on_this_one():
    with Other() as other:
        for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
            for _ in range(200):
                assert not is_certain(partial(other.do, draw))  # it may have been this one
            with pytest.warns(SharedGeneratorWarning):
                is_certain(partial(other.do, draw), other)


def test_without_the_clocks_it_would_be_pinned_on_this_one(monkeypatch):
    """The mechanism disabled."""
    monkeypatch.setattr(thread_draws, "_cpu_times_of_others", lambda threads: {})
    with Other() as other, pytest.warns(SharedGeneratorWarning):
        is_certain(partial(other.do, random.random))


def test_a_thread_that_rests_has_the_same_time_and_one_that_ran_has_not():
    with Other() as other:
        other.do(lambda: None)
        number = other._thread.native_id
        changed = 0
        for _ in range(50):
            before = thread_draws._cpu_times_of_others(me())[number]
            other.do(lambda: None)
            changed += thread_draws._cpu_times_of_others(me())[number] > before
        # In a virtual machine the kernel takes stolen time off a thread's, sometimes down to nothing.
        assert changed >= 45
        assert thread_draws._cpu_times_of_others({*me(), number}).keys() == thread_draws._cpu_times_of_others(
            me()
        ).keys() - {number}


def test_a_thread_that_python_does_not_know_makes_it_uncertain():
    import _thread

    started, over = threading.Event(), threading.Event()
    number = _thread.start_new_thread(lambda: (started.set(), over.wait()), ())
    started.wait()
    assert not is_certain(random.random)
    over.set()
    while (
        number in sys._current_frames()
    ):  # nobody can join it, and it would make the next test uncertain too
        time.sleep(0.001)


def test_another_bit_generator_of_numpys_is_compared_too():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        assert is_certain(lambda: None)
        with pytest.warns(SharedGeneratorWarning, match="of numpy"):
            is_certain(np.random.rand)
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.parametrize(
    "looks",
    ["thread_draws._cpu_times_of_others(set())", "thread_draws._states()", "generators._process_states()"],
)
@pytest.mark.soak
def test_looking_at_threads_and_generators_while_tensors_are_collected_ends(looks):
    code = f"""
        import gc, threading, time
        import torch
        from lit_loader.seeding import generators, thread_draws

        class Cycle:
            def __init__(self):
                self.me, self.tensor = self, torch.zeros(1)

        def look():
            while time.monotonic() < end:
                Cycle()
                {looks}

        gc.set_threshold(1)
        end = time.monotonic() + 1
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gc.isenabled()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
