"""Objects as frames: pickle protocol 5, with tensor and array bytes out of band.

A CPU tensor travels as its own bytes and not as its storage, needs no descriptor, and arrives as a view of the
memory that its bytes lie in: a slot of shared memory, or what the frame was read into. Everything that is not a plain
dense CPU tensor is left to its own pickling.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from lit_loader.transport.frames import Buffer

__all__ = ["NUMPY_DTYPES", "RebuildError", "decode", "encode", "is_plain", "pickle_small"]


Namer: TypeAlias = Callable[[memoryview], tuple[int, int] | None]
Opener: TypeAlias = Callable[[Sequence[tuple[int, int]]], Sequence[Any]]

_PLACE = struct.Struct("<qQ")
_SMALL_BYTES = 4096
NUMPY_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)


class RebuildError(pickle.UnpicklingError):
    """What was sent cannot be made again in the process that received it."""


def encode(data: Any, name: Namer | None = None) -> list[Buffer]:
    """Return ``data`` as buffers: the pickle, where the bytes outside of it are, and those that are nowhere else.

    Args:
        data: Any object.
        name: Returns where in a slot a buffer's bytes are, offset and length, or None if they are to come along.

    Raises:
        Exception: Whatever pickling ``data`` raises.
    """
    outside: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=outside.append).dump(data)
    if not outside:
        return [stream.getbuffer()]
    places, along = [], []
    for buffer in outside:
        raw = buffer.raw()
        place = None if name is None else name(raw)
        places.append(_PLACE.pack(*(place or (-1, raw.nbytes))))
        if place is None:
            along.append(raw)
    return [stream.getbuffer(), b"".join(places), *along]


def decode(buffers: Sequence[Buffer], look_up: Opener | None = None) -> Any:
    """Return the object that `encode` took; its tensors and arrays are views of ``buffers``, or of the slot.

    The buffers come from our own worker processes and are trusted as they are.

    Args:
        buffers: What `encode` returned.
        look_up: Returns the bytes at places in the slot, each offset and length.

    Raises:
        RebuildError: From whatever unpickling raised.
    """
    if len(buffers) == 1:
        return _load(buffers[0])
    places = list(_PLACE.iter_unpack(buffers[1]))
    named = [(offset, length) for offset, length in places if offset >= 0]
    along, there = iter(buffers[2:]), iter(look_up(named) if look_up is not None and named else ())
    return _load(buffers[0], [next(along if offset < 0 else there) for offset, _ in places])


def _load(data: Buffer, outside: Sequence[Any] = ()) -> Any:
    try:
        return pickle.loads(data, buffers=outside)
    except MemoryError:
        raise
    except Exception as error:
        raise RebuildError(f"{type(error).__name__}: {error}") from error


def pickle_small(data: Any, max_bytes: int) -> bytes:
    """Return ``data`` as one pickle, if that is small; no more memory than that is used to find out.

    Args:
        data: Any object.
        max_bytes: What it may take.

    Raises:
        ValueError: If it takes more.
        Exception: Whatever pickling ``data`` raises.
    """

    def is_inside(buffer: pickle.PickleBuffer) -> bool:
        if (num_bytes := buffer.raw().nbytes) > max_bytes:
            raise ValueError(f"an array of {num_bytes} bytes is in it, and the limit is {max_bytes} bytes")
        return True

    stream = _Bounded(max_bytes)
    _Pickler(stream, protocol=5, buffer_callback=is_inside).dump(data)
    return stream.getvalue()


class _Bounded(io.BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._max_bytes:
            raise ValueError(f"the pickle is larger than its limit of {self._max_bytes} bytes")
        return super().write(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return _reduce_storage(obj) if type(obj) is torch.UntypedStorage else NotImplemented
        if not is_plain(obj):
            if obj.requires_grad and not obj.is_leaf:
                raise RuntimeError(
                    f"a tensor of shape {tuple(obj.shape)} in the batch was computed with gradients (it requires grad "
                    "and is no leaf), and its graph cannot leave the worker process; return tensor.detach()"
                )
            return NotImplemented
        if (
            type(obj) is torch.Tensor
            and obj.is_contiguous()
            and obj.dtype in NUMPY_DTYPES
            and not obj.__dict__
        ):
            return _reduce_contiguous(obj)
        return _reduce_tensor(obj)


def _reduce_contiguous(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """The way of most tensors, and three times as fast: a small one's bytes are not worth a buffer of their own."""
    array: Any = tensor.numpy()
    raw = array.tobytes() if array.nbytes <= _SMALL_BYTES else pickle.PickleBuffer(array)
    return _rebuild_contiguous, (raw, tensor.dtype, array.shape)


def _rebuild_contiguous(raw: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    memory = bytearray(raw) if isinstance(raw, bytes) else raw
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu":
        return NotImplemented
    return _rebuild_storage, (torch.empty(0, dtype=torch.uint8).set_(storage),)


def _rebuild_storage(memory: torch.Tensor) -> torch.UntypedStorage:
    return memory.untyped_storage()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes, dtype and shape (and for a subclass, its ``__dict__``) and no more."""
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
        and not isinstance(tensor, torch.nn.Parameter)
    )


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    kind = type(tensor)
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
        # a permuted dense tensor (channels_last) keeps its layout: the bytes go in memory order
        order = sorted(range(plain.ndim), key=plain.stride, reverse=True)
        if not plain.permute(order).is_contiguous():
            order = list(range(plain.ndim))
        dense = plain.permute(order).contiguous()
        as_bytes: Any = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        raw = pickle.PickleBuffer(as_bytes) if dense.numel() else None
    subclass = None if kind is torch.Tensor else kind
    attributes = dict(tensor.__dict__) if tensor.__dict__ else None
    return _rebuild_tensor, (raw, plain.dtype, tuple(dense.shape), order, subclass, attributes)


def _rebuild_tensor(
    raw: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    order: list[int],
    subclass: type[torch.Tensor] | None,
    attributes: dict[str, Any] | None,
) -> torch.Tensor:
    if raw is None:
        dense = torch.empty(shape, dtype=dtype)
    else:
        dense = torch.frombuffer(raw, dtype=torch.uint8).view(dtype).view(shape)
    if order != sorted(order):
        dense = dense.permute(sorted(range(len(order)), key=order.__getitem__))
    tensor = dense if subclass is None else dense.as_subclass(subclass)
    if attributes is not None:
        tensor.__dict__.update(attributes)
    return tensor
