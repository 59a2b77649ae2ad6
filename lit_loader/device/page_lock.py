"""Page-locking of memory that this process has already: worker processes' slots, registered with CUDA once."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any, Final

import torch

__all__ = ["CudaPageLock", "find_page_lock"]

_PORTABLE: Final = 1  # cudaHostRegisterPortable: page-locked for every context, not for the current one alone


class CudaPageLock:
    """Registers host memory with CUDA, so that copies out of it run beside everything else.

    A tensor in such memory says ``is_pinned()``. Where there is no memory to lock, one warning says so, no more is
    tried, and batches are used unpinned.

    Args:
        device: The device that copies out of it.

    Runs in: the process that made it, in any thread; in a fork it does nothing, since CUDA may not be touched there.
    Owns: the registrations, until `unlock`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pid = os.getpid()
        self._locked: set[int] = set()
        self._failed = False

    def lock(self, address: int, num_bytes: int) -> bool:
        """Page-lock memory; False: it could not be.

        Args:
            address: Where it begins.
            num_bytes: How much of it.
        """
        if self._failed or not self._is_usable():
            return False
        try:
            error = _cudart().cudaHostRegister(address, num_bytes, _PORTABLE)
        except (RuntimeError, AssertionError):
            # no CUDA after all: torch's own pinning, which follows, says so
            self._failed = True
            return False
        if int(error) == 0:
            self._locked.add(address)
            return True
        self._failed = True
        self._clear_error()
        warnings.warn(
            f"{num_bytes} bytes of shared memory could not be page-locked (CUDA error {int(error)}: "
            f"{_said(error)}); batches go on unpinned, which is slower to copy and otherwise the same. Raise the "
            "limit of locked memory (ulimit -l) or of the container's memory, lower prefetch_factor, or give "
            "pin_memory=False",
            stacklevel=2,
        )
        return False

    def unlock(self, address: int) -> None:
        """Give memory back that `lock` took; called before it is unmapped or moved."""
        if address not in self._locked:
            return
        self._locked.discard(address)
        if self._is_usable():
            error = _cudart().cudaHostUnregister(address)
            if int(error) != 0:
                self._clear_error()

    def _is_usable(self) -> bool:
        return os.getpid() == self._pid

    def _clear_error(self) -> None:
        """Take back the error that CUDA keeps of a refused call: the next kernel would be blamed for it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def find_page_lock(pin_memory: bool, device: torch.device | None) -> CudaPageLock | None:
    """Return what page-locks the slots of a loader's worker processes, or None if they stay as they are.

    NOTE [Whose page-locked memory]
        A slot is written again when its batch has died and every copy out of it has completed. Only of the copies that
        the loader makes itself is that known: a user may copy on any stream, and no call tells which streams read a
        piece of memory. So slots are locked where the loader moves batches to the device. Without ``device=``, batches
        are copied to memory of torch's own pinned allocator, which records the streams that its memory is used on.

    Args:
        pin_memory: The loader's; without it nothing is locked.
        device: The loader's.
    """
    if not pin_memory or device is None or device.type != "cuda":
        return None
    return CudaPageLock(device)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _said(error: Any) -> str:
    try:
        return str(_cudart().cudaGetErrorString(error))
    except (RuntimeError, TypeError):
        return "no description"
