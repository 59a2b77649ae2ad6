"""Splits of one table: stratified by class, by image or by group, the same whatever the table's order.

NOTE [Copies]
    Images that are byte-identical copies of each other stay in one part, or a model would be tested on what it was
    trained on. Files are compared by size, then those of equal size by their last bytes, then the rest by a hash of
    all of them, so that few files are read whole. The copies found are kept in the cache folder under a key of the
    table and its image paths: only the first split of a table looks at its images. Images that are replaced later while
    the annotations stay the same are not compared again, unless the table keeps their stamps (see `AnnotationTable`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.cache import cache_folder
from lit_loader.annotations.table import COLUMNS, AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import new_file
from lit_loader.types import IndexArray

__all__ = [
    "check_groups",
    "copies_across",
    "find_copies",
    "group_names",
    "hold_out",
    "shared_names",
    "stratified_split",
]

_TAIL_BYTES = 4096


def hold_out(
    table: AnnotationTable,
    shares: Mapping[str, float],
    *,
    group_pattern: str | None = None,
    seed: int = 0,
    cache_dir: Path | str | None = None,
) -> tuple[dict[str, IndexArray], str, bool]:
    """Return a `stratified_split` in which copies of an image stay together; see NOTE [Copies].

    Args:
        table: As `stratified_split` takes it.
        shares: As `stratified_split` takes them.
        group_pattern: As `group_names` takes it, or None without groups. Groups that copies connect are one.
        seed: As `stratified_split` takes it.
        cache_dir: Where the copies that were found are kept, or None for the user's cache folder.

    Returns:
        The parts, a sentence on the copies (empty without any), and whether the images were compared now.

    Raises:
        ValueError: As `group_names` and `stratified_split`.
    """
    groups = None if group_pattern is None else group_names(table.image_paths, group_pattern)
    copies, is_new = find_copies(table, cache_dir)
    text = ""
    if copies:
        groups = _connected(list(table.image_paths) if groups is None else groups, copies)
        a, b = (table.image_paths[i] for i in copies[0][:2])
        text = (
            f"{sum(map(len, copies))} images are byte-identical copies ({len(copies)} groups), such as {a!r} and "
            f"{b!r}; each group stays in one split"
        )
    return stratified_split(table, shares, groups=groups, seed=seed), text, is_new


def find_copies(table: AnnotationTable, cache_dir: Path | str | None = None) -> tuple[list[list[int]], bool]:
    """Return the images that are byte-identical, and whether they were compared now; see NOTE [Copies].

    Args:
        table: The images; those that cannot be read, and empty files, are no copies.
        cache_dir: Where the result is kept, or None for the user's cache folder.

    Returns:
        For each content that several images have their positions in the table, ascending.
    """
    key = hashlib.blake2b(
        f"{table.cache_key} {table.root}".encode("utf-8", "surrogateescape"), digest_size=16
    )
    for name in ("image_paths", "image_stamps"):
        for array in COLUMNS[name].to_arrays(name, getattr(table, name)).values():
            key.update(array.tobytes())
    path = cache_folder(cache_dir) / "annotations" / f"{key.hexdigest()}.copies.json"
    with suppress(OSError, ValueError, TypeError):
        copies = json.loads(path.read_bytes())
        if all(type(i) is int and 0 <= i < table.num_images for group in copies for i in group):
            return copies, False
    copies = [list(range(table.num_images))]
    for trait in (os.path.getsize, _tail, _digest):
        copies = [equal for group in copies for equal in _equal_images(table, group, trait)]
    # without a cache to write they are compared each time
    with suppress(OSError), new_file(path) as file:
        file.write(json.dumps(copies).encode())
    return copies, True


def copies_across(tables: Mapping[str, AnnotationTable]) -> list[str]:
    """Return a sentence for each two sets of which one holds byte-identical copies of images of the other.

    A file is opened only if another set has one of the same size and, for a second look, of the same last bytes.

    Args:
        tables: The sets by name. A path that several sets name is one file and no copy of itself.
    """
    sets_of_file: dict[str, set[str]] = {}
    for name, table in tables.items():
        for path in table.image_paths:
            sets_of_file.setdefault(f"{table.root}/{path}", set()).add(name)
    groups = [list(sets_of_file)]
    for trait in (os.path.getsize, _tail, _digest):
        groups = [
            files
            for group in groups
            for files in _equal_files(group, trait)
            if len(set().union(*(sets_of_file[file] for file in files))) > 1
        ]
    sentences = []
    for a, b in combinations(tables, 2):
        pairs = []
        for files in groups:
            in_a = [file for file in files if a in sets_of_file[file]]
            in_b = [file for file in files if b in sets_of_file[file]]
            copies = [file for file in in_b if in_a and in_a != [file]]
            pairs += [(next(other for other in in_a if other != file), file) for file in copies]
        if pairs:
            first, copy = (os.path.relpath(file, tables[a].root) for file in pairs[0])
            count = f"{len(pairs)} images of {b} are byte-identical copies of images of {a}"
            sentences.append(f"{count}, such as {copy!r} of {first!r}; results on {b} are too good")
    return sentences


def _equal_files(files: Iterable[str], trait: Callable[[str], object]) -> Iterator[list[str]]:
    """Yield the files, two at least, that are equal in a trait; unreadable and empty files are left out."""
    files_by_value: dict[object, list[str]] = {}
    for file in files:
        with suppress(OSError):
            files_by_value.setdefault(trait(file), []).append(file)
    return (equal for value, equal in files_by_value.items() if value and len(equal) > 1)


def stratified_split(
    table: AnnotationTable,
    shares: Mapping[str, float],
    *,
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, IndexArray]:
    """Return the images of each part of a table, every class divided by the parts' shares.

    Classes are dealt out one by one, the one with the fewest images without a part yet first;
    each of its images goes to the part that still lacks most of that class. Images without objects are
    dealt out as a class of their own. Where every image has one class, each part gets its share of each
    class to within one image, but for what the next rule asks.

    A class that lies in as many groups as there are parts, or more, occurs in every part, unless images that
    it shares with a rarer class went elsewhere; one in fewer groups occurs in as many parts as it can.

    Args:
        table: The images with their objects.
        shares: Share of the images for each part, by the part's name; positive, of sum 1.
        groups: Name of each image's group, such as the person it shows; a group is never cut. Default: every
            image path is a group. Larger groups are placed first, so a small part gets small groups.
        seed: Another seed gives another split.

    Returns:
        For each part int64 positions in the table, ascending. No position is in two parts.

    Raises:
        ValueError: If shares are not positive or not of sum 1, or there is not one group name an image.

    Determinism: the parts follow from ``seed`` and, of each image, its classes and the name of its group (or its
    path); the order of the images in the table changes nothing.

    Source:
        Sechidis, Tsoumakas and Vlahavas 2011, On the stratification of multi-label data, algorithm 1; that
        every part gets one of a rare class is added here.
    """
    if not all(share > 0 for share in shares.values()) or not abs(sum(shares.values()) - 1) < 1e-6:
        raise ValueError(f"shares={dict(shares)} must be positive and of sum 1, e.g. train 0.9 and val 0.1")
    if groups is not None and len(groups) != table.num_images:
        raise ValueError(f"groups has {len(groups)} names; the table has {table.num_images} images")
    names, unit_of_image = _units(table.image_paths if groups is None else groups, seed=seed)
    part_of_unit = _assign_units(table, unit_of_image, len(names), list(shares.values()))
    part_of_image = part_of_unit[unit_of_image]
    return {name: np.flatnonzero(part_of_image == part) for part, name in enumerate(shares)}


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
    if compiled.groups == 0:
        raise ValueError(
            f"group_pattern={pattern!r} has no group; put what identifies in brackets: '([a-z]+)_'"
        )
    names = []
    for path in paths:
        match = compiled.search(path)
        if match is None or match[1] is None:
            raise ValueError(f"group_pattern={pattern!r} does not match the image path {path[:200]!r}")
        names.append(match[1])
    return names


def check_groups(paths: Mapping[str, Iterable[str]], pattern: str, *, root: Path | str) -> None:
    """Raise AnnotationError if a group lies in two sets.

    Args:
        paths: For each set its image paths.
        pattern: As `group_names` takes it.
        root: The data set's folder, for the message.
    """
    groups = {name: group_names(each, pattern) for name, each in paths.items()}
    for a, b, shared in shared_names(groups):
        raise AnnotationError(
            f"{len(shared)} groups of {pattern!r} lie in {a} and in {b}, such as "
            f"{', '.join(map(repr, shared[:5]))}; hold {b} out of {a} by groups, or leave the pattern away to "
            "accept it",
            path=root,
        )


def shared_names(names: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each two sets that have names in common, with those names, sorted.

    Args:
        names: For each set its image paths, or its groups.
    """
    sets = {name: set(values) for name, values in names.items()}
    for a, b in combinations(sets, 2):
        shared = sorted(sets[a] & sets[b])
        if shared:
            yield a, b, shared


