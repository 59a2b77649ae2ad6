"""What a thread's scope draws for a sample, and what a process draws for it."""

from __future__ import annotations

import torch

from lit_loader.seeding import EpochKeys, RngPurpose, ThreadScope

KEYS = EpochKeys(3, 1)


def seeded(position, call):
    """Return what is drawn with the default generator seeded for a position."""
    torch.default_generator.manual_seed(KEYS.key(RngPurpose.SAMPLE, position).torch)
    return call()


def scoped(position, call, scope=None):
    """Return what is drawn at a position in a thread's scope."""
    scope = scope or ThreadScope(0)
    with scope:
        scope.seed_for(KEYS, RngPurpose.SAMPLE, position)
        return call()


def several():
    return torch.cat([torch.rand(3), torch.randn(17), torch.rand(1)]).tolist()
