"""Hosts {1, 2, 3}, workers {0, 2}, resumed in mid-epoch on another number: the same global stream, bit for bit.

A host has one rank here. ``tests/soak/test_hosts.py`` runs the same on real process groups.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product

import pytest
import torch

from tests.support.resume_sets import SIZE, assert_same, epochs, make, resumed, stopped

GLOBAL_BATCH = 6
HOSTS = (1, 2, 3)
NAMES = ["plain", "weighted", "class-balanced", "grouped", "weighted grouped"]
CASES = [("plain", (1, 0), (2, 2)), ("class-balanced", (2, 2), (3, 0)), ("plain", (3, 0), (1, 2))]
ALL_CASES = [
    (name, saving, loading)
    for name in NAMES
    for saving, loading in product(product(HOSTS, (0, 2)), repeat=2)
    if saving[0] != loading[0]
]


def loaders_of_hosts(name, num_hosts, num_workers):
    return [
        make(
            name,
            (num_workers, "fork"),
            batch_size=GLOBAL_BATCH // num_hosts,
            rank=rank,
            world_size=num_hosts,
            drop_last=True,
        )
        for rank in range(num_hosts)
    ]


def global_batches(batches_of_ranks):
    """Return the global batches of each epoch: the batches of all ranks one after the other."""
    return [
        [torch.cat(batches) for batches in zip(*ranks, strict=True)] for ranks in zip(*batches_of_ranks, strict=True)
    ]


def check(name, saving, loading):
    with ExitStack() as stack:
        reference, *_ = loaders_of_hosts(name, 1, 0)
        expected = epochs(reference, 2)
        first_loaders = [stack.enter_context(loader) for loader in loaders_of_hosts(name, *saving)]
        states = [stopped(loader, 0, 2) for loader in first_loaders]
        assert all(state == states[0] for state in states)
        second_loaders = [stack.enter_context(loader) for loader in loaders_of_hosts(name, *loading)]
        actual = global_batches([resumed(loader, states[0], 2) for loader in second_loaders])
        assert_same(actual, [expected[0][2:], expected[1]])
        # Without resuming, the hosts that saved have the epoch of one host.
        actual = global_batches([epochs(loader, 1) for loader in loaders_of_hosts(name, saving[0], 0)])
        assert_same(actual, expected[:1])


@pytest.mark.parametrize(("name", "saving", "loading"), CASES)
def test_another_number_of_hosts_and_workers_continues_the_same_global_stream(name, saving, loading):
    check(name, saving, loading)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "saving", "loading"), ALL_CASES)
def test_every_number_of_hosts_and_workers_continues_the_same_global_stream(name, saving, loading):
    check(name, saving, loading)


@pytest.mark.parametrize("num_hosts", HOSTS)
def test_each_position_is_on_exactly_one_host(num_hosts):
    loaders = loaders_of_hosts("plain", num_hosts, 0)
    samples = torch.cat([torch.cat(batches) for loader in loaders for batches in epochs(loader, 1)])
    indices = samples[:, 0].int().tolist()
    num_positions = SIZE // GLOBAL_BATCH * GLOBAL_BATCH
    assert len(indices) == len(set(indices)) == num_positions
