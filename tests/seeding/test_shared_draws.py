"""Guarantee: a draw from a generator of the process changes its state, and the check names the generator."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import torch

from lit_loader.errors import SharedGeneratorWarning
from lit_loader.seeding import SharedDrawCheck, ThreadScope


def check(draw):
    shared_draws = SharedDrawCheck()
    draw()
    shared_draws.warn()


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
        ("torch", lambda: torch.default_generator.manual_seed(1)),
        ("torch", lambda: torch.default_generator.seed()),
    ],
)
def test_draw_from_process_wide_generator_warns_and_names_it(name, draw):
    with pytest.warns(SharedGeneratorWarning, match=rf"generator of {name} .*sample_rng.*multiprocessing"):
        check(draw)


def test_both_halves_of_a_pair_of_normals_warn():
    """The second is kept from the first, and takes no bits."""
    for draw in (random.gauss, np.random.standard_normal):
        for _ in range(2):
            with pytest.warns(SharedGeneratorWarning):
                check(draw)


def test_private_generators_do_not_warn():
    python = random.Random(1)
    numpy = np.random.default_rng(1)
    generator = torch.Generator()

    def draw():
        python.random(), numpy.random(), torch.rand(1, generator=generator), random.SystemRandom().random()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(draw)
        with ThreadScope(0):
            check(lambda: torch.rand(1))


def test_another_bit_generator_of_numpy_is_compared():
    original = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.warns(SharedGeneratorWarning, match="of numpy"):
            check(np.random.rand)
    finally:
        np.random.set_bit_generator(original)


@pytest.mark.parametrize("call", ["shared_draws._generator_states()", "generators._process_states()"])
@pytest.mark.soak
def test_reading_states_while_tensors_are_collected_does_not_deadlock(call):
    code = f"""
        import gc, threading, time
        import torch
        from lit_loader.seeding import generators, shared_draws

        class Cycle:
            def __init__(self):
                self.me, self.tensor = self, torch.zeros(1)

        def look():
            while time.monotonic() < end:
                Cycle()
                {call}

        gc.set_threshold(1)
        end = time.monotonic() + 1
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gc.isenabled()
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
