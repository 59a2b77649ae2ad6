"""Which device batches go to: checked when it is given, made exact when a pass begins."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["checked_device", "exact_device"]


def checked_device(device: Any) -> torch.device | None:
    """Return a loader's ``device``; None: batches stay where they were made.

    Raises:
        TypeError: If it is neither a text nor a device.
        ValueError: If there is no such device here.
    """
    if device is None:
        return None
    if not isinstance(device, str | torch.device):
        raise TypeError(
            f"device={device!r} should be a str, a torch.device or None, got {type(device).__name__}"
        )
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r} is no name of a device; give 'cpu', 'cuda', 'cuda:1', ... or None"
        ) from error
    if found.type == "cpu":
        return found
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != found.type:
        here = "no accelerator" if accelerator is None else f"the accelerator {accelerator.type!r}"
        raise ValueError(
            f"device={str(found)!r} is not available: torch finds {here} here; leave device= out, or give one "
            "that is"
        )
    count = torch.accelerator.device_count()
    if found.index is not None and found.index >= count:
        raise ValueError(
            f"device={str(found)!r} is not available: there are {count} of this kind, numbered from 0"
        )
    return found


def exact_device(device: torch.device) -> torch.device:
    """Return a device with its number: a process's current one where none was given."""
    number: int | None = device.index  # torch's own annotation knows no device without
    if device.type == "cpu" or number is not None:
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())
