"""The folder of a cache, the states of its images, and the messages to the fetch process of a host.

NOTE [Folder of a cache]
    ``CACHE_DIR/objects/KEY``, with the key of the catalog, holds

    - ``catalog.arrow``: the `Catalog`;
    - ``data``: a sparse file, with image ``slot`` at a fixed offset, see `data_offsets`;
    - ``states``: a mapped file: `HEADER_BYTES` of the fetch process, then one byte for each image;
    - ``errors/SLOT``: the reason why an image could not be fetched, as text;
    - ``log``: the output of the fetch process, for people;
    - ``lock``: locked (``flock``) by the fetch process as long as it lives, which writes its `Holder` there;
    - ``control``: a Unix stream socket for the messages below, one connection for each training process;
    - ``requests``: a Unix datagram socket on which any process asks for one image, see `encode_request`.

NOTE [States]
    The byte of an image is ``4 * generation + state``. Only the fetch process writes it. It sets READY after all bytes
    are in the file and their number was checked, and raises the generation (modulo 64) when it evicts an image. A
    reader that sees the same READY byte before and after its ``pread`` has read the whole image.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.types import IndexArray

__all__ = [
    "ALIGNMENT",
    "EXIT_FAILED",
    "EXIT_LOCKED",
    "HEADER_BYTES",
    "Holder",
    "Message",
    "MessageKind",
    "Messages",
    "State",
    "boot_id",
    "connect",
    "data_offsets",
    "decode_request",
    "encode_message",
    "encode_request",
    "socket_address",
]

ALIGNMENT: Final = 4096
"""Images begin at multiples of it in the data file, so that a hole can be punched for each."""

HEADER_BYTES: Final = 4096
"""Bytes of the file of states before the first state."""

EXIT_LOCKED: Final = 3
"""Exit code of a fetch process if another one has the lock of the folder."""

EXIT_FAILED: Final = 4
"""Exit code of a fetch process that cannot work; the last line on standard error is the reason."""

_HEAD: Final = struct.Struct("<IBi")  # bytes of the payload, kind, stream
_REQUEST: Final = struct.Struct("<q")
_MAX_PAYLOAD: Final = 64 << 20
_MAX_HOLDER: Final = 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class State(IntEnum):
    """State of an image in the cache."""

    ABSENT = 0
    PENDING = 1
    READY = 2
    FAILED = 3


class MessageKind(IntEnum):
    """Kinds of message from a training process to the fetch process.

    A stream is the order in which one rank will need the images of one loader.
    """

    EXTEND = 0  # payload: int32 slots, the next ones of the stream in order; -1 for samples without a stored image
    DELIVERED = 1  # payload: int64, how many samples of the stream were delivered to the consumer since its beginning
    CLOSE = 2  # no payload; the stream ends
    STATS = 3  # no payload; answered with a frame of the same kind and stream, whose payload is a JSON object
    BEGIN = 4  # payload: int64, samples to keep ahead; the stream has no slots, and 0 samples were delivered
    HELLO = 5  # payload: a `Greeting`; answered with a frame of the same kind, whose payload is an `Answer`


class Message(NamedTuple):
    """A message, or an answer."""

    kind: MessageKind
    stream: int
    payload: bytes = b""


def encode_message(kind: MessageKind, stream: int, payload: bytes | npt.NDArray[np.int32] = b"") -> bytes:
    """Return a message as the bytes to send."""
    data = payload if isinstance(payload, bytes) else np.ascontiguousarray(payload, dtype="<i4").tobytes()
    return _HEAD.pack(len(data), kind, stream) + data


class Messages:
    """Decodes the bytes that were received from one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add received bytes, and yield the messages that are complete.

        Raises:
            ValueError: If the bytes are not messages.
        """
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            num_bytes, kind, stream = _HEAD.unpack_from(self._buffer)
            if num_bytes > _MAX_PAYLOAD:
                raise ValueError(f"a message of {num_bytes} bytes exceeds the limit of {_MAX_PAYLOAD}")
            end = _HEAD.size + num_bytes
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield Message(MessageKind(kind), stream, payload)


class Holder(NamedTuple):
    """The process that has, or had, the lock of a folder.

    Attributes:
        boot: Id of the boot of its host, empty if it is not known.
        host: Name of its host.
        pid: Its process id there.
    """

    boot: str
    host: str
    pid: str

    @classmethod
    def read(cls, folder: Path) -> Holder | None:
        """Return the holder that is named in a folder, or None if there is none."""
        try:
            with (folder / "lock").open("rb") as file:
                fields = file.read(_MAX_HOLDER).decode("ascii", "replace").split("\n")
        except OSError:
            return None
        return cls(*fields) if len(fields) == len(cls._fields) else None

    def write(self, lock: int) -> None:
        """Write the holder to the lock file, which has the given descriptor."""
        os.ftruncate(lock, 0)
        os.pwrite(lock, "\n".join(self).encode("ascii", "replace"), 0)
        # Another host may look at it over a network file system.
        os.fsync(lock)


def boot_id() -> str:
    """Return the id of this boot of the host as 32 digits, or an empty text if the system has none."""
    try:
        digits = _BOOT_ID.read_text().strip().replace("-", "")
        return bytes.fromhex(digits)[:16].hex()
    except (OSError, ValueError):
        return ""


def encode_request(slot: int, *, forget: bool = False) -> bytes:
    """Return the datagram that asks for an image at once.

    Args:
        slot: Slot of the image.
        forget: Instead of fetching it, make a FAILED image ABSENT, so that the next request tries again.
    """
    return _REQUEST.pack(-1 - slot if forget else slot)


def decode_request(datagram: bytes) -> tuple[int, bool]:
    """Return the slot of a datagram of `encode_request`, and whether its failure shall be forgotten.

    Raises:
        ValueError: If it is not such a datagram.
    """
    if len(datagram) != _REQUEST.size:
        raise ValueError(f"expected a request of {_REQUEST.size} bytes, got {len(datagram)}")
    number: int = _REQUEST.unpack(datagram)[0]
    return (-1 - number, True) if number < 0 else (number, False)


def data_offsets(lengths: IndexArray) -> IndexArray:
    """Return the offset of each image in the data file, and the size of the file, int64 ``(num_images + 1,)``."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(-(-lengths // ALIGNMENT) * ALIGNMENT, out=offsets[1:])
    return offsets


@contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """Yield the address of a Unix socket in a folder, valid while the context is open.

    Addresses have at most 107 bytes, so the folder is named by an open descriptor.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect(folder: Path, name: str, kind: socket.SocketKind) -> socket.socket:
    """Return a socket that is connected to the fetch process.

    Args:
        folder: Folder of the cache.
        name: ``"control"`` or ``"requests"``.
        kind: ``SOCK_STREAM`` or ``SOCK_DGRAM``.

    Raises:
        OSError: If no fetch process listens.
    """
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        with socket_address(folder, name) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
