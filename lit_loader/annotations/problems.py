"""Report of the problems in annotations: counts of all, details of the first few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
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
        entry: Position in a list of a JSON file, such as ``annotations[17]``, or None.
        image: Path of the image relative to the root, or None if the problem was found before images were resolved.
    """

    kind: str
    action: str
    file: str
    message: str
    line: int | None = None
    object_index: int | None = None
    entry: str | None = None
    image: str | None = None


@dataclass(kw_only=True, repr=False)
class ReadReport:
    """Problems by (kind, action): counts of all, details of the first ``max_details`` of each.

    Args:
        max_details: Number of details per (kind, action); it bounds the memory that a broken data set takes.

    Attributes:
        counts: Number of problems of each (kind, action), with and without details.
        details: The first problems of each (kind, action).
    """

    max_details: int = 20
    # Counts and details are separate, because most problems of a broken data set are only counted.
    counts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    details: dict[tuple[str, str], list[Problem]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.max_details < 0:
            raise ValueError(f"max_details={self.max_details} must be >= 0")

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Details of the first problems, grouped by (kind, action) in the order of first occurrence."""
        return tuple(chain.from_iterable(self.details.values()))

    def count(self, kind: str, action: str | None = None) -> int:
        """Return the number of problems of a kind, with any action or with ``action``."""
        return sum(n for (k, a), n in self.counts.items() if k == kind and action in (None, a))

    @property
    def num_handled(self) -> int:
        """Number of problems without the fields that no reader reads, such as the licence of an image."""
        return sum(count for (_, action), count in self.counts.items() if action != "not read")

    def keeps_detail(self, kind: str, action: str) -> bool:
        """Return True if `add` would store the next detail; if not, callers need not write its message."""
        return len(self.details.get((kind, action), ())) < self.max_details

    def add(self, problem: Problem) -> None:
        """Count a problem, and store its detail if there are fewer than ``max_details``."""
        self.add_count(problem.kind, problem.action, 1)
        if self.keeps_detail(problem.kind, problem.action):
            self.details.setdefault((problem.kind, problem.action), []).append(problem)

    def add_count(self, kind: str, action: str, count: int) -> None:
        """Count problems without details."""
        self.counts[kind, action] += count

    def merge(self, other: ReadReport) -> None:
        """Add the counts of another report, and its details up to ``max_details``."""
        self.counts.update(other.counts)
        # Details of this report come first: workers are merged in the order of the files.
        for key, problems in other.details.items():
            details = self.details.setdefault(key, [])
            details.extend(problems[: self.max_details - len(details)])

    def __len__(self) -> int:
        return self.counts.total()

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __repr__(self) -> str:
        return f"ReadReport({len(self)} problems)"

    def __str__(self) -> str:
        if not self.counts:
            return "no problems found"
        rows = [("problem", "action", "count"), *((*key, str(count)) for key, count in self.counts.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{k:<{widths[0]}}  {a:<{widths[1]}}  {c:>{widths[2]}}" for k, a, c in rows]
        for problem in self.problems:
            place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
            lines.append(f"  {place}: {problem.message} [{problem.action}]")
        # Problems that were only counted, see `max_details`. Without any detail the counts above say all.
        hidden = len(self) - len(self.problems)
        if hidden and self.problems:
            lines.append(f"  and {hidden} more")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "max_details": self.max_details,
            "counts": [[*key, count] for key, count in self.counts.items()],
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
                report.details.setdefault((problem.kind, problem.action), []).append(problem)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a read report: {error}") from None
        return report


def shorten(text: str, length: int = 500) -> str:
    """Return ``text``, truncated if it is longer than ``length`` characters."""
    # Messages may quote a file that is not an annotation file at all.
    return text if len(text) <= length else f"{text[:length]}..."
