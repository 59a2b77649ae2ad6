"""Split a table by class, image or group, with a result that does not depend on the order of the table.

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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.cache import cache_folder
from lit_loader.annotations.table import COLUMNS, AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import new_file
from lit_loader.types import IndexArray

__all__ = [
    "Traits",
    "check_groups",
    "copies_across",
    "equal_files",
    "find_copies",
    "group_names",
    "hold_out",
    "shared_names",
    "stratified_split",
]

Traits: TypeAlias = Sequence[Callable[[str], Any]]
"""Functions of an image's path that are equal for copies; false if it is empty, OSError if it cannot be read."""

_TAIL_BYTES = 4096


def hold_out(
    table: AnnotationTable,
    shares: Mapping[str, float],
    *,
    group_pattern: str | None = None,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    traits: Traits | None = None,
) -> tuple[dict[str, IndexArray], str, bool]:
    """Return a `stratified_split` in which copies of an image stay together; see NOTE [Copies].

    Args:
        table: As for `stratified_split`.
        shares: As for `stratified_split`.
        group_pattern: As for `group_names`, or None for no groups. Groups that share copies are merged.
        seed: As for `stratified_split`.
        cache_dir: Folder to cache the copies in, or None for the user's cache folder.
        traits: As for `find_copies`.

    Returns:
        The parts, a sentence about the copies (empty if there are none), and True if the images were compared in this
        call.

    Raises:
        ValueError: As for `group_names` and `stratified_split`.
    """
    groups = None if group_pattern is None else group_names(table.image_paths, group_pattern)
    copies, is_new = find_copies(table, cache_dir, traits)
    text = ""
    if copies:
        # Every image is its own group without a pattern, so copies are the only groups of several images.
        groups = _connected(list(table.image_paths) if groups is None else groups, copies)
        a, b = (table.image_paths[i] for i in copies[0][:2])
        text = (
            f"{sum(map(len, copies))} images are byte-identical copies ({len(copies)} groups), such as {a!r} and "
            f"{b!r}; each group stays in one split"
        )
    return stratified_split(table, shares, groups=groups, seed=seed), text, is_new


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
    for trait in (os.path.getsize, _tail, _digest) if traits is None else traits:
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


def stratified_split(
    table: AnnotationTable, shares: Mapping[str, float], *, groups: Sequence[str] | None = None, seed: int = 0
) -> dict[str, IndexArray]:
    """Split the images of a table so that every class is divided in proportion to the parts' shares.

    Classes are assigned one by one, starting with the class with the fewest unassigned images. Each of its images goes
    to the part that lacks most of that class. Images without objects form a class of their own. If every image has one
    class, each part gets its share of each class to within one image, apart from the next rule.

    A class in at least as many groups as there are parts occurs in every part, unless images that it shares with a
    rarer class went to other parts; a class in fewer groups occurs in as many parts as possible.

    Args:
        table: The images with their objects.
        shares: Share of each part by name; positive, with sum 1.
        groups: Group of each image, such as the person it shows; groups are never split. Default: every image path is a
            group. Larger groups are assigned first, so a small part gets small groups.
        seed: Seed of the split.

    Returns:
        Per part, int64 positions in the table, ascending. No position is in two parts.

    Raises:
        ValueError: If shares are not positive or their sum is not 1, or ``groups`` does not have one name per image.

    Determinism: the parts depend only on ``seed`` and on each image's classes and group (or path), not on the order of
    the images in the table.

    Source:
        Sechidis, Tsoumakas and Vlahavas 2011, On the stratification of multi-label data, algorithm 1. The rule that
        every part gets an image of a rare class is an addition.
    """
    if not all(share > 0 for share in shares.values()) or not abs(sum(shares.values()) - 1) < 1e-6:
        raise ValueError(f"shares={dict(shares)} must be positive with sum 1, e.g. train 0.9 and val 0.1")
    if groups is not None and len(groups) != table.num_images:
        raise ValueError(f"groups has {len(groups)} names, but the table has {table.num_images} images")
    # Without groups, images with the same path are one unit, so an image listed twice stays in one part.
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


