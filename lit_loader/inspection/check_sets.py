"""Checks of sets as a whole: problems that readers reported, classes, and images without objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

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
_HIGH_IMBALANCE: Final = 10.0


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


def check_class_names(recorder: Recorder, sources: Sequence[TableSet]) -> None:
    """Add classes whose names differ only in case or spaces, and classes without an object in any set.

    Each is reported once, for the first set that has the class.
    """
    counts = np.sum([source.table.class_counts() for source in sources], axis=0)
    names = sources[0].table.class_names
    similar_names: dict[str, list[str]] = defaultdict(list)
    for name in names:
        similar_names["".join(name.split()).casefold()].append(name)
    for similar in similar_names.values():
        if len(similar) > 1:
            used = " and ".join(f"{shorten(name)!r} ({counts[names.index(name)]} objects)" for name in similar)
            recorder.add("similar_class_names", sources[0].name, f"{used} differ only in case or spaces")
    unused = [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    if unused:
        text = f"{_listed(unused, 'classes')} without objects"
        recorder.add("unused_class", sources[0].name, text, count=len(unused))


def check_sets(recorder: Recorder, sources: Sequence[TableSet], *, min_images: int) -> None:
    """Add missing, rare and frequent classes, and images without objects, of each set.

    Args:
        recorder: Receives the findings.
        sources: The sets, which have the same classes.
        min_images: Number of images below which a class is rare.
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
        for label in np.flatnonzero(is_missing).tolist():
            name = shorten(table.class_names[label])
            recorder.add("missing_class", source.name, f"{name!r} has no object in {source.name}")
        _check_frequencies(recorder, source, min_images=min_images)
        _check_empty_images(recorder, source)


def _check_frequencies(recorder: Recorder, source: TableSet, *, min_images: int) -> None:
    """Add classes in few images, and the ratio of the most frequent class to the rarest."""
    table = source.table
    num_classes = max(1, table.num_classes)
    # One number for each pair of image and class, so that an image counts once per class.
    pairs = np.unique(table.image_of_object() * num_classes + table.labels)
    image_counts = np.bincount(pairs % num_classes, minlength=num_classes)
    # In a set of fewer images every class would be rare.
    is_rare = (image_counts > 0) & (image_counts < min_images) & (table.num_images >= min_images)
    for label in np.flatnonzero(is_rare).tolist():
        name = shorten(table.class_names[label])
        text = f"{name!r} is in {image_counts[label]} of {table.num_images} images, fewer than {min_images}"
        recorder.add("rare_class", source.name, text)
    counts = table.class_counts()
    labels = np.flatnonzero(counts)
    if len(labels) > 1:
        rarest = labels[np.argmin(counts[labels])]
        most = labels[np.argmax(counts[labels])]
        ratio = counts[most] / counts[rarest]
        if ratio >= _HIGH_IMBALANCE:
            names = [f"{shorten(table.class_names[label])!r} ({counts[label]} objects)" for label in (most, rarest)]
            recorder.add("imbalance", source.name, f"{names[0]} has {ratio:.3g} times the objects of {names[1]}")


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
