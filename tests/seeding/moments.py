"""What a thread's scope draws at a moment, and what a process draws there."""

from __future__ import annotations

import torch

from lit_loader.seeding import EpochKeys, Moment, ThreadScope

KEYS = EpochKeys(3, 1)


def seeded(position, call):
    """Return what is drawn with the default generator seeded for a position."""
    torch.default_generator.manual_seed(KEYS.key(Moment.SAMPLE, position).torch)
    return call()


def scoped(position, call, scope=None):
    """Return what is drawn at a position in a thread's scope."""
    scope = scope or ThreadScope(0)
    with scope:
        scope.aim(KEYS, Moment.SAMPLE, position)
        return call()


def several():
    return torch.cat([torch.rand(3), torch.randn(17), torch.rand(1)]).tolist()
