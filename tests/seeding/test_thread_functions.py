"""Guarantee: in a worker thread torch's functions about its default generator speak of the thread's own."""

from __future__ import annotations

import pytest
import torch

from lit_loader.seeding import functions_answer_for_threads, thread_scope
from tests.seeding.scoped_draws import scoped, seeded


@pytest.fixture(autouse=True)
def _in_a_worker_thread():
    with functions_answer_for_threads():
        yield


def reseeding():
    first = torch.rand(1).item()
    torch.manual_seed(7)
    seeded_again = torch.rand(1).item(), torch.initial_seed()
    state = torch.get_rng_state()
    drawn = torch.rand(1).item()
    torch.set_rng_state(new_state=state)
    assert torch.rand(1).item() == drawn
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed=8)
        forked = torch.rand(1).item()
    return first, seeded_again, forked, torch.rand(1).item()


def test_a_sample_may_seed_and_fork_torchs_generator_and_moves_only_its_own():
    expected = seeded(0, reseeding)
    before = torch.manual_seed(5).get_state()
    assert scoped(0, reseeding) == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_seeding_at_random_in_a_sample_moves_only_its_own():
    before = torch.manual_seed(5).get_state()
    a, b = (scoped(0, lambda: (torch.seed(), torch.rand(1).item())) for _ in range(2))
    assert a != b
    assert torch.equal(torch.get_rng_state(), before)


def test_outside_of_worker_threads_torchs_functions_do_what_they_did():
    generator = torch.manual_seed(seed=12)
    assert generator is torch.default_generator
    assert torch.initial_seed() == torch.random.initial_seed() == 12
    state = torch.get_rng_state()
    drawn = torch.rand(1)
    torch.set_rng_state(state)
    assert torch.rand(1) == drawn
    assert torch.seed() == torch.initial_seed() != 12
    with pytest.raises(TypeError):
        torch.manual_seed()


def test_a_seed_of_a_sample_does_not_reach_the_devices_of_the_process(monkeypatch):
    reached = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reached.append)
    scoped(0, lambda: torch.manual_seed(3))
    assert reached == []
    torch.manual_seed(4)
    assert reached == [4]


def test_without_the_exchange_a_seed_would_move_the_process():
    """The mechanism disabled."""
    torch.random.manual_seed.__code__ = thread_scope._original["manual_seed"].__code__
    before = torch.manual_seed(5).get_state()
    scoped(0, lambda: torch.manual_seed(3))
    assert not torch.equal(torch.get_rng_state(), before)
