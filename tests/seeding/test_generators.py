"""The generators that a whole process shares: seeded from keys, and restored."""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.data._utils.worker import _generate_state

from lit_loader import sample_rng
from lit_loader.seeding import (
    EpochKeys,
    RngPurpose,
    ThreadScope,
    preserved_generators,
    seed_generators,
    seed_process,
    seed_worker,
)


def draws():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def sample_draws():
    rng = sample_rng()
    return torch.rand(1, generator=rng.torch).item(), rng.numpy.random(), rng.python.random()


def test_seeding_decides_every_process_wide_generator():
    key = EpochKeys(1, 2).key(RngPurpose.SAMPLE, 3)
    seed_generators(key)
    first_draws = draws()
    draws()
    seed_generators(key)
    assert draws() == first_draws
    seed_generators(EpochKeys(1, 2).key(RngPurpose.SAMPLE, 4))
    assert all(a != b for a, b in zip(draws(), first_draws, strict=True))


def test_generators_are_restored_after_an_error():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    random.gauss(), np.random.standard_normal()  # each stores a second normal for the next call
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = draws(), random.gauss(), np.random.standard_normal()
    torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])
    with pytest.raises(KeyError), preserved_generators():
        seed_generators(EpochKeys(0, 0).key(RngPurpose.SAMPLE, 0))
        draws()
        raise KeyError
    assert (draws(), random.gauss(), np.random.standard_normal()) == expected


def test_sample_rng_depends_on_epoch_and_position_alone():
    keys = EpochKeys(0, 0)
    seed_process(keys, RngPurpose.SAMPLE, 0)
    first_draws = sample_draws()
    assert len(set(first_draws)) == 3
    assert sample_draws() != first_draws  # the streams continue
    seed_process(keys, RngPurpose.SAMPLE, 0)
    assert sample_draws() == first_draws
    seed_process(keys, RngPurpose.SAMPLE, 1)
    assert sample_draws() != first_draws
    seed_process(EpochKeys(0, 1), RngPurpose.SAMPLE, 0)
    assert sample_draws() != first_draws


def test_outside_of_a_loader_sample_rng_draws_its_seed_from_torch():
    torch.manual_seed(3)
    first_draws = sample_draws()
    assert sample_draws() != first_draws
    torch.manual_seed(3)
    assert sample_draws() == first_draws


@pytest.mark.parametrize("in_thread", [False, True])
def test_nested_samples_do_not_advance_the_streams_of_the_outer_one(in_thread):
    """A dataset may iterate a loader in a sample: the sample's later draws do not depend on it."""
    seed = ThreadScope.seed_for if in_thread else seed_process

    def sample(*, is_nested):
        seed(EpochKeys(0, 0), RngPurpose.SAMPLE, 0)
        outer_draws = [torch.rand(1).item(), sample_draws()]
        if is_nested:
            with preserved_generators():
                seed_process(EpochKeys(5, 0), RngPurpose.SAMPLE, 0)
                inner_draws = [torch.rand(1).item(), sample_draws()]
            assert all(inner != outer for inner, outer in zip(inner_draws, outer_draws, strict=True))
        return [*outer_draws, torch.rand(1).item(), sample_draws()]

    with ThreadScope(0) if in_thread else nullcontext():
        assert sample(is_nested=True) == sample(is_nested=False)


@pytest.mark.parametrize(("base", "worker"), [(0, 0), (1234567890123456, 3), (2**63 - 5, 1), (2**33, 2)])
def test_worker_is_seeded_as_in_torch(base, worker):
    assert seed_worker(base, worker) == base + worker
    worker_draws = draws()
    torch.manual_seed(base + worker)
    random.seed(base + worker)
    np.random.seed(_generate_state(base, worker))
    assert draws() == worker_draws
