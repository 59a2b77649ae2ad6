"""Findings of a check: defects of a data set, with the place, the severity and the remedy of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from lit_loader.annotations.places import Place

__all__ = ["Finding", "Findings", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]
"""``error``: training fails or learns wrong targets. ``warning``: it probably is a mistake. ``note``: worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A defect of one image, object or set.

    Attributes:
        kind: Kind of the defect, such as ``"duplicate_box"``.
        severity: How bad it is.
        message: The wrong value and the rule.
        remedy: What to do about it.
        split: Name of the set.
        image: Path of the image relative to the root, or None if the finding is about a set.
        image_row: Row of the image in the table of the set, or None.
        object_row: Row of the object in the table, or None if the finding is not about one object.
        partner_row: Row of the other object of a pair of boxes, or None.
        place: Place in the annotation file, or None if unknown.
        partner_place: Place of the other object of a pair, or None.
        score: How far the value is from the allowed ones, within its kind; the worst examples are drawn first.
    """

    kind: str
    severity: Severity
    message: str
    remedy: str
    split: str
    image: str | None = None
    image_row: int | None = None
    object_row: int | None = None
    partner_row: int | None = None
    place: Place | None = None
    partner_place: Place | None = None
    score: float = 0.0


@dataclass(kw_only=True)
class Findings:
    """Findings by kind: counts of all, details of the worst ``max_details`` of each kind and set.

    Args:
        max_details: Number of details for each kind and set; it bounds the memory that a broken data set takes.

    Attributes:
        counts: Number of findings for each (kind, severity, set), with and without details.
        details: The worst findings for each (kind, severity, set), the worst first; of equal ones the first added.
    """

    max_details: int = 20
    counts: Counter[tuple[str, Severity, str]] = field(default_factory=Counter, init=False)
    details: dict[tuple[str, Severity, str], list[Finding]] = field(default_factory=dict, init=False)

    def add(self, finding: Finding) -> None:
        """Count a finding, and store it if it is among the worst of its kind and set."""
        key = (finding.kind, finding.severity, finding.split)
        self.counts[key] += 1
        worst = self.details.setdefault(key, [])
        position = len(worst)
        while position and worst[position - 1].score < finding.score:
            position -= 1
        worst.insert(position, finding)
        del worst[self.max_details :]

    def add_count(self, kind: str, severity: Severity, split: str, count: int) -> None:
        """Count findings without storing details; the stored ones must be at least as bad."""
        if count:
            self.counts[kind, severity, split] += count

    def __iter__(self) -> Iterator[Finding]:
        """Yield the findings with details, errors first."""
        for severity in get_args(Severity):
            for (_, finding_severity, _), findings in self.details.items():
                if finding_severity == severity:
                    yield from findings

    def __len__(self) -> int:
        return self.counts.total()

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(count for (_, finding_severity, _), count in self.counts.items() if finding_severity == severity)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON data."""
        counts = [
            {"kind": kind, "severity": severity, "split": split, "count": count}
            for (kind, severity, split), count in self.counts.items()
        ]
        return {"max_details": self.max_details, "counts": counts, "findings": [asdict(finding) for finding in self]}
