"""Packing of small tables, and comparison of packed folders."""

from __future__ import annotations

from lit_loader.annotations.packing import pack_tables
from lit_loader.storage.pack_target import FolderTarget


def pack(tables, folder, *, target=FolderTarget, shard_bytes=20480, **options):
    """Pack tables into shards of about two images."""
    return pack_tables(tables, target(folder), shard_bytes=shard_bytes, num_workers=2, **options)


def contents(folder):
    """Return the bytes of all files in a folder by their relative names."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip_byte(path, position):
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