def _connected(names: Sequence[str], copies: Iterable[Sequence[int]]) -> list[str]:
    """Return the group of each image after merging groups with common copies; the first name is kept."""
    parents: dict[str, str] = {}

    def find_root(name: str) -> str:
        while name in parents:
            name = parents[name]
        return name

    for images in copies:
        root, *merged = sorted({find_root(names[image]) for image in images})
        parents |= dict.fromkeys(merged, root)
    return list(map(find_root, names))


def _units(groups: Iterable[str], *, seed: int) -> tuple[list[str], IndexArray]:
    """Return the distinct groups in the order of assignment, and the position of each image's group among them."""
    group_of_image = list(groups)
    sizes = Counter(group_of_image)
    salt = hashlib.blake2b(f"{seed}".encode(), digest_size=16).digest()

    def key(name: str) -> tuple[int, bytes, str]:
        # Groups of equal size are shuffled by a hash of their name, so the table's order has no influence.
        shuffled = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8, salt=salt).digest()
        return -sizes[name], shuffled, name

    names = sorted(sizes, key=key)
    positions = {name: position for position, name in enumerate(names)}
    return names, np.array(list(map(positions.__getitem__, group_of_image)), dtype=np.int64)


def _assign_units(
    table: AnnotationTable, unit_of_image: IndexArray, num_units: int, shares: Sequence[float]
) -> IndexArray:
    """Return the part of each unit, that is, of each group."""
    units, labels, counts, num_labels = _images_by_unit_and_label(table, unit_of_image)
    cell_starts = np.searchsorted(units, np.arange(num_units + 1))
    sizes = np.bincount(unit_of_image, minlength=num_units)
    num_unassigned = np.bincount(labels, minlength=num_labels)  # units of each label without a part
    num_assigned = np.zeros((len(shares), num_labels), dtype=np.int64)  # units of each label in each part
    # Images that each part still needs, of each label and in all; both may become negative.
    lacking = np.outer(shares, np.bincount(labels, weights=counts, minlength=num_labels))
    capacity = np.asarray(shares) * len(unit_of_image)
    part_of_unit = np.full(num_units, -1, dtype=np.int64)
    while num_unassigned.any():
        # The rarest label first: later, common labels can still even out the parts, but rare ones cannot.
        label = int(np.where(num_unassigned > 0, num_unassigned, np.iinfo(np.int64).max).argmin())
        for unit in units[labels == label]:
            if part_of_unit[unit] >= 0:
                continue
            empty_parts = np.flatnonzero(num_assigned[:, label] == 0)
            # With as few units left as parts without the label, each of these parts must get one.
            must_fill = 0 < num_unassigned[label] <= len(empty_parts)
            choices = empty_parts if must_fill else np.arange(len(shares))
            part = _part_to_fill(choices, lacking[:, label], capacity)
            part_of_unit[unit] = part
            cells = slice(cell_starts[unit], cell_starts[unit + 1])
            num_unassigned[labels[cells]] -= 1
            num_assigned[part, labels[cells]] += 1
            lacking[part, labels[cells]] -= counts[cells]
            capacity[part] -= sizes[unit]
    return part_of_unit


def _part_to_fill(choices: IndexArray, lacking: npt.NDArray[np.float64], capacity: npt.NDArray[np.float64]) -> int:
    """Return the part that lacks most of a label; ties go to the part that lacks most images, then to the first."""
    # Rounding keeps float errors from deciding ties.
    return min(map(int, choices), key=lambda part: (-lacking[part].round(6), -capacity[part].round(6), part))


def _images_by_unit_and_label(
    table: AnnotationTable, unit_of_image: IndexArray
) -> tuple[IndexArray, IndexArray, IndexArray, int]:
    """Return sorted cells (unit, label, number of images), and the number of labels; the last one is "no object".

    The cells are sparse, because a dense table of a million images and a thousand classes would not fit into memory.
    """
    num_labels = table.num_classes + 1
    empty_images = np.flatnonzero(np.diff(table.offsets) == 0)
    object_cells = table.image_of_object() * num_labels + table.labels
    image_cells = np.unique(np.concatenate([object_cells, empty_images * num_labels + table.num_classes]))
    units = unit_of_image[image_cells // num_labels]
    cells, counts = np.unique(units * num_labels + image_cells % num_labels, return_counts=True)
    return cells // num_labels, cells % num_labels, counts, num_labels
