"""Seeded generators for transforms of batches, on the CPU and on the device, all of them restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lit_loader.seeding import EpochKeys, RngPurpose, preserved_generators, seed_process
from lit_loader.seeding.generators import context


@contextmanager
def seeded_batch(seed: int, epoch: int, batch: int, device: torch.device, *, rank: int = 0) -> Iterator[None]:
    """Seed the process-wide generators, and a device's, for one batch; restore them afterwards.

    Within the context, torch (CPU and device), numpy and random draw from a hash of the four numbers, and
    `lit_loader.sample_rng` returns generators for this batch. Schedules have the values of its epoch, and a
    `BatchChoice` is the same on all ranks.

    Args:
        seed: 64 bits that identify the stage and the loader.
        epoch: The epoch, from 0.
        batch: Number of the batch in its epoch and rank, from 0.
        device: The device whose generator is seeded, in addition to the CPU's.
        rank: The rank, which has draws of its own.
    """
    keys = EpochKeys(seed, epoch)
    generator = _default_generator(device)
    state = None if generator is None else generator.get_state()
    with preserved_generators():
        try:
            seed_process(keys, RngPurpose.BATCH, batch, rank)
            context.batch = batch
            if generator is not None:
                generator.manual_seed(keys.key(RngPurpose.BATCH, batch, rank).torch)
            yield
        finally:
            if generator is not None:
                generator.set_state(state)


def _default_generator(device: torch.device) -> Any:
    """Return an accelerator's default generator, or None for the CPU."""
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device)
    if device.type == "mps":
        return module._get_default_mps_generator()
    # Fills default_generators, which is empty before.
    module.init()
    return module.default_generators[device.index if device.index is not None else module.current_device()]
