"""Checks of sets as a whole: problems that readers reported, classes, and images without objects."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from lit_loader.annotations.figures import HIGH_IMBALANCE
from lit_loader.annotations.places import Place
from lit_loader.annotations.problems import shorten
from lit_loader.inspection.findings import Severity
from lit_loader.inspection.kinds import kind_of
from lit_loader.inspection.recorder import Recorder, TableSet

__all__ = ["check_class_names", "check_reports", "check_sets"]

# Rules of this package find these in the table, where the reader keeps them, with the rows of images and objects.
_SEEN_IN_TABLES: Final = frozenset(
    {"degenerate", "keypoint_outside", "missing_image", "out_of_image", "turned_image", "unreadable_image"}
)
_MAX_NAMES: Final = 5
_WORD: Final = re.compile(r"[^\W\d_]+|\d+")
_MIN_LETTERS: Final = 3
_MAX_LENGTH: Final = 64
# The most frequent classes that a name is compared with; thousands of names may differ in one letter.
_MAX_CANDIDATES: Final = 16
# Real classes with similar names, such as `cat` and `car` in COCO, are less far apart in most data.
_MAX_RARE_SHARE: Final = 0.01


def check_reports(recorder: Recorder, source: TableSet) -> None:
    """Add the problems that the reader of a set reported."""
    report = source.table.report
    unread_fields = [problem for problem, action in report.counts if action == "not read"]
    if unread_fields:
        text = f"{_listed(unread_fields, 'fields')} not read"
        recorder.add("not_read", source.name, text, count=len(unread_fields))
    rows = _rows_of_reported_images(source)
    for (problem, action), count in report.counts.items():
        if action == "not read" or (problem in _SEEN_IN_TABLES and action == "keep"):
            continue
        details = report.details.get((problem, action), [])
        for detail in details:
            place = Place(file=detail.file, line=detail.line, entry=detail.entry)
            message = f"{shorten(detail.message)} (reader's action: {action})"
            image_row = None if detail.image is None else rows.get(detail.image)
            recorder.add(problem, source.name, message, place=place, image=detail.image, image_row=image_row)
        text = f"{kind_of(problem).rule} (reader's action: {action})"
        if details:
            recorder.add_count(problem, source.name, count - len(details))
        else:
            recorder.add(problem, source.name, text, count=count)


def _rows_of_reported_images(source: TableSet) -> dict[str, int]:
    """Return the rows of the images that the reader's problems name; images that it dropped have none."""
    paths = {problem.image for problem in source.table.report if problem.image is not None}
    if not paths:
        return {}
    return {path: row for row, path in enumerate(source.table.image_paths) if path in paths}


