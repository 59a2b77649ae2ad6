"""The damages that fuzzing does to files: bytes, words, whole contents, and what stands at a name."""

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
    """One round's damage; leaving the context puts the sound files back.

    Attributes:
        root: The data set.
        outside: A folder beside it that nobody may read.
        elsewhere: Another one, to which links may lead: they are the user's own.
        names: The annotation files.
        images: The images.
        random: Draws what is done where.
        said: What was done, in words.
    """

    root: Path
    outside: Path
    elsewhere: Path
    names: Sequence[str]
    images: Sequence[str]
    random: random.Random
    said: str = ""
    _sound: dict[str, bytes] = field(default_factory=dict)
    _added: list[Path] = field(default_factory=list)

    def __enter__(self) -> Damage:
        return self

    def __exit__(self, *exception: object) -> None:
        for path in self._added:
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
        self.said += f" {name}"
        data = self._sound[name] = (self.root / name).read_bytes()
        return self.root / name, data

    def edit(self, change: Any) -> None:
        """Replace the content of an annotation file by ``change(content)``."""
        path, data = self.pick(self.names)
        path.write_bytes(change(data))

    def add(self, name: str, target: Path) -> None:
        """Add a symbolic link."""
        path = self.root / name
        path.symlink_to(target)
        self._added.append(path)

    def place(self, data: bytes) -> int:
        """Draw a position in the content."""
        return self.random.randrange(len(data) + 1)


def flipped_bytes(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(damage.random.choice([1, 1, 2, 8, 64])):
            if changed:
                changed[damage.random.randrange(len(changed))] ^= 1 << damage.random.randrange(8)
        return bytes(changed)

    damage.edit(change)


def inserted_bytes(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        at = damage.place(data)
        return data[:at] + damage.random.randbytes(damage.random.choice([1, 3, 100])) + data[at:]

    damage.edit(change)


def deleted_bytes(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        at = damage.place(data)
        return data[:at] + data[at + damage.random.choice([1, 2, 10, 200]) :]

    damage.edit(change)


def truncated(damage: Damage) -> None:
    damage.edit(lambda data: data[: damage.place(data)])


def hostile_number(damage: Damage) -> None:
    damage.edit(lambda data: _swap_words(damage, data, rb"-?\d+(?:\.\d+)?", NUMBERS))


def hostile_path(damage: Damage) -> None:
    damage.add("link", damage.elsewhere)
    damage.add("link.jpg", damage.elsewhere / "other.jpg")
    damage.edit(lambda data: _swap_words(damage, data, rb"[\w./-]+\.(?:jpg|png)", PATHS))


def hostile_word(damage: Damage) -> None:
    words = [*NUMBERS, *PATHS, b"a" * 100_000, b"\r", b"\n", b"\0", b"\xff\xfe", "\u2028".encode(), b"-", b"#"]
    damage.edit(lambda data: _swap_words(damage, data, rb"[A-Za-z_]\w*", words))


def long_line(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        at = damage.place(data)
        return data[:at] + damage.random.choice([b"a", b"1 ", b"1,", b" ", b"\t", b'"']) * 400_000 + data[at:]

    damage.edit(change)


def repeated_lines(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        at = damage.random.randrange(len(lines))
        return b"".join([*lines[:at], *[lines[at]] * damage.random.choice([2, 100, 3000]), *lines[at + 1 :]])

    damage.edit(change)


def exchanged_lines(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        damage.random.shuffle(lines)
        return b"".join(lines)

    damage.edit(change)


def other_encoding(damage: Damage) -> None:
    encoding = damage.random.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
    damage.edit(lambda data: data.decode("utf-8", "replace").encode(encoding))


def other_content(damage: Damage) -> None:
    content = damage.random.choice([*WHOLE, damage.random.randbytes(5000)])
    damage.edit(lambda data: content)


def inserted_content(damage: Damage) -> None:
    def change(data: bytes) -> bytes:
        at = damage.place(data)
        return data[:at] + damage.random.choice(WHOLE)[:300_000] + data[at:]

    damage.edit(change)


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


def _swap_words(damage: Damage, data: bytes, pattern: bytes, words: Sequence[bytes]) -> bytes:
    found = list(re.finditer(pattern, data))
    for match in sorted(
        damage.random.sample(found, min(len(found), damage.random.choice([1, 1, 2, 5]))), key=lambda m: -m.start()
    ):
        word = damage.random.choice(words)
        damage.said += f" {word[:30]!r} at {match.start()}"
        data = data[: match.start()] + word + data[match.end() :]
    return data


def _replace(damage: Damage, path: Path, other: str) -> None:
    path.unlink()
    kind = damage.random.choice(["link", "relative link", "circle", "folder", "pipe", "nothing"])
    damage.said += f" by a {kind}"
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


MUTATIONS = (
    flipped_bytes, inserted_bytes, deleted_bytes, truncated, hostile_number, hostile_path, hostile_word, long_line,
    repeated_lines, exchanged_lines, other_encoding, other_content, inserted_content, other_kind_of_file,
    other_kind_of_image, damaged_image,
)  # fmt: skip
