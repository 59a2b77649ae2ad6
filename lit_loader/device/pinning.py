"""Page-locked copies of batches, as torch's loader makes them; memory that is page-locked already is not copied."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from lit_loader.device.nesting import NO_LEAF, rebuilt
from lit_loader.iterator import Run

__all__ = ["PinnedRun", "Pinner", "is_lack_of_memory"]


class Pinner:
    """Copies the tensors of a batch into page-locked memory, as torch's loader does.

    Off, with torch's warnings, when no accelerator is there or on MPS. Custom batch types are pinned by
    their own ``pin_memory()`` method. A tensor in memory that is page-locked, as the slots of worker processes are
    (`CudaPageLock`), is left where it is. Unlike in torch, tv_tensors keep their class. When there is no memory to
    lock, one warning says so and batches go on unpinned.

    Args:
        wanted: The loader's ``pin_memory``.
        device: The loader's ``pin_memory_device``, which torch has deprecated and ignores.

    Attributes:
        active: Whether batches are pinned.
    """

    def __init__(self, wanted: bool, device: str) -> None:
        self.active = False
        if not wanted:
            return
        if device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device, "
                f"ignore pin_memory_device='{device}'.",
                stacklevel=5,
            )
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is None:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
                "won't be used.",
                stacklevel=5,
            )
        elif accelerator.type == "mps":
            warnings.warn(
                "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't "
                "be used.",
                stacklevel=5,
            )
        else:
            self.active = True

    def __call__(self, batch: Any) -> Any:
        """Return the batch, pinned if pinning is on."""
        if not self.active:
            return batch
        try:
            return rebuilt(batch, _pinned)
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            self.active = False
            warnings.warn(
                f"a batch could not be copied to page-locked memory ({_first_line(error)}); this epoch goes on "
                "unpinned, which is slower and otherwise the same. Raise the memory limit of the process or "
                "container, lower prefetch_factor or batch_size, or give pin_memory=False",
                stacklevel=5,
            )
            return batch


class PinnedRun:
    """A pass whose batches are pinned on delivery.

    Args:
        run: The pass.
        pinner: Pins.
    """

    def __init__(self, run: Run, pinner: Pinner) -> None:
        self._run, self._pinner = run, pinner

    def next_batch(self) -> Any:
        """Return the next batch, pinned; errors are those of the pass, and of pinning."""
        return self._pinner(self._run.next_batch())

    def poll(self) -> bool:
        """Whether `next_batch` would not wait."""
        return self._run.poll()

    def close(self) -> None:
        """Drop the pass."""
        self._run.close()


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, or memory that may be locked, has run out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(said in text for said in _SAID_OF_MEMORY)


_SAID_OF_MEMORY = ("out of memory", "cannot allocate memory", "can't allocate memory", "memoryallocation")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def _pinned(data: Any) -> Any:
    if isinstance(data, Tensor):
        return _with_class_of(data, data.pin_memory())
    return data.pin_memory() if hasattr(data, "pin_memory") else NO_LEAF


def _with_class_of(like: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor as the tv_tensor that another one is: torch's operators give plain ones."""
    if type(tensor) is type(like):
        return tensor
    tv_tensors = sys.modules.get("torchvision.tv_tensors")  # without it there are none, and it takes seconds
    if tv_tensors is None or not isinstance(like, tv_tensors.TVTensor):
        return tensor
    wrapped: Tensor = tv_tensors.wrap(tensor, like=like)
    return wrapped
