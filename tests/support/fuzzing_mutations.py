"""Damages of fuzzing: changed bytes, words and contents, and links, folders and pipes instead of files."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MUTATIONS", "Damage"]

NUMBERS = [
    b"1e308", b"-1e308", b"1e400", b"1" + b"0" * 30, b"9" * 400, b"-" + b"9" * 400, b"nan", b"NaN", b"inf",
    b"-inf", b"Infinity", b"-0", b"0", b"-1", b"1e-320", b"2147483648", b"4294967296", b"18446744073709551616",
    b"0x10", b"1_0", b"", b"1e", b"--1", b"\xd9\xa1", b"true", b"null", b'"', b"1" * 5000,
]  # fmt: skip
PATHS = [
    b"../outside/secret.jpg", b"../outside/secret.txt", b"/etc/passwd", b"//etc/passwd", b"a/../../outside/secret.jpg",
    b"..\\outside\\secret.jpg", b"a\0b.jpg", b"/dev/zero", b"/proc/self/mem", b".", b"..", b"./", b"", b"a" * 300,
    b"a/" * 3000, b"%s%n", b"C:\\secret.jpg", b"link/other.jpg", b"link.jpg", b"\xff\xfe.jpg", b"file:///etc/passwd",
]  # fmt: skip
BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a0 "lol">'
    + b"".join(b'<!ENTITY a%d "%s">' % (i, b"&a%d;" % (i - 1) * 10) for i in range(1, 12))
    + b"]><annotation><filename>&a11;</filename></annotation>"
)
WHOLE = [
    b"", b"\0" * 4096, b"\xef\xbb\xbf", b"[" * 200_000, b'{"a":' * 100_000, b"<a>" * 100_000, b"<a " * 100_000,
    b'"' * 100_000, b"a" * 2_000_000, b"1 " * 500_000, b"1,2\n" * 100_000, b"a b\n" * 100_000, b"{" * 1000,
    b"\n" * 300_000,
    BOMB, b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
    b'<!DOCTYPE a [<!ENTITY x SYSTEM "../outside/secret.txt">]><a>&x;</a>', b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
    b"[1" + b",1" * 300_000 + b"]", b'{"images": [' + b"{}," * 100_000 + b"{}]}", b"#\n" * 100_000,
    b"n_points: 999999999\n{\n",
]  # fmt: skip


@dataclass
class Damage:
    """Damage of one round; leaving the context restores the sound files.

    Attributes:
        root: The data set.
        outside: A folder next to it that no reader may open.
        elsewhere: A folder to which links may lead, since links are the user's own.
        names: The annotation files.
        images: The images.
        random: Generator of all choices.
        file_names: Names of the damaged files, for the description.
    """

    root: Path
    outside: Path
    elsewhere: Path
    names: Sequence[str]
    images: Sequence[str]
    random: random.Random
    file_names: str = ""
    _sound: dict[str, bytes] = field(default_factory=dict)
    _links: list[Path] = field(default_factory=list)

    def __enter__(self) -> Damage:
        return self

    def __exit__(self, *exception: object) -> None:
        for path in self._links:
            path.unlink(missing_ok=True)
        for name, data in self._sound.items():
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            path.write_bytes(data)

    def pick(self, names: Sequence[str]) -> tuple[Path, bytes]:
        """Choose a file to damage and remember its content."""
        name = self.random.choice(names)
        self.file_names += f" {name}"
        data = self._sound[name] = (self.root / name).read_bytes()
        return self.root / name, data

    def apply(self, mutation: Any) -> None:
        """Damage an annotation file, or an image, by one of `MUTATIONS`."""
        if mutation in REPLACEMENTS:
            mutation(self)
            return
        path, data = self.pick(self.names)
        if mutation is hostile_path:
            for name, target in (("link", self.elsewhere), ("link.jpg", self.elsewhere / "other.jpg")):
                (self.root / name).symlink_to(target)
                self._links.append(self.root / name)
        path.write_bytes(mutation(data, self.random))


def flipped_bytes(data: bytes, draws: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draws.choice([1, 1, 2, 8, 64])):
        if changed:
            changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def inserted_bytes(data: bytes, draws: random.Random) -> bytes:
    return _insert(data, draws, draws.randbytes(draws.choice([1, 3, 100])))


def deleted_bytes(data: bytes, draws: random.Random) -> bytes:
    position = draws.randrange(len(data) + 1)
    return data[:position] + data[position + draws.choice([1, 2, 10, 200]) :]


def truncated(data: bytes, draws: random.Random) -> bytes:
    return data[: draws.randrange(len(data) + 1)]


def hostile_number(data: bytes, draws: random.Random) -> bytes:
    return _swap_words(data, draws, rb"-?\d+(?:\.\d+)?", NUMBERS)


def hostile_path(data: bytes, draws: random.Random) -> bytes:
    return _swap_words(data, draws, rb"[\w./-]+\.(?:jpg|png)", PATHS)


def hostile_word(data: bytes, draws: random.Random) -> bytes:
    words = [*NUMBERS, *PATHS, b"a" * 100_000, b"\r", b"\n", b"\0", b"\xff\xfe", "\u2028".encode(), b"-", b"#"]
    return _swap_words(data, draws, rb"[A-Za-z_]\w*", words)


def long_line(data: bytes, draws: random.Random) -> bytes:
    return _insert(data, draws, draws.choice([b"a", b"1 ", b"1,", b" ", b"\t", b'"']) * 400_000)


def repeated_lines(data: bytes, draws: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    row = draws.randrange(len(lines))
    lines[row] *= draws.choice([2, 100, 3000])
    return b"".join(lines)


def exchanged_lines(data: bytes, draws: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    draws.shuffle(lines)
    return b"".join(lines)


def other_encoding(data: bytes, draws: random.Random) -> bytes:
    return data.decode("utf-8", "replace").encode(draws.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"]))


def other_content(data: bytes, draws: random.Random) -> bytes:
    return draws.choice([*WHOLE, draws.randbytes(5000)])


def inserted_content(data: bytes, draws: random.Random) -> bytes:
    return _insert(data, draws, draws.choice(WHOLE)[:300_000])


def _insert(data: bytes, draws: random.Random, more: bytes) -> bytes:
    position = draws.randrange(len(data) + 1)
    return data[:position] + more + data[position:]


def _swap_words(data: bytes, draws: random.Random, pattern: bytes, words: Sequence[bytes]) -> bytes:
    matches = list(re.finditer(pattern, data))
    chosen = draws.sample(matches, min(len(matches), draws.choice([1, 1, 2, 5])))
    # From the end, so that earlier positions stay valid.
    for match in sorted(chosen, key=lambda match: -match.start()):
        data = data[: match.start()] + draws.choice(words) + data[match.end() :]
    return data


def other_kind_of_file(damage: Damage) -> None:
    path, _ = damage.pick(damage.names)
    _replace(damage, path, "other.txt")


def other_kind_of_image(damage: Damage) -> None:
    if damage.images:
        path, _ = damage.pick(damage.images)
        _replace(damage, path, "other.jpg")


def damaged_image(damage: Damage) -> None:
    if damage.images:
        path, data = damage.pick(damage.images)
        changed = bytearray(data[: damage.random.choice([0, 10, 40, 200, len(data), len(data)])])
        for _ in range(20):
            if changed:
                changed[damage.random.randrange(min(len(changed), 200))] = damage.random.randrange(256)
        path.write_bytes(changed)


def _replace(damage: Damage, path: Path, other: str) -> None:
    path.unlink()
    kind = damage.random.choice(["link", "relative link", "circle", "folder", "pipe", "nothing"])
    damage.file_names += f" by a {kind}"
    if kind == "link":
        path.symlink_to(damage.elsewhere / other)
    elif kind == "relative link":
        path.symlink_to(os.path.relpath(damage.elsewhere / other, path.parent))
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)


EDITS = (
    flipped_bytes, inserted_bytes, deleted_bytes, truncated, hostile_number, hostile_path, hostile_word, long_line,
    repeated_lines, exchanged_lines, other_encoding, other_content, inserted_content,
)  # fmt: skip
"""Functions of a file's bytes and a random generator that return other bytes."""

REPLACEMENTS = (other_kind_of_file, other_kind_of_image, damaged_image)
"""Functions of a `Damage` that put something else at the name of a file."""

MUTATIONS = (*EDITS, *REPLACEMENTS)
