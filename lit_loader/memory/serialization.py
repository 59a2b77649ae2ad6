"""Serialization of batches: pickle protocol 5, with the bytes of tensors and arrays out of band.

A CPU tensor is sent as its own bytes, without the rest of its storage and without a descriptor. The receiver gets a
view of the memory that holds the bytes: a slot of shared memory, or a buffer that was read from the pipe. Other tensors
(sparse, quantized, on a device, ...) are pickled as torch pickles them.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Buffer: TypeAlias = bytes | bytearray | memoryview
Places: TypeAlias = list[tuple[int, int]]
_Details: TypeAlias = tuple[tuple[int, ...], type[torch.Tensor], dict[str, Any]]  # strides, type, attributes

_PLACE = struct.Struct("<qQ")
_SMALL_BYTES = 4096
_NUMPY_DTYPES = frozenset(
    torch.from_numpy(np.empty(0, name)).dtype
    for name in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
)


class RebuildError(pickle.UnpicklingError):
    """An object that cannot be unpickled in the process that received it."""


def encode(data: Any, name: Callable[[memoryview], tuple[int, int] | None] | None = None) -> list[Buffer]:
    """Serialize an object into buffers: the pickle, a table of the out-of-band buffers, and those not in a slot.

    Args:
        data: Any object.
        name: Function that returns offset and length of a buffer's bytes in a slot, or None if they are not in one.

    Raises:
        Exception: Whatever pickling ``data`` raises.
    """
    out_of_band: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=out_of_band.append).dump(data)
    table = []
    piped: list[Buffer] = []
    for buffer in out_of_band:
        raw = buffer.raw()
        place = None if name is None else name(raw)
        # Offset -1: the bytes follow in the pipe.
        table.append(_PLACE.pack(*(place or (-1, raw.nbytes))))
        if place is None:
            piped.append(raw)
    # Not getbuffer(): Python 3.13 reports a stream that is collected before its view.
    return [stream.getvalue(), b"".join(table), *piped]


def decode(buffers: Sequence[Buffer], read: Callable[[Places], Sequence[Any]] | None = None) -> Any:
    """Rebuild an object from the buffers of `encode`; its tensors and arrays are views of them, or of the slot.

    Only for buffers from lit_loader's own worker processes: they are unpickled without a check.

    Args:
        buffers: The return value of `encode`.
        read: Function that returns the bytes at places in the slot (offset, length), or None without a slot.

    Raises:
        RebuildError: If unpickling raises.
    """
    places = list(_PLACE.iter_unpack(buffers[1]))
    slot_places = [(offset, length) for offset, length in places if offset >= 0]
    in_slot = iter(read(slot_places) if read is not None and slot_places else ())
    piped = iter(buffers[2:])
    out_of_band = [next(piped if offset < 0 else in_slot) for offset, _ in places]
    try:
        return pickle.loads(buffers[0], buffers=out_of_band)
    except MemoryError:
        raise
    except Exception as error:
        raise RebuildError(f"{type(error).__name__}: {error}") from error


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # torch pickles a storage as a copy made by torch.save; as a tensor its bytes are sent out of band.
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(obj),)
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        if _is_plain(obj):
            return _reduce_tensor(obj)
        if obj.requires_grad and not obj.is_leaf:
            raise RuntimeError(
                f"a tensor of shape {tuple(obj.shape)} in the batch was computed with gradients (it requires grad "
                "and is not a leaf), and its graph cannot leave the worker process; return tensor.detach()"
            )
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is fully described by bytes, dtype and strides, and ``__dict__`` for a subclass."""
    kind = type(tensor)
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.requires_grad
        and kind.__reduce_ex__ is torch.Tensor.__reduce_ex__
        and kind not in copyreg.dispatch_table
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    kind = type(tensor)
    is_simple = kind is torch.Tensor and not tensor.__dict__
    if is_simple and tensor.is_contiguous() and tensor.dtype in _NUMPY_DTYPES:
        # A fast path that serves most tensors: three times as fast as the general one.
        array: Any = tensor.numpy()
        return _rebuild_tensor, (_raw(array), tensor.dtype, array.shape)
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
        # A dense permuted tensor (channels_last) keeps its strides: its bytes are sent in memory order.
        order = sorted(range(plain.ndim), key=plain.stride, reverse=True)
        if not plain.permute(order).is_contiguous():
            plain = plain.contiguous()
        array = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    details = plain.stride(), kind, dict(tensor.__dict__)
    return _rebuild_tensor, (_raw(array), plain.dtype, tuple(plain.shape), details)


def _raw(array: Any) -> bytes | pickle.PickleBuffer:
    """Return an array's bytes: copied into the pickle if small, which is cheaper than an out-of-band buffer."""
    return array.tobytes() if array.nbytes <= _SMALL_BYTES else pickle.PickleBuffer(array)


def _rebuild_tensor(
    raw: Any, dtype: torch.dtype, shape: tuple[int, ...], details: _Details | None = None
) -> torch.Tensor:
    if not len(raw):
        # torch.frombuffer refuses an empty buffer.
        tensor = torch.empty(shape, dtype=dtype)
    else:
        # A tensor has to be writable, and bytes are not.
        memory = bytearray(raw) if isinstance(raw, bytes) else raw
        tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
    if details is not None:
        strides, kind, attributes = details
        tensor = tensor.as_strided(shape, strides).as_subclass(kind)
        tensor.__dict__.update(attributes)
    return tensor


def describe_unsendable(data: Any, path: str = "") -> str:
    """Return path and type of the innermost part of an object that cannot be pickled.

    Args:
        data: The object, or a part of it.
        path: Path of ``data`` within the object.

    Returns:
        Text such as "its part ['target'][2] is a _thread.lock", or "it is a function".

    Raises:
        RecursionError: If the object contains itself before that part.
    """
    for step, part in _parts(data):
        try:
            encode(part)
        except Exception:
            return describe_unsendable(part, path + step)
    subject = f"its part {path}" if path else "it"
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    return f"{subject} is a {kind.removeprefix('builtins.')}"


def _parts(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a container or plain object with their key, index or attribute name as text."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"[{key!r}]", value
    elif isinstance(data, (list, tuple, set, frozenset)):
        for number, part in enumerate(data):
            yield f"[{number}]", part
    elif isinstance(attributes := getattr(data, "__dict__", None), dict) and not isinstance(data, type):
        for name, value in list(attributes.items()):
            yield f".{name}", value
