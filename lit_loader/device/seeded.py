"""Draws of one batch's transforms: from a key, on the CPU and on the device, and nobody else's draws are moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lit_loader.seeding import EpochKeys, Moment, preserved_generators, seed_process

__all__ = ["seeded_batch"]


@contextmanager
def seeded_batch(seed: int, epoch: int, batch: int, device: torch.device) -> Iterator[None]:
    """Seed the process-wide generators, and a device's, for one batch; then give them back as they were.

    Within, torch (CPU and device), numpy and random draw from a hash of the three numbers, and
    `lit_loader.sample_rng` gives generators of this batch.

    Args:
        seed: 64 bits that name the stage, the loader and the rank.
        epoch: From 0.
        batch: Number of the batch in its epoch and rank, from 0.
        device: Whose generator is seeded beside those of the CPU.
    """
    keys = EpochKeys(seed, epoch)
    generator = _generator_of(device)
    state = None if generator is None else generator.get_state()
    with preserved_generators():
        try:
            seed_process(keys, Moment.BATCH, batch)
            if generator is not None:
                generator.manual_seed(keys.key(Moment.BATCH, batch).torch)
            yield
        finally:
            if generator is not None:
                generator.set_state(state)


def _generator_of(device: torch.device) -> Any:
    """Return an accelerator's default generator, as far as torch gives it; None: it is the CPU's."""
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device)
    if device.type == "mps":
        return module._get_default_mps_generator()
    if not hasattr(module, "default_generators"):
        return _GeneratorByName(module, device)
    module.init()  # before it there are none
    return module.default_generators[device.index if device.index is not None else module.current_device()]


class _GeneratorByName:
    """The generator of a device whose module has functions for it and no object."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self._device)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state, self._device)

    def manual_seed(self, seed: int) -> None:
        self._module.manual_seed(seed)
