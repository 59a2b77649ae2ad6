"""Check of a data set before training: defects of its images, objects, points and sets."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.images import ImageReading
from lit_loader.inspection.check_images import ImageFiles, check_copies, check_depths, check_images, scan_images
from lit_loader.inspection.check_objects import check_boxes
from lit_loader.inspection.check_points import check_points
from lit_loader.inspection.check_sets import check_class_names, check_reports, check_sets
from lit_loader.inspection.findings import Findings
from lit_loader.inspection.kinds import KINDS
from lit_loader.inspection.recorder import Recorder, TableSet

__all__ = ["CheckSettings", "check_tables"]


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Settings of a check.

    Attributes:
        decode: True to decode every image, False to read headers only.
        min_side: Shortest side of a box in pixels; boxes with a shorter one are reported.
        duplicate_iou: IoU above which two boxes of one class in one image are reported, in (0, 1).
        min_images: Number of images below which a class of a set is reported.
        max_details: Number of findings with details for each kind and set; the others are only counted.
        ignored_kinds: Kinds of findings that are not reported, see `KINDS`.
        accepted_kinds: Kinds of findings that are accepted on purpose, as by a reader's policy; they are notes.

    Raises:
        SettingError: A number is outside its range.
    """

    decode: bool = True
    min_side: float = 2.0
    duplicate_iou: float = 0.9
    min_images: int = 10
    max_details: int = 20
    ignored_kinds: Collection[str] = ()
    accepted_kinds: Collection[str] = ()

    def __post_init__(self) -> None:
        if not 0 < self.duplicate_iou < 1:
            raise SettingError("duplicate_iou", self.duplicate_iou, "is not between 0 and 1")
        if not self.min_side >= 0:
            raise SettingError("min_side", self.min_side, "is not a number of pixels from 0")
        if self.min_images < 0:
            raise SettingError("min_images", self.min_images, "is negative")
        if self.max_details < 1:
            raise SettingError("max_details", self.max_details, "would show no finding", "give at least 1")


def check_tables(
    tables: Mapping[str, AnnotationTable],
    *,
    settings: CheckSettings | None = None,
    reading: ImageReading | None = None,
    num_workers: int | None = None,
    progress: bool = True,
) -> Findings:
    """Check the sets of a data set against each other and against their image files.

    Each defect is reported once, with the severity of its kind in `KINDS`. There are three exceptions: images without
    objects are a warning if they are more than half of a set, boxes that reach far beyond the image are errors, and
    accepted kinds are notes.

    Args:
        tables: The table of each set, by the name of the set.
        settings: Limits and kinds; default: `CheckSettings()`.
        reading: Settings that training reads images with; default: `ImageReading()`.
        num_workers: Threads that decode images, or processes that read headers; default: by the available CPUs.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        The findings: the counts of all, and details of the worst ones.

    Raises:
        SettingError: An ignored kind does not exist.
        ValueError: ``tables`` is empty, or the keypoint schemas differ.
    """
    if not tables:
        raise ValueError("tables is empty; pass at least one")
    settings = settings or CheckSettings()
    reading = reading or ImageReading()
    tables = dict(zip(tables, with_same_names(list(tables.values())), strict=True))
    _check_ignored_kinds(settings.ignored_kinds, tables)
    findings = Findings(max_details=settings.max_details)
    recorder = Recorder(findings, ignored_kinds=settings.ignored_kinds, accepted_kinds=settings.accepted_kinds)
    files = scan_images(tables, reading=reading, decode=settings.decode, num_workers=num_workers, progress=progress)
    sources = [TableSet(name=name, table=table, sizes=_sizes(name, table, files)) for name, table in tables.items()]
    for source in sources:
        check_reports(recorder, source)
        check_images(recorder, source, files)
        check_depths(recorder, source, files, reading=reading)
    check_copies(recorder, sources, files, reading=reading, progress=progress)
    check_boxes(recorder, sources, min_side=settings.min_side, duplicate_iou=settings.duplicate_iou)
    check_points(recorder, sources)
    misspelled = check_class_names(recorder, sources)
    check_sets(recorder, sources, min_images=settings.min_images, misspelled=misspelled)
    return findings


def _check_ignored_kinds(kinds: Collection[str], tables: Mapping[str, AnnotationTable]) -> None:
    """Refuse kinds that do not exist, since a typing error would ignore nothing."""
    # Readers of users' own formats report kinds of their own.
    known_kinds = {*KINDS, *(kind for table in tables.values() for kind, _ in table.report.counts)}
    for kind in kinds:
        if kind not in known_kinds:
            matches = difflib.get_close_matches(kind, sorted(known_kinds), n=1) or sorted(KINDS)
            raise SettingError("ignored_kinds", kind, "is not a kind of finding", f"choose {', '.join(matches)}")


def _sizes(name: str, table: AnnotationTable, files: ImageFiles) -> npt.NDArray[np.int64]:
    """Return the sizes that boxes and points are compared with, see `TableSet`."""
    annotated = np.stack([table.widths, table.heights], axis=1).astype(np.int64)
    # A wrong size is a finding of its own. Only boxes that fit neither the annotated nor the measured one are others.
    sizes = np.maximum(annotated, files.sizes[files.rows[name]])
    if table.regions is not None:
        # Such a row has the size of its part of the file.
        is_part = table.regions.any(axis=1) & (annotated > 0).all(axis=1)
        sizes[is_part] = annotated[is_part]
    return sizes
