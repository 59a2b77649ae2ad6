"""Streams and events of an accelerator, as few of them as the copying of batches needs.

The order of events is decided in `AheadRun`; this is what it gives its orders to, so that a test may put streams
of its own in place, whose copies end when the test says so.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from lit_loader.device.choice import exact_device

__all__ = ["Backend", "Event", "StreamBackend", "find_backend"]


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def synchronize(self) -> None:
        """Wait, in this thread, until it has."""


class Backend(Protocol):
    """A device with two streams that matter: a side stream for copies, and the current one, the consumer's.

    Attributes:
        device: With its number.
    """

    device: torch.device

    def aside(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one for a while."""

    def copied(self, tensor: Tensor) -> Tensor:
        """Queue the copy of a dense CPU tensor on the current stream; return what will hold it."""

    def record(self) -> Event:
        """Mark this place in the current stream."""

    def wait(self, event: Any) -> None:
        """Let the current stream, not this thread, wait for an event."""

    def keep(self, value: Any) -> None:
        """Keep the memory of a tensor of the side stream while the current stream uses it (``record_stream``)."""

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph, in which no event may be asked or waited for."""


class StreamBackend:
    """The streams of a real accelerator.

    Args:
        device: With its number.

    Runs in: the consumer's process and thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        if device not in _side:
            _side[device] = self._module.Stream(device)
        self._aside = _side[device]

    def aside(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one for a while."""
        context: AbstractContextManager[Any] = self._module.stream(self._aside)
        return context

    def copied(self, tensor: Tensor) -> Tensor:
        """Queue the copy of a dense CPU tensor on the current stream; return what will hold it.

        From page-locked memory this returns at once; the caller keeps the source until the copy has completed.
        """
        return tensor.to(self.device, non_blocking=True)

    def record(self) -> Event:
        """Mark this place in the current stream."""
        event: Any = self._module.Event()
        event.record(self._current())
        marked: Event = event
        return marked

    def wait(self, event: Any) -> None:
        """Let the current stream, not this thread, wait for an event."""
        self._current().wait_event(event)

    def keep(self, value: Any) -> None:
        """Keep the memory of a tensor of the side stream while the current stream uses it (``record_stream``)."""
        value.record_stream(self._current())

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph, in which no event may be asked or waited for."""
        capturing = getattr(self._module, "is_current_stream_capturing", None)
        return capturing is not None and bool(capturing())

    def _current(self) -> Any:
        return self._module.current_stream(self.device)


# One side stream for each device: freed memory is used again only by the stream that it was made on.
_side: dict[torch.device, Any] = {}


def find_backend(device: torch.device) -> Backend | None:
    """Return the streams of a device; None: it has none that copies could run on beside the work.

    Args:
        device: An accelerator; without a number it is the process's current one.
    """
    module = torch.get_device_module(device)
    # non_blocking copies to MPS race with the work: github.com/pytorch/pytorch/issues/83015
    if device.type == "mps" or not all(
        hasattr(module, name) for name in ("Stream", "Event", "current_stream")
    ):
        return None
    return StreamBackend(exact_device(device))
