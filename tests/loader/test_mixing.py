"""Guarantee: the partners of a mixed sample, and all of its draws, are functions of (seed, epoch, position)."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader import DataLoader
from tests.support.partner_sets import Blend, Mixed, Plain, members_of
from tests.support.toys import plain


def mixed_set(*, shared=False, **arguments):
    """Return a dataset with two mixes: one of some samples, with partners of the order, and one with a pool."""
    pool = Blend(2, p=0.7, weights=np.arange(23), shared=shared)
    return Mixed(Blend(3, p=0.6, shared=shared), pool, dataset=Plain(shared=shared, **arguments))


def loader_of(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **arguments})


def epochs(dataset, count=2, **arguments):
    with loader_of(dataset, **arguments) as loader:
        return [[plain(batch) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        *((method, num_workers) for method in ("fork", "forkserver") for num_workers in (1, 2)),
        ("fork", 5),
        ("spawn", 2),
        *(pytest.param(method, 5, marks=pytest.mark.soak) for method in ("forkserver", "spawn")),
    ],
)
def test_worker_processes_mix_as_the_main_process(method, num_workers):
    workers = {"num_workers": num_workers, "multiprocessing_context": method, "persistent_workers": True}
    assert epochs(mixed_set(shared=True), **workers) == epochs(mixed_set(shared=True))


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_worker_threads_mix_as_the_main_process(num_workers):
    workers = {"num_workers": num_workers, "worker_method": "thread", "persistent_workers": True}
    assert epochs(mixed_set(), **workers) == epochs(mixed_set())


def test_samples_are_mixed_and_differ():
    """So that the other tests compare something."""
    members = [sample for epoch in range(2) for batch in loader_of(mixed_set()) for sample in members_of(batch)]
    assert {len(sample) for sample in members} == {1, 3, 4, 6}
    batches = [batch for epoch in epochs(mixed_set(shared=True)) for batch in epoch]
    for name in ("read", "finished"):
        draws = [tuple(draw) for batch in batches for draw in batch[name][2]]
        assert len(set(draws)) == len(draws) == 2 * 23
