"""Everything that touches an accelerator: page-locked memory for batches on their way to it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory

__all__ = ["Pinner"]


class Pinner:
    """Copies the tensors of a batch into page-locked memory, as torch's loader does.

    Off, with torch's warnings, when no accelerator is there or on MPS. Custom batch types are pinned by
    their own ``pin_memory()`` method.

    Args:
        wanted: The loader's ``pin_memory``.
        device: The loader's ``pin_memory_device``, which torch has deprecated and ignores.
    """

    def __init__(self, wanted: bool, device: str) -> None:
        self._device: str | None = None
        if not wanted:
            return
        if device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device, "
                f"ignore pin_memory_device='{device}'.",
                stacklevel=4,
            )
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is None:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
                "won't be used.",
                stacklevel=4,
            )
        elif accelerator.type == "mps":
            warnings.warn(
                "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't "
                "be used.",
                stacklevel=4,
            )
        else:
            self._device = accelerator.type

    def __call__(self, batch: Any) -> Any:
        """Return the batch, pinned if pinning is on."""
        if self._device is None:
            return batch
        pinned: Any = torch_pin_memory(batch, self._device)  # type: ignore[no-untyped-call]
        return pinned
