"""A batch to a device: what can be copied on a side stream, and what must wait until it is asked for.

NOTE [Aside or late]
    A copy on a side stream is safe where the copied memory can be named: the source is kept until the copy has
    ended, and the device's memory is marked as used by the consumer (``record_stream``). That holds for dense CPU
    tensors, and for objects that have ``to()`` and ``record_stream()``. Anything else that has a ``to()``, sparse
    and nested tensors, tensors of another device, a batch type that hides its tensors, is moved as a whole when
    the batch is handed over, on the consumer's own stream: right, and without overlap.

NOTE [What is not moved]
    An object without a ``to()`` stays on the CPU, and one with a ``to()`` may leave a part of it there. If that lay in
    a page-locked slot, the user could copy out of it without the loader's knowledge, and the slot would be written
    again in the middle of that copy. So only the tensors in a batch's containers are moved out of the slot itself;
    every other object, and what a container carries besides its parts, is first copied to memory of its own.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor

from lit_loader.device.nesting import NO_LEAF, rebuilt
from lit_loader.device.streams import Backend, Event

__all__ = ["Moving", "moved"]


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch on a device, each leaf copied at once, on the current stream.

    Containers, named tuples, dataclasses and objects with a ``to()`` are taken as Lightning's transfer takes them.

    Args:
        batch: Any nesting; objects without ``to()`` stay as they are.
        device: Where to.
    """
    return rebuilt(batch, lambda data: _to(data, device) if _is_movable(data) else NO_LEAF, dataclasses=True)


class Moving:
    """A batch on its way: begun on the side stream, finished on the consumer's.

    Args:
        batch: The source; kept until `has_left`.
        backend: The device.
        from_slots: Whether the source may lie in page-locked slots: see NOTE [What is not moved].

    Owns: the source, and the memory on the device until it is handed over.
    """

    def __init__(self, batch: Any, backend: Backend, *, from_slots: bool = False) -> None:
        self._backend, self._from_slots = backend, from_slots
        self._source: Any = batch
        self._aside: list[Any] = []
        self._some_late = False
        self._copied: Event | None = None
        self._copies: dict[int, Any] = {}  # of what is not moved: an object that comes twice stays one

    def begin(self) -> None:
        """Queue the copies. If this fails halfway, those that were queued have ended when the error comes."""
        with self._backend.aside():
            other = self._own if self._from_slots else None
            try:
                self._result = rebuilt(self._source, self._leaf, dataclasses=True, other=other)
                self._copied = self._backend.record()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # of a device that has failed
                    self.wait_until_left()
                raise

    def _own(self, data: Any) -> Any:
        """Return a copy in memory of its own: see NOTE [What is not moved]."""
        return copy.deepcopy(data, self._copies)

    def _leaf(self, data: Any) -> Any:
        if not _is_movable(data):
            return NO_LEAF
        if isinstance(data, Tensor):
            if data.device == self._backend.device:
                return data
            if data.device.type == "cpu" and data.layout is torch.strided and not data.is_nested:
                found = self._backend.copied(data)
                self._aside.append(found)
                return found
        if self._from_slots and not isinstance(data, Tensor):
            data = self._own(data)
        if not isinstance(data, Tensor) and callable(getattr(type(data), "record_stream", None)):
            found = _to(data, self._backend.device)
            self._aside.append(found)
            return found
        self._some_late = True
        return data

    def hand_over(self) -> Any:
        """Return the batch on the device; work that is queued on the current stream from now on may use it."""
        backend = self._backend
        assert self._copied is not None
        backend.wait(self._copied)
        for value in self._aside:
            backend.keep(value)
        result, self._result, self._aside = self._result, None, []
        if self._some_late:
            result = moved(result, backend.device)
            self._copied = backend.record()  # on this stream, which waited for the other: after every copy
        return result

    @property
    def has_left(self) -> bool:
        """Whether every copy has ended, so that the source may go."""
        return self._copied is not None and self._copied.query()

    def wait_until_left(self) -> None:
        """Wait, in this thread, until every copy that was queued has ended."""
        if self._copied is None:
            with self._backend.aside():
                self._copied = self._backend.record()
        self._copied.synchronize()


def _is_movable(data: Any) -> bool:
    """Whether Lightning's transfer would move it: its class, not the object, has a ``to()``."""
    return callable(getattr(type(data), "to", None))


def _to(data: Any, device: torch.device) -> Any:
    found = data.to(device)
    return data if found is None else found  # a to() that forgot to return itself