def _equal_images(
    table: AnnotationTable, images: Iterable[int], trait: Callable[[str], object]
) -> Iterator[list[int]]:
    """Yield those of some images, two at least, whose files are equal in a trait."""
    found: dict[object, list[int]] = {}
    for image in images:
        with suppress(OSError):  # missing or unreadable, which is the reader's policy to decide on
            found.setdefault(trait(f"{table.root}/{table.image_paths[image]}"), []).append(image)
    return (equal for value, equal in found.items() if value and len(equal) > 1)


def _tail(path: str) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read()


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _connected(names: Sequence[str], copies: Iterable[Sequence[int]]) -> list[str]:
    """Return the group of each image where groups that copies connect are one, called by its first name."""
    first: dict[str, str] = {}

    def group(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for images in copies:
        name, *others = sorted({group(names[image]) for image in images})
        first |= dict.fromkeys(others, name)
    return list(map(group, names))


def _units(groups: Iterable[str], *, seed: int) -> tuple[list[str], IndexArray]:
    """Return the distinct groups in the order they are dealt out, and each image's position among them."""
    listed = list(groups)
    sizes, salt = Counter(listed), hashlib.blake2b(f"{seed}".encode(), digest_size=16).digest()

    def key(name: str) -> tuple[int, bytes, str]:
        shuffled = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8, salt=salt).digest()
        return -sizes[name], shuffled, name

    ordered = sorted(sizes, key=key)
    places = {name: place for place, name in enumerate(ordered)}
    return ordered, np.array([places[name] for name in listed], dtype=np.int64)


