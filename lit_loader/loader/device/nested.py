"""Nested batches: page-locking of their tensors, and a plain copy to a device.

Containers are visited as in torch's page-locking and Lightning's transfer: mappings, named tuples, tuples and other
sequences keep their type and their further attributes where possible. Lightning also visits dataclasses.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

MapFn: TypeAlias = Callable[[Any], Any]

NO_LEAF: Final = object()
"""What ``leaf`` returns for an object that is not a leaf, so that its parts are visited, if it has any."""


def map_nested(data: Any, leaf: MapFn, *, dataclasses: bool = True, other: MapFn | None = None) -> Any:
    """Return nested data with every leaf replaced.

    Args:
        data: Any nesting of containers.
        leaf: Returns what replaces an object, or `NO_LEAF`. It is called with containers too, before their parts.
        dataclasses: True to visit the fields of dataclasses; the dataclass is copied shallowly.
        other: Returns what replaces an object that is neither a leaf nor a container, and each attribute of a container
            that is not one of its parts; or None if those are kept.
    """
    replaced = leaf(data)
    if replaced is not NO_LEAF:
        return replaced
    if isinstance(data, str | bytes):  # both are sequences
        return data
    visit = partial(map_nested, leaf=leaf, dataclasses=dataclasses, other=other)
    if isinstance(data, Mapping):
        return _with_parts(data, {key: visit(part) for key, part in data.items()}, other)
    if isinstance(data, Sequence):
        return _with_parts(data, [visit(part) for part in data], other)
    if dataclasses and is_dataclass(data) and not isinstance(data, type):
        clone = _shallow_copy(data, other)
        for field in fields(data):
            if hasattr(data, field.name):
                # A frozen dataclass refuses plain setattr. The clone is still private to this function.
                object.__setattr__(clone, field.name, visit(getattr(data, field.name)))
        return clone
    return data if other is None else other(data)


def _with_parts(data: Any, parts: Any, other: Callable[[Any], Any] | None) -> Any:
    """Return a container like ``data`` with other parts, or the plain dict or list of them if its type allows none."""
    if isinstance(data, tuple):
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    try:
        if not isinstance(data, MutableMapping | MutableSequence):
            return type(data)(parts)
        # A copy, since the constructor of the container's class may take other arguments.
        clone = _shallow_copy(data, other)
        if isinstance(clone, MutableMapping):
            clone.update(parts)
        else:
            for index, part in enumerate(parts):
                clone[index] = part
        return clone
    except TypeError:
        # A range, for example, or a mapping that cannot be copied.
        return parts


def _shallow_copy(data: Any, other: Callable[[Any], Any] | None) -> Any:
    clone = copy.copy(data)
    if other is not None:
        for name, value in list(getattr(clone, "__dict__", {}).items()):
            object.__setattr__(clone, name, other(value))
    return clone


def find_pin(pin_memory: bool, pin_memory_device: str) -> Callable[[Any], Any] | None:
    """Return the function that copies the tensors of a batch into page-locked memory, as torch's loader does.

    Custom batch types are pinned by their own ``pin_memory()`` method. A tensor in memory that is page-locked, as the
    slots of worker processes are (`CudaPageLock`), is left where it is. Unlike in torch, tv_tensors keep their class.

    Args:
        pin_memory: The loader's ``pin_memory``.
        pin_memory_device: The loader's ``pin_memory_device``, which torch has deprecated and ignores.

    Returns:
        The function, or None, with torch's warnings, if no accelerator is available or on MPS.
    """
    if not pin_memory:
        return None
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device, "
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=5,
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        unsupported = "is set as true but no accelerator is found, then"
    elif accelerator.type == "mps":
        unsupported = "is set as true but not supported on MPS now,"
    else:
        return partial(map_nested, leaf=_pinned, dataclasses=False)
    warnings.warn(f"'pin_memory' argument {unsupported} device pinned memory won't be used.", stacklevel=5)
    return None


def _pinned(data: Any) -> Any:
    if not isinstance(data, Tensor):
        return data.pin_memory() if hasattr(data, "pin_memory") else NO_LEAF
    pinned = data.pin_memory()
    if type(pinned) is not type(data):
        # torch's operators return plain tensors for tv_tensors. An import of the module would take seconds, and no
        # tv_tensor can exist before it is imported.
        tv_tensors = sys.modules.get("torchvision.tv_tensors")
        if tv_tensors is not None and isinstance(data, tv_tensors.TVTensor):
            return tv_tensors.wrap(pinned, like=data)
    return pinned


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch on a device, each leaf copied at once, on the current stream.

    Containers, named tuples, dataclasses and objects with a ``to()`` are moved as Lightning's transfer moves them.

    Args:
        batch: Any nesting; objects without ``to()`` are returned unchanged.
        device: The target device.
    """

    def leaf(data: Any) -> Any:
        if not has_to(data):
            return NO_LEAF
        result = data.to(device)
        # Lightning also accepts a to() that returns nothing.
        return data if result is None else result

    return map_nested(batch, leaf)


def has_to(data: Any) -> bool:
    """Return True if Lightning's transfer would move an object: its class, not only the object, has a ``to()``."""
    return callable(getattr(type(data), "to", None))
