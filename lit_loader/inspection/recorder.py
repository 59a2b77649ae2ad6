"""Recording of findings: the rules of a check find rows, and only the worst of them become detailed findings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.places import Place
from lit_loader.annotations.table import AnnotationTable
from lit_loader.inspection.findings import Finding, Findings, Severity
from lit_loader.inspection.kinds import kind_of
from lit_loader.types import IndexArray

__all__ = ["Recorder", "TableSet"]


@dataclass(frozen=True, kw_only=True)
class TableSet:
    """A set of a data set.

    Attributes:
        name: Name of the set, such as ``train``.
        table: Its images and objects.
        sizes: int64 ``(num_images, 2)``, the larger of annotated and measured width, and of both heights; 0 if unknown.
    """

    name: str
    table: AnnotationTable
    sizes: npt.NDArray[np.int64]


class Recorder:
    """Adds findings with the severity and the remedy of their kind, unless the kind is ignored.

    Args:
        findings: Findings to add to.
        ignored_kinds: Kinds that are not added.
        accepted_kinds: Kinds that are only noted, because the user's policy accepts them.
    """

    def __init__(
        self, findings: Findings, *, ignored_kinds: Collection[str] = (), accepted_kinds: Collection[str] = ()
    ) -> None:
        self.findings = findings
        self._ignored_kinds = frozenset(ignored_kinds)
        self._accepted_kinds = frozenset(accepted_kinds)

    def is_ignored(self, kind: str) -> bool:
        """Return True if findings of a kind are not added."""
        return kind in self._ignored_kinds

    def _severity(self, kind: str, severity: Severity | None) -> Severity:
        return "note" if kind in self._accepted_kinds else severity or kind_of(kind).severity

    def add(
        self,
        kind: str,
        name: str,
        message: str,
        *,
        severity: Severity | None = None,
        place: Place | None = None,
        image: str | None = None,
        image_row: int | None = None,
        count: int = 1,
    ) -> None:
        """Add a finding about a set as a whole.

        Args:
            kind: Kind of the finding.
            name: Name of the set.
            message: The value and the rule.
            severity: Severity, or None for the kind's.
            place: Place in the annotation file, or None.
            image: Path of the image that a reader's problem is about, or None.
            image_row: Row of the image in the table, or None.
            count: Number of findings that the message summarizes.
        """
        if self.is_ignored(kind) or not count:
            return
        severity = self._severity(kind, severity)
        remedy = kind_of(kind).remedy
        self.findings.add(
            Finding(
                kind=kind,
                severity=severity,
                message=message,
                remedy=remedy,
                split=name,
                image=image,
                image_row=image_row,
                place=place,
            )
        )
        self.findings.add_count(kind, severity, name, count - 1)

    def add_count(self, kind: str, name: str, count: int) -> None:
        """Count findings of a set without details."""
        if not self.is_ignored(kind):
            self.findings.add_count(kind, self._severity(kind, None), name, count)

    def add_rows(
        self,
        kind: str,
        source: TableSet,
        rows: npt.ArrayLike,
        message: Callable[[int], str],
        *,
        scores: npt.ArrayLike | None = None,
        partners: IndexArray | None = None,
        unit: Literal["images", "objects"] = "objects",
        severity: Severity | None = None,
    ) -> None:
        """Add a finding for each row.

        Args:
            kind: Kind of the findings.
            source: Their set.
            rows: Rows of images or objects, ``(n,)``, all different.
            message: Function of a row that returns its message; called for the worst rows only.
            scores: How bad each row is, ``(n,)``, or None if all are equal.
            partners: Row of the other object of a pair, for each object of the table, or None.
            unit: Whether rows are images or objects.
            severity: Severity, or None for the kind's.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if self.is_ignored(kind) or not len(rows):
            return
        severity = self._severity(kind, severity)
        values = np.zeros(len(rows)) if scores is None else np.asarray(scores, dtype=np.float64)
        # Stable: the first of equally bad rows get the details.
        worst = np.argsort(-values, kind="stable")[: self.findings.max_details]
        table = source.table
        for row, score in zip(rows[worst].tolist(), values[worst].tolist(), strict=True):
            is_object = unit == "objects"
            image = int(np.searchsorted(table.offsets, row, side="right")) - 1 if is_object else row
            partner = None if partners is None else int(partners[row])
            self.findings.add(
                Finding(
                    kind=kind,
                    severity=severity,
                    message=message(row),
                    remedy=kind_of(kind).remedy,
                    split=source.name,
                    image=table.image_paths[image],
                    image_row=image,
                    object_row=row if is_object else None,
                    partner_row=partner,
                    place=table.place_of_object(row) if is_object else table.place_of_image(row),
                    partner_place=None if partner is None else table.place_of_object(partner),
                    score=score,
                )
            )
        self.findings.add_count(kind, severity, source.name, len(rows) - len(worst))
