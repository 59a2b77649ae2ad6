"""How a loader's batches are delivered: as they come, page-locked, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lit_loader.device.ahead import AheadRun
from lit_loader.device.choice import exact_device
from lit_loader.device.moving import moved
from lit_loader.device.pinning import PinnedRun, Pinner
from lit_loader.device.streams import find_backend
from lit_loader.iterator import Run

__all__ = ["PlainRun", "delivery"]


class PlainRun:
    """A pass whose batches are copied when they are asked for: the device has no streams to copy beside the work.

    Args:
        run: The pass.
        device: With its number.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device

    def next_batch(self) -> Any:
        """Return the next batch, on the device; errors are those of the pass, and of copying."""
        return moved(self._run.next_batch(), self._device)

    def poll(self) -> bool:
        """Whether `next_batch` would not wait for the pass."""
        return self._run.poll()

    def close(self) -> None:
        """Drop the pass."""
        self._run.close()


def delivery(
    *, pin_memory: bool, pin_memory_device: str, device: torch.device | None, from_slots: bool = False
) -> Callable[[Run], Run] | None:
    """Return what makes a pass deliver its batches as a loader is asked to; None: they are returned as they come.

    On the CPU nothing is copied and nothing is wrapped.

    Args:
        pin_memory: The loader's.
        pin_memory_device: The loader's.
        device: The loader's, as `checked_device` returned it.
        from_slots: Whether batches may lie in page-locked slots of worker processes.
    """
    pinner = Pinner(pin_memory, pin_memory_device)
    if device is not None and device.type != "cpu":
        backend = find_backend(device)
        if backend is not None:
            return lambda run: AheadRun(run, pinner, backend, from_slots=from_slots)
        exact = exact_device(device)
        return lambda run: PlainRun(run, exact)
    return (lambda run: PinnedRun(run, pinner)) if pinner.active else None
