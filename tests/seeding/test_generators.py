"""The generators that a whole process shares: seeded from keys, given back as they were."""

from __future__ import annotations

import random

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


def own():
    rng = sample_rng()
    return torch.rand(1, generator=rng.torch).item(), rng.numpy.random(), rng.python.random()


def test_seeding_decides_every_process_wide_generator():
    key = EpochKeys(1, 2).key(RngPurpose.SAMPLE, 3)
    with preserved_generators():
        seed_generators(key)
        first = draws()
        draws()
        seed_generators(key)
        assert draws() == first
        seed_generators(EpochKeys(1, 2).key(RngPurpose.SAMPLE, 4))
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_the_generators_are_given_back_as_they_were():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    random.gauss(), np.random.standard_normal()  # each keeps a second normal for the next call
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = draws(), random.gauss(), np.random.standard_normal()
    torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])
    with pytest.raises(KeyError), preserved_generators():
        seed_generators(EpochKeys(0, 0).key(RngPurpose.SAMPLE, 0))
        draws()
        raise KeyError
    assert (draws(), random.gauss(), np.random.standard_normal()) == expected


def test_a_sample_has_generators_of_its_own():
    keys = EpochKeys(0, 0)
    with preserved_generators():
        seed_process(keys, RngPurpose.SAMPLE, 0)
        first = own()
        assert len(set(first)) == 3
        assert own() != first  # asked again: the streams go on
        seed_process(keys, RngPurpose.SAMPLE, 0)
        assert own() == first
        seed_process(keys, RngPurpose.SAMPLE, 1)
        assert own() != first
        seed_process(EpochKeys(0, 1), RngPurpose.SAMPLE, 0)
        assert own() != first


def test_outside_of_a_loader_sample_rng_draws_its_seed_from_torch():
    torch.manual_seed(3)
    outside = own()
    assert own() != outside
    torch.manual_seed(3)
    assert own() == outside


@pytest.mark.parametrize("scoped", [False, True])
def test_samples_inside_of_a_sample_leave_its_streams_where_they_were(scoped):
    """A loader that a dataset iterates: what the sample draws after it does not depend on it."""

    def sample(nested):
        (ThreadScope.seed_for if scoped else seed_process)(EpochKeys(0, 0), RngPurpose.SAMPLE, 0)
        found = [torch.rand(1).item(), own()]
        if nested:
            with preserved_generators():
                seed_process(EpochKeys(5, 0), RngPurpose.SAMPLE, 0)
                inside = torch.rand(1).item(), own()
                assert inside[0] != found[0]
                assert inside[1] != found[1]
        return [*found, torch.rand(1).item(), own()]

    with preserved_generators():
        if scoped:
            with ThreadScope(0):
                assert sample(nested=True) == sample(nested=False)
        else:
            assert sample(nested=True) == sample(nested=False)


@pytest.mark.parametrize(("base", "worker"), [(0, 0), (1234567890123456, 3), (2**63 - 5, 1), (2**33, 2)])
def test_a_worker_is_seeded_as_torch_seeds_it(base, worker):
    with preserved_generators():
        assert seed_worker(base, worker) == base + worker
        found = draws()
        torch.manual_seed(base + worker)
        random.seed(base + worker)
        np.random.seed(_generate_state(base, worker))
        assert draws() == found
