"""Index of a tar file: names, first bytes and lengths of its files, read from the headers alone.

NOTE [Untrusted headers]
    A tar file is not trusted. Its files are not extracted: names are data, which callers check before they use
    them as paths.
    Every number is compared with the size of the file before it is used, and the extended headers of a member have a
    limit of their own, so a forged header costs neither memory nor time. A link or a sparse member has no bytes of its
    own in the file, and is refused instead of read as something else.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from lit_loader.errors import AnnotationError

__all__ = ["ReadAt", "TarMember", "open_tar", "tar_members", "windowed"]

_BLOCK: Final = tarfile.BLOCKSIZE
_MAX_EXTENDED_BYTES: Final = 1 << 20
_MAX_NAME_BYTES: Final = 4096
_FILE_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LINK_TYPES: Final = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link"}
_SPARSE_KEYS: Final = "GNU.sparse."
_WINDOW_BYTES: Final = 4 << 20

ReadAt = Callable[[int, int], bytes]
"""Function of an offset and a number of bytes that returns these bytes, or fewer at the end of the file."""


class TarMember(NamedTuple):
    """A file in a tar file.

    Attributes:
        name: Its name, as in the tar file; not trusted.
        start: First byte of its data.
        length: Number of bytes.
    """

    name: str
    start: int
    length: int


class _Header(NamedTuple):
    """Header of a file, or of a folder, link or device, after its extended headers.

    Attributes:
        info: The header.
        name: Its name, which an extended header may give.
        start: First byte of the data.
        size: Number of bytes of the data.
    """

    info: tarfile.TarInfo
    name: str
    start: int
    size: int


def tar_members(read_at: ReadAt, num_bytes: int, *, name: str) -> Iterator[TarMember]:
    """Yield the files in a tar file, in its order; only headers are read.

    Args:
        read_at: Reads a part of the file.
        num_bytes: Size of the file.
        name: Its name, for messages.

    Raises:
        AnnotationError: If the file is damaged, truncated or compressed, or a member is a link or sparse; names the
            file and the offset.
    """
    for header in _headers(read_at, num_bytes, name):
        if header.info.type in _LINK_TYPES:
            kind = _LINK_TYPES[header.info.type]
            remedy = "write the tar file with the files themselves (tar --dereference --hard-dereference)"
            raise _error(name, header.start - _BLOCK, f"member {header.name[:200]!r} is {kind}; {remedy}")
        if header.info.type in _FILE_TYPES:
            yield TarMember(header.name, header.start, header.size)


@contextmanager
def open_tar(path: Path) -> Iterator[tuple[ReadAt, int]]:
    """Yield a function that reads a file of this host, and the size of the file.

    Raises:
        OSError: If the file cannot be opened.
    """
    # Opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield lambda offset, length: os.pread(descriptor, length, offset), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def windowed(read_at: ReadAt) -> ReadAt:
    """Return a function that reads 4 MiB at once, for objects of a store: their headers are small and many."""
    window = b""
    window_start = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal window, window_start
        if offset < window_start or offset + length > window_start + len(window):
            window = read_at(offset, max(length, _WINDOW_BYTES))
            window_start = offset
        begin = offset - window_start
        return window[begin : begin + length]

    return read


def _headers(read_at: ReadAt, num_bytes: int, tar_name: str) -> Iterator[_Header]:
    """Yield the headers of all members, with the values of their extended headers."""
    offset = 0
    extended: dict[str, str] = {}
    extended_size = 0
    while True:
        block = read_at(offset, _BLOCK)
        if len(block) == _BLOCK and not any(block):
            # Two blocks of zeros end the file; one is accepted, as by other readers.
            if extended:
                raise _error(tar_name, offset, "the file ends after an extended header")
            return
        info = _parse(block, offset, tar_name)
        start = offset + _BLOCK
        is_pax = info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        is_long = info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        size = info.size
        if not (is_pax or is_long) and "size" in extended:
            size = _pax_size(extended["size"], offset, tar_name)
        has_data = is_pax or is_long or info.type in _FILE_TYPES or info.type not in tarfile.SUPPORTED_TYPES
        size = size if has_data else 0
        if size < 0 or size > num_bytes - start:
            problem = f"a member of {size} bytes begins there, but only {max(num_bytes - start, 0)} bytes follow"
            raise _error(tar_name, offset, f"{problem}; the file is truncated or damaged")
        if info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(_SPARSE_KEYS) for key in extended):
            raise _error(tar_name, offset, "a sparse member begins there; write the tar file without --sparse")
        if is_pax or is_long:
            # Headers that no member follows would fill the memory.
            extended_size += size
            if extended_size > _MAX_EXTENDED_BYTES:
                problem = f"extended headers of {extended_size} bytes exceed the limit of {_MAX_EXTENDED_BYTES}"
                raise _error(tar_name, offset, problem)
            data = read_at(start, size)
            if is_pax:
                values = _pax_values(data, offset, tar_name)
                # Names and sizes of a global header would apply to all members, which no writer means.
                extended |= values if info.type != tarfile.XGLTYPE else {}
            elif info.type == tarfile.GNUTYPE_LONGNAME:
                extended["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        else:
            member_name = extended.get("path", info.name)
            if len(member_name) > _MAX_NAME_BYTES or "\0" in member_name:
                raise _error(tar_name, offset, f"a name has a NUL or more than {_MAX_NAME_BYTES} characters")
            yield _Header(info, member_name, start, size)
            extended = {}
            extended_size = 0
        offset = start + -(-size // _BLOCK) * _BLOCK


def _parse(block: bytes, offset: int, tar_name: str) -> tarfile.TarInfo:
    """Parse one block as a header and compare its checksum."""
    if block.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")) and offset == 0:
        raise _error(tar_name, offset, "the file is compressed, so its members have no ranges; decompress it")
    if len(block) < _BLOCK:
        raise _error(tar_name, offset, "the file ends there without a block of zeros, so it is truncated")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        raise _error(tar_name, offset, f"no header of a member is there ({error})") from None


def _pax_values(data: bytes, offset: int, tar_name: str) -> dict[str, str]:
    """Parse the records of an extended header: length of the whole record, key, value."""
    values: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position]:
        digits, _, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[position : position + length]
        key, sign, value = record[len(digits) + 1 : -1].partition(b"=")
        if not sign or len(record) < length or record[-1:] != b"\n":
            raise _error(tar_name, offset, "an extended header is damaged")
        values[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        position += length
    return values


def _pax_size(text: str, offset: int, tar_name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _error(tar_name, offset, f"an extended header gives the size {text[:40]!r}")
    return int(text)


def _error(name: str, offset: int, problem: str) -> AnnotationError:
    return AnnotationError(f"byte {offset}: {problem}", path=name)
