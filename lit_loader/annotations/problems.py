"""Report of the problems in annotations: counts of all, details of the first few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Problem", "ReadReport", "shorten"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem in one annotation file.

    Attributes:
        kind: Kind of the problem, e.g. ``"degenerate"``.
        action: Action of the reader, e.g. ``"drop"``.
        file: The annotation file, relative to the root.
        message: The wrong value and the rule.
        line: Line in the file, from 1, or None if unknown.
        object_index: Position of the object in the file, from 0, or None if the problem is not about one object.
    """

    kind: str
    action: str
    file: str
    message: str
    line: int | None = None
    object_index: int | None = None


class ReadReport:
    """Problems by (kind, action): counts of all, details of the first ``max_details`` of each.

    Args:
        max_details: Number of details per (kind, action); it bounds the memory that a broken data set takes.
    """

    def __init__(self, *, max_details: int = 20) -> None:
        if max_details < 0:
            raise ValueError(f"max_details={max_details} must be >= 0")
        self.max_details = max_details
        # Counts and details are separate, because most problems of a broken data set are only counted.
        self._counts: dict[tuple[str, str], int] = {}
        self._details: dict[tuple[str, str], list[Problem]] = {}

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Number of problems of each (kind, action)."""
        return dict(self._counts)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Details of the first problems, grouped by (kind, action) in the order of first occurrence."""
        return tuple(problem for problems in self._details.values() for problem in problems)

    def count(self, kind: str, action: str | None = None) -> int:
        """Return the number of problems of a kind, with any action or with ``action``."""
        return sum(n for (k, a), n in self._counts.items() if k == kind and action in (None, a))

    def keeps_detail(self, kind: str, action: str) -> bool:
        """Return True if `add` would store the next detail; if not, callers need not write its message."""
        return len(self._details.get((kind, action), ())) < self.max_details

    def add(self, problem: Problem) -> None:
        """Count a problem, and store its detail if there are fewer than ``max_details``."""
        key = (problem.kind, problem.action)
        self.add_count(*key, 1)
        details = self._details.setdefault(key, [])
        if len(details) < self.max_details:
            details.append(problem)

    def add_count(self, kind: str, action: str, count: int) -> None:
        """Count problems without details."""
        self._counts[kind, action] = self._counts.get((kind, action), 0) + count

    def merge(self, other: ReadReport) -> None:
        """Add the counts of another report, and its details up to ``max_details``."""
        # Details of this report come first: workers are merged in the order of the files.
        for (kind, action), count in other._counts.items():
            self.add_count(kind, action, count)
            details = self._details.setdefault((kind, action), [])
            details.extend(other._details.get((kind, action), [])[: self.max_details - len(details)])

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadReport) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"ReadReport({len(self)} problems)"

    def __str__(self) -> str:
        if not self._counts:
            return "no problems found"
        rows = [(kind, action, str(count)) for (kind, action), count in self._counts.items()]
        rows.insert(0, ("problem", "action", "count"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{k:<{widths[0]}}  {a:<{widths[1]}}  {c:>{widths[2]}}" for k, a, c in rows]
        for problem in self.problems:
            place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
            lines.append(f"  {place}: {problem.message} [{problem.action}]")
        hidden = len(self) - len(self.problems)
        if hidden:
            lines.append(f"  and {hidden} more")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "max_details": self.max_details,
            "counts": [[kind, action, count] for (kind, action), count in self._counts.items()],
            "problems": [asdict(problem) for problem in self.problems],
        }

    @classmethod
    def from_dict(cls, values: Any) -> ReadReport:
        """Build a report from the values of ``to_dict``.

        Raises:
            ValueError: If the values are not a report.
        """
        try:
            report = cls(max_details=values["max_details"])
            for kind, action, count in values["counts"]:
                report.add_count(str(kind), str(action), count)
            # `add` would count them again.
            for problem in (Problem(**fields) for fields in values["problems"]):
                report._details.setdefault((problem.kind, problem.action), []).append(problem)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a read report: {error}") from None
        return report


def shorten(text: str, length: int = 500) -> str:
    """Return ``text``, truncated if it is longer than ``length`` characters."""
    return text if len(text) <= length else f"{text[:length]}..."