def check_class_names(recorder: Recorder, sources: Sequence[TableSet]) -> set[int]:
    """Add classes with almost the name of another one, and classes without an object in any set.

    Each is reported once, for the first set that has the class.

    Returns:
        Labels of classes that seem to mean another class; empty if findings about similar names are ignored.
    """
    counts = np.sum([source.table.class_counts() for source in sources], axis=0)
    names = sources[0].table.class_names
    similar_names: dict[str, list[str]] = defaultdict(list)
    for name in names:
        similar_names["".join(name.split()).casefold()].append(name)
    misspelled: set[int] = set()
    for similar in similar_names.values():
        if len(similar) > 1:
            used = " and ".join(_counted(name, counts[names.index(name)]) for name in similar)
            recorder.add("similar_class_names", sources[0].name, f"{used} differ only in case or spaces")
            labels = sorted(map(names.index, similar), key=lambda label: -counts[label])
            misspelled.update(labels[1:])
    for label, usual_label in _misspellings(names, counts.tolist()).items():
        if label not in misspelled:
            misspelled.add(label)
            _add_misspelling(recorder, sources, label, f"of {_counted(names[usual_label], counts[usual_label])}")
    unused = [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    if unused:
        text = f"{_listed(unused, 'classes')} without objects"
        recorder.add("unused_class", sources[0].name, text, count=len(unused))
    return set() if recorder.is_ignored("similar_class_names") else misspelled


def _counted(name: str, count: int) -> str:
    return f"{shorten(name)!r} ({count:,} {'object' if count == 1 else 'objects'})"


def _add_misspelling(recorder: Recorder, sources: Sequence[TableSet], label: int, usual_name: str) -> None:
    """Add a class whose name seems to be misspelled, with its first object."""
    counts = [int(source.table.class_counts()[label]) for source in sources]
    source = next(source for source, count in zip(sources, counts, strict=True) if count)
    row = int(np.argmax(source.table.labels == label))
    text = f"{_counted(source.table.class_names[label], sum(counts))} may be a misspelling {usual_name}"
    recorder.add_rows("similar_class_names", source, [row], lambda _: text)


def _misspellings(names: Sequence[str], counts: Sequence[int]) -> dict[int, int]:
    """Return labels of rare classes whose names may be misspelled, with the label of the class that is meant.

    One word of the name has one letter more, less or other than in the name of a frequent class, or two letters are
    exchanged. Words of one or two letters, and digits, tell classes apart: `car1` and `car2`, `eye_l` and `eye_r`.
    """
    words = [_WORD.findall(name.casefold()) if len(name) <= _MAX_LENGTH else [] for name in names]
    # Names that differ by an edit are equal without one of their letters, so few pairs are compared.
    labels_by_text: dict[str, list[int]] = defaultdict(list)
    frequent = (label for label, count in enumerate(counts) if count * _MAX_RARE_SHARE >= 1)
    for label in sorted(frequent, key=lambda label: -counts[label]):
        for text in _without_one_letter(words[label]):
            if len(labels_by_text[text]) < _MAX_CANDIDATES:
                labels_by_text[text].append(label)
    misspellings: dict[int, int] = {}
    for label, count in enumerate(counts):
        candidates = {other for text in _without_one_letter(words[label]) for other in labels_by_text.get(text, ())}
        matches = [
            other
            for other in candidates
            if 0 < count <= _MAX_RARE_SHARE * counts[other] and _differ_by_one_edit(words[label], words[other])
        ]
        if matches:
            misspellings[label] = max(matches, key=lambda other: (counts[other], -other))
    return misspellings


def _without_one_letter(words: Sequence[str]) -> set[str]:
    """Return the text of words, and the texts that lack one of its letters."""
    text = " ".join(words)
    return {text, *(text[:i] + text[i + 1 :] for i in range(len(text)))}


def _differ_by_one_edit(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return True if two names differ in one word of letters, and there in a letter or in the order of two."""
    pairs = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    if len(first) != len(second) or len(pairs) != 1:
        return False
    a, b = pairs[0]
    if min(len(a), len(b)) < _MIN_LETTERS or not (a + b).isalpha():
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    is_other = a[start + 1 :] == b[start + 1 :]
    is_longer = a[start + 1 :] == b[start:] or a[start:] == b[start + 1 :]
    is_exchanged = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return is_other or is_longer or is_exchanged


def check_sets(
    recorder: Recorder, sources: Sequence[TableSet], *, min_images: int, misspelled: Collection[int] = ()
) -> None:
    """Add missing, rare and frequent classes, and images without objects, of each set.

    Args:
        recorder: Receives the findings.
        sources: The sets, which have the same classes.
        min_images: Number of images below which a class is rare.
        misspelled: Labels of classes that are reported as misspelled, and so are not called missing or rare.
    """
    is_used = np.sum([source.table.class_counts() for source in sources], axis=0) > 0
    for source in sources:
        table = source.table
        if not table.num_images:
            recorder.add("empty_set", source.name, f"{source.name} has no images")
            continue
        class_counts = table.class_counts()
        # A set without labels has no classes to miss; its images are reported as empty.
        is_missing = is_used & (class_counts == 0) & (table.num_objects > 0)
        is_missing[list(misspelled)] = False
        for label in np.flatnonzero(is_missing).tolist():
            name = shorten(table.class_names[label])
            recorder.add("missing_class", source.name, f"{name!r} has no object in {source.name}")
        _check_frequencies(recorder, source, min_images=min_images, misspelled=misspelled)
        _check_empty_images(recorder, source)


def _check_frequencies(recorder: Recorder, source: TableSet, *, min_images: int, misspelled: Collection[int]) -> None:
    """Add classes in few images, and the ratio of the most frequent class to the rarest."""
    table = source.table
    num_classes = max(1, table.num_classes)
    # One number for each pair of image and class, so that an image counts once per class.
    pairs = np.unique(table.image_of_object() * num_classes + table.labels)
    image_counts = np.bincount(pairs % num_classes, minlength=num_classes)
    counts = table.class_counts()
    image_counts[list(misspelled)] = 0
    counts[list(misspelled)] = 0
    # In a set of fewer images every class would be rare.
    is_rare = (image_counts > 0) & (image_counts < min_images) & (table.num_images >= min_images)
    for label in np.flatnonzero(is_rare).tolist():
        name = shorten(table.class_names[label])
        text = f"{name!r} is in {image_counts[label]} of {table.num_images} images, fewer than {min_images}"
        recorder.add("rare_class", source.name, text)
    labels = np.flatnonzero(counts)
    if len(labels) > 1:
        rarest = labels[np.argmin(counts[labels])]
        most = labels[np.argmax(counts[labels])]
        ratio = counts[most] / counts[rarest]
        if ratio >= HIGH_IMBALANCE:
            names = [_counted(table.class_names[label], int(counts[label])) for label in (most, rarest)]
            recorder.add("imbalance", source.name, f"{names[0]} has {ratio:,.0f} times the objects of {names[1]}")


def _check_empty_images(recorder: Recorder, source: TableSet) -> None:
    """Add the share of images without objects; it is a warning if most images are empty."""
    table = source.table
    rows = np.flatnonzero(np.diff(table.offsets) == 0)
    share = len(rows) / table.num_images
    if len(rows):
        text = f"{len(rows)} of {table.num_images} images ({share:.1%}) have no objects, such as "
        text += repr(shorten(table.image_paths[int(rows[0])]))
        place = table.place_of_image(int(rows[0]))
        severity: Severity | None = "warning" if share > 0.5 else None
        recorder.add("empty_images", source.name, text, severity=severity, place=place)


def _listed(names: Sequence[str], unit: str) -> str:
    """Return the first names, and how many more there are, with a verb."""
    texts = [repr(shorten(name)) for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        texts.append(f"{len(names) - _MAX_NAMES} more {unit}")
    return f"{', '.join(texts)} {'is' if len(names) == 1 else 'are'}"
