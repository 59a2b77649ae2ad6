"""Split a table with copies and groups of images in one part, and find images that two sets share.

NOTE [Copies]
    Byte-identical copies of an image stay in one part, because a model would otherwise be tested on its training data.
    Files are compared by size, files of equal size by their last bytes, and then by a hash of the whole file, so only
    few files are read completely. The copies are stored in the cache folder under a key of the table and its image
    paths, so only the first split of a table reads its images. If images are replaced later while the annotations stay
    the same, they are not compared again, unless the table has their stamps (see `AnnotationTable`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from lit_loader.annotations.merge import concatenate
from lit_loader.annotations.stratification import stratified_split
from lit_loader.annotations.table import COLUMNS, AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import cache_folder, new_file
from lit_loader.types import IndexArray

__all__ = [
    "FILE_TRAITS",
    "Traits",
    "attribute_groups",
    "check_groups",
    "copies_across",
    "equal_files",
    "find_copies",
    "frame_groups",
    "group_names",
    "hold_out",
    "pooled",
    "shared_names",
]

Traits: TypeAlias = Sequence[Callable[[str], Any]]
"""Functions of an image's path that are equal for copies; false if it is empty, OSError if it cannot be read."""

_TAIL_BYTES = 4096


def hold_out(
    table: AnnotationTable,
    shares: Mapping[str, float],
    *,
    label_attribute: str | None = None,
    groups: Sequence[str] | None = None,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    traits: Traits | None = None,
    refine: bool = False,
) -> tuple[dict[str, IndexArray], str, bool]:
    """Return a `stratified_split` in which copies of an image stay together; see NOTE [Copies].

    Args:
        table: As for `stratified_split`.
        shares: As for `stratified_split`.
        label_attribute: As for `stratified_split`.
        groups: As for `stratified_split`; groups that share copies are merged.
        seed: As for `stratified_split`.
        cache_dir: Folder to cache the copies in, or None for the user's cache folder.
        traits: As for `find_copies`.
        refine: As for `stratified_split`.

    Returns:
        The parts, a sentence about the copies (empty if there are none), and True if the images were compared in this
        call.

    Raises:
        ValueError: As for `stratified_split`.
    """
    copies, is_new = find_copies(table, cache_dir, traits)
    text = ""
    if copies:
        # Without groups every image is its own, so copies are the only groups of several images.
        groups = _connected(list(table.image_paths) if groups is None else groups, copies)
        a, b = (table.image_paths[i] for i in copies[0][:2])
        text = (
            f"{sum(map(len, copies))} images are byte-identical copies ({len(copies)} groups), such as {a!r} and "
            f"{b!r}; each group stays in one split"
        )
    parts = stratified_split(table, shares, label_attribute=label_attribute, groups=groups, seed=seed, refine=refine)
    return parts, text, is_new


def find_copies(
    table: AnnotationTable, cache_dir: Path | str | None = None, traits: Traits | None = None
) -> tuple[list[list[int]], bool]:
    """Return groups of byte-identical images, and True if they were compared in this call; see NOTE [Copies].

    Args:
        table: The images; unreadable and empty files do not count as copies.
        cache_dir: Folder to cache the result in, or None for the user's cache folder.
        traits: Functions of an image's path that are equal for copies, the cheapest first; None for size and content of
            files.

    Returns:
        Per group, the positions of its images in the table, ascending.
    """
    # The key covers the table's sources and its image paths, so other images or annotations are compared anew.
    key = hashlib.blake2b(f"{table.cache_key} {table.root}".encode("utf-8", "surrogateescape"), digest_size=16)
    for name in ("image_paths", "image_stamps"):
        for array in COLUMNS[name].to_arrays(name, getattr(table, name)).values():
            key.update(array.tobytes())
    path = cache_folder(cache_dir) / "annotations" / f"{key.hexdigest()}.copies.json"
    # A damaged cache file counts as missing.
    with suppress(OSError, ValueError, TypeError):
        copies = json.loads(path.read_bytes())
        if all(type(i) is int and 0 <= i < table.num_images for group in copies for i in group):
            return copies, False
    copies = equal_files([f"{table.root}/{image}" for image in table.image_paths], traits)
    # Without a writable cache they are compared every time.
    with suppress(OSError), new_file(path) as file:
        file.write(json.dumps(copies).encode())
    return copies, True


def copies_across(tables: Mapping[str, Sequence[AnnotationTable]], traits: Traits | None = None) -> list[str]:
    """Return a sentence for each pair of sets in which one has byte-identical copies of images of the other.

    A file is opened only if another set has a file of the same size, and read completely only if their last bytes are
    equal as well.

    Args:
        tables: The tables of each set, by the set's name. A path in several sets is one file, not a copy of itself.
        traits: As for `find_copies`.
    """
    sets_of_file: dict[str, set[str]] = defaultdict(set)
    for name, set_tables in tables.items():
        for table in set_tables:
            for path in table.image_paths:
                sets_of_file[f"{table.root}/{path}"].add(name)
    files = list(sets_of_file)
    sets = list(sets_of_file.values())
    # Copies within one set are harmless, so a file is only opened if another set has a file of its size.
    groups = equal_files(files, traits, lambda group: len(set().union(*(sets[file] for file in group))) > 1)
    sentences = []
    for a, b in combinations(tables, 2):
        pairs = []
        for group in groups:
            files_of_a = [files[i] for i in group if a in sets[i]]
            for copy in (files[i] for i in group if b in sets[i]):
                # Of several originals in the first set, the first one counts.
                pairs += [(original, copy) for original in files_of_a if original != copy][:1]
        if pairs:
            original, copy = (os.path.relpath(file, tables[a][0].root) for file in pairs[0])
            sentences.append(
                f"{len(pairs)} images of {b} are byte-identical copies of images of {a}, such as {copy!r} of "
                f"{original!r}; results on {b} are too good"
            )
    return sentences


