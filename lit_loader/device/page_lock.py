"""Page-locking of memory that this process has already: worker processes' slots, registered with CUDA once."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from lit_loader.device.choice import exact_device
from lit_loader.device.streams import side_streams

__all__ = ["CudaPageLock", "find_page_lock"]

_PORTABLE: Final = 1  # cudaHostRegisterPortable: page-locked for every context, not for the current one alone


class CudaPageLock:
    """Registers host memory with CUDA, so that copies out of it run beside everything else.

    A tensor in such memory says ``is_pinned()``. Where there is no memory to lock, one warning says so, no more is
    tried, and batches are used unpinned.

    Args:
        device: Whose streams `fence` looks at; None or without a number: the process's current one.

    Runs in: the process that made it, in any thread; in a fork it does nothing, since CUDA may not be touched there.
    Owns: the registrations, until `unlock`.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = torch.device("cuda") if device is None else device
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

    def fence(self) -> Callable[[], bool] | None:
        """Return a test whether every copy out of locked memory that was queued until now has completed.

        It looks at this thread's current stream, the default one and the side stream. A copy that was queued on any
        other stream is waited for by whoever queued it, before the batch dies. None: there is nothing to wait for.
        """
        if not self._locked or not self._is_usable():
            return None
        return _Fence(self._device)

    def _is_usable(self) -> bool:
        return os.getpid() == self._pid

    def _clear_error(self) -> None:
        """Take back the error that CUDA keeps of a refused call: the next kernel would be blamed for it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


class _Fence:
    """Whether the device has come to where its streams were when this was made.

    While a CUDA graph is captured no event can be asked, and none be recorded that is not the graph's; then it is
    made up for later, and the answer is no until then.
    """

    def __init__(self, device: torch.device) -> None:
        self._events: list[Any] | None = None
        self._streams: list[Any] = []
        self._broken = False
        try:
            device = exact_device(device)
            current, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
            self._streams = list(dict.fromkeys([current, default, *side_streams(device)]))
            self._mark()
        except RuntimeError:  # the device has failed, or goes down with the interpreter
            self._broken = True

    def _mark(self) -> bool:
        """Record the events, if they can be recorded now."""
        if self._events is None and not torch.cuda.is_current_stream_capturing():
            self._events = []
            for stream in self._streams:
                event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(stream)
                self._events.append(event)
        return self._events is not None

    def __call__(self) -> bool:
        """Return whether it has; never again for a device that has failed."""
        try:
            if self._broken or not self._mark() or torch.cuda.is_current_stream_capturing():
                return False
            return all(event.query() for event in self._events or ())
        except RuntimeError:
            self._broken = True
            return False


def find_page_lock(pin_memory: bool, device: torch.device | None) -> CudaPageLock | None:
    """Return what page-locks the slots of a loader's worker processes; None: they stay as they are.

    Args:
        pin_memory: The loader's; without it nothing is locked.
        device: The loader's.
    """
    if not pin_memory or not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "cuda":
        return None
    return CudaPageLock(device if device is not None and device.type == "cuda" else None)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _said(error: Any) -> str:
    try:
        return str(_cudart().cudaGetErrorString(error))
    except (RuntimeError, TypeError):
        return "no description"