def _assign_units(
    table: AnnotationTable, unit_of_image: IndexArray, num_units: int, shares: Sequence[float]
) -> IndexArray:
    """Return the part of each unit."""
    units, labels, counts, num_labels = _images_by_unit_and_label(table, unit_of_image)
    start = np.searchsorted(units, np.arange(num_units + 1))
    sizes = np.bincount(unit_of_image, minlength=num_units)
    left = np.bincount(labels, minlength=num_labels)  # units of each label without a part yet
    holds = np.zeros((len(shares), num_labels), dtype=np.int64)  # units of each label in each part
    lacking = np.outer(shares, np.bincount(labels, weights=counts, minlength=num_labels))
    capacity = np.asarray(shares) * len(unit_of_image)
    part_of_unit = np.full(num_units, -1, dtype=np.int64)
    while left.any():
        label = int(np.where(left > 0, left, np.iinfo(np.int64).max).argmin())
        for unit in units[labels == label]:
            if part_of_unit[unit] >= 0:
                continue
            empty = np.flatnonzero(holds[:, label] == 0)
            choices = empty if 0 < left[label] <= len(empty) else np.arange(len(shares))
            part = _part_to_fill(choices, lacking[:, label], capacity)
            cells = slice(start[unit], start[unit + 1])
            part_of_unit[unit] = part
            left[labels[cells]] -= 1
            holds[part, labels[cells]] += 1
            lacking[part, labels[cells]] -= counts[cells]
            capacity[part] -= sizes[unit]
    return part_of_unit


def _part_to_fill(
    choices: IndexArray, lacking: npt.NDArray[np.float64], capacity: npt.NDArray[np.float64]
) -> int:
    """Return the part that lacks most of a label; of several the one that lacks most images, then the first."""
    return min(map(int, choices), key=lambda part: (-lacking[part].round(6), -capacity[part].round(6), part))


def _images_by_unit_and_label(
    table: AnnotationTable, unit_of_image: IndexArray
) -> tuple[IndexArray, IndexArray, IndexArray, int]:
    """Return (unit, label, images of the unit with the label), sorted; one more label is "no object".

    Sparse: a table of a million images and a thousand classes has no dense one.
    """
    width = table.num_classes + 1
    empty = np.flatnonzero(np.diff(table.offsets) == 0)
    seen = np.unique(
        np.concatenate([table.image_of_object() * width + table.labels, empty * width + table.num_classes])
    )
    cells, counts = np.unique(unit_of_image[seen // width] * width + seen % width, return_counts=True)
    return cells // width, cells % width, counts, width