def equal_files(
    files: Sequence[str], traits: Traits | None = None, matters: Callable[[list[int]], bool] = lambda group: True
) -> list[list[int]]:
    """Return groups of positions of byte-identical files, without unreadable and empty files.

    Args:
        files: Absolute paths.
        traits: As for `find_copies`.
        matters: Returns False for a group of positions that need not be compared further.
    """
    groups = [list(range(len(files)))]
    # Each trait is more expensive and more precise than the one before, and only splits the groups further.
    for trait in FILE_TRAITS if traits is None else traits:
        subgroups: list[list[int]] = []
        for group in groups:
            positions_by_value: dict[object, list[int]] = defaultdict(list)
            for position in group:
                with suppress(OSError):  # the reader's policy decides on missing and unreadable images
                    positions_by_value[trait(files[position])].append(position)
            # The value of an empty file is 0 or b"".
            subgroups += [equal for value, equal in positions_by_value.items() if value and len(equal) > 1]
        groups = list(filter(matters, subgroups))
    return groups


def group_names(paths: Iterable[str], pattern: str) -> list[str]:
    """Return the first group of ``pattern`` in each path, such as a person's name in a file's name.

    Args:
        paths: Image paths relative to the root.
        pattern: A regular expression, searched anywhere in the path.

    Raises:
        ValueError: If the pattern is not a regular expression with a group, or does not match a path.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_pattern={pattern!r} is not a regular expression: {error}") from None
    # Without a group the whole match would identify an image, and nothing would be kept together.
    if compiled.groups == 0:
        raise ValueError(
            f"group_pattern={pattern!r} has no group; put the identifying part in parentheses: '([a-z]+)_'"
        )
    names = []
    for path in paths:
        match = compiled.search(path)
        # The group may be in an alternative that did not take part in the match.
        if match is None or match[1] is None:
            raise ValueError(f"group_pattern={pattern!r} does not match the image path {path[:200]!r}")
        names.append(match[1])
    return names


def frame_groups(paths: Iterable[str]) -> list[str]:
    """Return each path without the number at the end of its stem: ``a/clip_0001.jpg`` is in group ``a/clip``.

    A path without such a number is its own group.
    """
    groups = []
    for path in paths:
        folder, slash, name = path.rpartition("/")
        stem = name.rpartition(".")[0] or name
        # No regular expression: names from files may be long, and a search for a trailing number would be quadratic.
        base = stem.rstrip("0123456789")
        groups.append(path if base == stem else f"{folder}{slash}{base.rstrip(' _.-')}")
    return groups


def attribute_groups(table: AnnotationTable, name: str) -> list[str]:
    """Return groups of images whose objects have a common value of an attribute, such as the identity of a person.

    An image with several values joins their groups; an image without a value is its own group.

    Raises:
        ValueError: If the attribute does not exist.
    """
    labels, _ = table.labels_of(name)
    images = table.image_of_object()[labels >= 0]
    order = np.argsort(labels[labels >= 0], kind="stable")
    ends = np.flatnonzero(np.diff(labels[labels >= 0][order])) + 1
    return _connected(list(table.image_paths), [rows.tolist() for rows in np.split(images[order], ends) if len(rows)])


def pooled(tables: Sequence[AnnotationTable]) -> AnnotationTable:
    """Return the images of several sets as one table; an image in several sets is taken from the first of them.

    Args:
        tables: At least one table, as for `concatenate`. A single table is returned unchanged.
    """
    paths: set[str] = set()
    new_images = []
    for table in tables:
        rows = np.array([i for i, path in enumerate(table.image_paths) if path not in paths], dtype=np.int64)
        new_images.append(table if len(rows) == table.num_images else table.select(rows))
        paths.update(table.image_paths)
    return concatenate(new_images)


def check_groups(paths: Mapping[str, Iterable[str]], pattern: str, *, root: Path | str) -> None:
    """Raise AnnotationError if two sets share a group.

    Args:
        paths: Image paths of each set.
        pattern: As for `group_names`.
        root: Folder of the data set, for the message.
    """
    groups = {name: group_names(set_paths, pattern) for name, set_paths in paths.items()}
    for a, b, shared in shared_names(groups):
        raise AnnotationError(
            f"{len(shared)} groups of {pattern!r} are in both {a} and {b}, such as "
            f"{', '.join(map(repr, shared[:5]))}; hold {b} out of {a} by groups, or remove the pattern to accept this",
            path=root,
        )


def shared_names(names: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each pair of sets with common names, and these names, sorted.

    Args:
        names: Image paths or groups of each set.
    """
    sets = {name: set(values) for name, values in names.items()}
    for a, b in combinations(sets, 2):
        shared = sorted(sets[a] & sets[b])
        if shared:
            yield a, b, shared


def _tail(path: str) -> bytes:
    with Path(path).open("rb") as file:
        # The end of a file differs more often than its header, which is often the same for all images of a camera.
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read()


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


FILE_TRAITS: Final = (os.path.getsize, _tail, _digest)
"""Traits of image files."""


def _connected(names: Sequence[str], copies: Iterable[Sequence[int]]) -> list[str]:
    """Return the group of each image after merging groups with common copies; the first name is kept."""
    parents: dict[str, str] = {}

    def find_root(name: str) -> str:
        while name in parents:
            parent = parents[name]
            # Path halving, without which long chains of groups would take quadratic time.
            parents[name] = parents.get(parent, parent)
            name = parents[name]
        return name

    for images in copies:
        root, *merged = sorted({find_root(names[image]) for image in images})
        parents |= dict.fromkeys(merged, root)
    return list(map(find_root, names))
