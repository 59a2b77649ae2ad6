"""Page-locking of existing memory: worker processes' slots, which are registered with CUDA once.

NOTE [Which memory is page-locked]
    A slot may be written again when its batch is gone and every copy from it has completed. The loader can check that
    only for its own copies: a user may copy on any stream, and CUDA cannot list the streams that read some memory. So
    slots are locked only if the loader moves batches to the device. Without ``device=``, batches are copied to memory
    of torch's own pinned allocator, which records the streams on which its memory is used.

NOTE [While a graph is captured]
    Registering memory breaks off the capture of a CUDA graph, and a loader may be closed during a capture, by the user
    or by the garbage collector. So while the current stream captures, nothing is registered or unregistered: `lock` and
    `unlock` return False, and the caller tries again later. torch does not tell whether another thread captures. Then
    CUDA refuses the call, which also counts as "not now".
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

# cudaHostRegisterPortable: page-locked for every context, not for the current one alone
_PORTABLE: Final = 1
# cudaErrorStreamCaptureUnsupported: another thread captures a graph
_CAPTURE_UNSUPPORTED: Final = 900
# cudaErrorHostMemoryNotRegistered
_NOT_REGISTERED: Final = 713


class CudaPageLock:
    """Registers host memory with CUDA, so that copies from it run asynchronously.

    ``is_pinned()`` is true for a tensor in such memory. If memory cannot be locked, there is one warning, no further
    try, and batches are copied to other page-locked memory before they are copied to the device (`find_pin`). See also
    NOTE [While a graph is captured].

    Args:
        device: The device that copies from it.

    Runs in: the process that created it, in any thread; in a fork it does nothing, since CUDA may not be used there.
    Owns: the registrations, until `unlock`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pid = os.getpid()
        self._failed = False

    def lock(self, address: int, num_bytes: int) -> bool:
        """Page-lock ``num_bytes`` of memory at an address; return False if that is not possible now."""
        if self._failed or os.getpid() != self._pid or _is_capturing():
            return False
        with self._on_device() as cudart:
            error = cudart.cudaHostRegister(address, num_bytes, _PORTABLE)
        if int(error) == 0:
            return True
        self._clear_error()
        if int(error) == _CAPTURE_UNSUPPORTED:
            return False
        self._failed = True
        reason = f"CUDA error {int(error)}: {_cudart().cudaGetErrorString(error)}"
        warnings.warn(
            f"{num_bytes} bytes of shared memory could not be page-locked ({reason}); batches are copied to other "
            "page-locked memory first, which is slower; raise ulimit -l, or pass pin_memory=False",
            stacklevel=2,
        )
        return False

    def unlock(self, address: int) -> bool:
        """Undo a `lock` that returned True or was interrupted, before the memory is unmapped or moved.

        Returns:
            False if the memory may still be registered: it has to stay mapped then.
        """
        if os.getpid() != self._pid:
            # Nothing is registered for a fork.
            return True
        if _is_capturing():
            return False
        with self._on_device() as cudart:
            error = int(cudart.cudaHostUnregister(address))
        if error == 0:
            return True
        self._clear_error()
        # Ctrl-C may have arrived before it was registered, or after it was unregistered.
        return error == _NOT_REGISTERED

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[Any]:
        """Make the device the current one, because CUDA would create a context on any other; return the runtime."""
        # This initialises CUDA.
        cudart = _cudart()
        with torch.cuda.device(self._device) if _is_initialized() else contextlib.nullcontext():
            yield cudart

    def _clear_error(self) -> None:
        """Clear the error that CUDA keeps after a refused call, because the next kernel launch would raise it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def find_page_lock(pin_memory: bool, device: torch.device | None) -> CudaPageLock | None:
    """Return the page lock of a loader's slots, or None if they are not page-locked.

    See NOTE [Which memory is page-locked].

    Args:
        pin_memory: The loader's ``pin_memory``.
        device: The loader's device.
    """
    return CudaPageLock(device) if pin_memory and device is not None and device.type == "cuda" else None


def _is_capturing() -> bool:
    """Return True if the current stream captures a CUDA graph."""
    return _is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
