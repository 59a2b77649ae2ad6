"""Draws for a sample in the scope of a thread, and the draws of a process for the same sample."""

from __future__ import annotations

import torch

from lit_loader.seeding import EpochKeys, RngPurpose, ThreadScope

KEYS = EpochKeys(3, 1)


def seeded(position, call):
    """Call a function with the default generator seeded for a position."""
    torch.default_generator.manual_seed(KEYS.key(RngPurpose.SAMPLE, position).torch)
    return call()


def scoped(position, call, scope=None):
    """Call a function in a thread's scope that is seeded for a position."""
    scope = scope or ThreadScope(0)
    with scope:
        scope.seed_for(KEYS, RngPurpose.SAMPLE, position)
        return call()


def several():
    return torch.cat([torch.rand(3), torch.randn(17), torch.rand(1)]).tolist()
