"""Draws of a batch's transforms: from its key alone, on every generator, and no other draws change."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_loader import BatchChoice, sample_rng
from lit_loader.loader.device import seeded, seeded_batch

CPU = torch.device("cpu")


def drawn():
    return (torch.rand(3).tolist(), np.random.rand(2).tolist(), random.random(), sample_rng().python.random())


def within(seed=1, epoch=2, batch=3, rank=0):
    with seeded_batch(seed, epoch, batch, CPU, rank=rank):
        return drawn()


def test_draws_are_those_of_the_key_whatever_was_drawn_before():
    first = within()
    torch.rand(7)
    np.random.rand(1)
    assert within() == first


@pytest.mark.parametrize("other", [{"seed": 2}, {"epoch": 3}, {"batch": 4}, {"rank": 1}])
def test_every_part_of_the_key_changes_every_draw(other):
    assert all(a != b for a, b in zip(within(), within(**other), strict=True))


def test_choice_of_a_batch_is_the_same_on_all_ranks():
    sizes = BatchChoice([320, 384, 448])
    choices_by_rank = []
    for rank in range(2):
        choices = []
        for batch in range(20):
            with seeded_batch(1, 2, batch, CPU, rank=rank):
                choices.append(sizes.current())
        choices_by_rank.append(choices)
    assert choices_by_rank[0] == choices_by_rank[1]
    assert set(choices_by_rank[0]) == {320, 384, 448}


@pytest.mark.parametrize("fails", [False, True])
def test_the_generators_of_the_process_go_on_as_if_nothing_had_been_drawn(fails):
    def state():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    initial = state()
    try:
        with seeded_batch(1, 2, 3, CPU):
            drawn()
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert state() == initial


@pytest.fixture
def cuda(monkeypatch):
    """Generators of two devices, which are CPU generators here."""
    module = SimpleNamespace(
        default_generators=(torch.Generator(), torch.Generator()), init=lambda: None, current_device=lambda: 1
    )
    monkeypatch.setattr(seeded.torch, "get_device_module", lambda device: module)
    return module.default_generators


@pytest.mark.parametrize(("name", "number"), [("cuda:0", 0), ("cuda:1", 1), ("cuda", 1)])
def test_the_generator_of_the_device_is_seeded_and_given_back(cuda, name, number):
    def on_device():
        with seeded_batch(1, 2, 3, torch.device(name)):
            return torch.rand(3, generator=cuda[number]).tolist()

    initial = [generator.get_state().tolist() for generator in cuda]
    first = on_device()
    assert [generator.get_state().tolist() for generator in cuda] == initial
    cuda[number].manual_seed(99)
    assert on_device() == first
