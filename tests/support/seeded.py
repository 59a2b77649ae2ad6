"""Calls that begin with the same state of torch's generator."""

from __future__ import annotations

import torch


def seeded(seed, function, *arguments):
    """Call a function after seeding torch's generator."""
    torch.manual_seed(seed)
    return function(*arguments)
