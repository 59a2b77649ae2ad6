"""Whether all ranks get the same from a user's own sampler: compared once for a loader, before its first batch.

Ranks that disagree would train on overlapping or missing samples, or wait for each other for ever in a collective after
the shorter one has ended. No process group is known here: ``gather`` is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from lit_loader.resume import index_digest

__all__ = ["Gather", "check_equal_lengths", "checked_alike"]

Gather = Callable[[Any], list[Any]]
"""Takes a rank's plain value and returns those of all ranks, in the order of ranks."""


class _Report(NamedTuple):
    """What a rank says of its sampler; ``first`` is for the message, as a ``repr`` may differ where values do not."""

    kind: str
    num_batches: int | None
    digest: str | None = None
    first: str = ""
    error: str | None = None


def checked_alike(
    batches: Iterator[Any], *, name: str, num_batches: int | None, whole: bool, gather: Gather
) -> Iterator[Any]:
    """Return an equal iterator over a sampler's global batches, once all ranks were found to get the same.

    Args:
        batches: The global batches of the epoch that begins now.
        name: The class of the sampler, for the message.
        num_batches: How many it says there are; None: not known.
        whole: Whether all of them are compared. If not, or if their number is not known, only the first is.
        gather: Exchanges the reports. All ranks call it here.

    Raises:
        ValueError: On every rank, if the ranks differ.
    """
    taken: deque[Any] = deque()
    failure: Exception | None = None
    try:
        taken.extend(islice(batches, num_batches if whole and num_batches is not None else 1))
        first = repr(taken[0])[:60] if taken else "nothing"
        mine = _Report("whole", num_batches, index_digest(taken), first)
    except Exception as error:  # the others wait for this rank's report
        failure = error
        mine = _Report("whole", num_batches, error=f"{type(error).__name__}: {error}"[:200])
    reports = gather(tuple(mine))
    if failure is not None:
        raise failure
    _check(name, [_Report(*report) for report in reports])
    return chain(_emptied(taken), batches)


def check_equal_lengths(name: str, num_batches: int | None, gather: Gather) -> None:
    """Refuse a sampler that gives each rank its own part, if the parts have other numbers of batches.

    Raises:
        ValueError: On every rank, if so.
    """
    _check(name, [_Report(*report) for report in gather(tuple(_Report("part", num_batches)))])


def _emptied(taken: deque[Any]) -> Iterator[Any]:
    while taken:  # an epoch's indices are large: each is let go of when it was used
        yield taken.popleft()


def _check(name: str, reports: list[_Report]) -> None:
    failed = [f"rank {rank}: {report.error}" for rank, report in enumerate(reports) if report.error]
    if failed:
        raise ValueError(f"{name} raised on another rank, {'; '.join(failed)}; see that rank's own error")
    if len({(report.kind, report.num_batches, report.digest) for report in reports}) == 1:
        return
    if {report.kind for report in reports} == {"part"}:
        listed = "; ".join(f"rank {rank}: {report.num_batches}" for rank, report in enumerate(reports))
        raise ValueError(
            f"{name} gives its ranks other numbers of batches ({listed}). All ranks need as many, or those with more "
            "wait for ever; give it drop_last=True or let it fill up, or use a sampler of lit_loader.samplers"
        )
    listed = "; ".join(
        f"rank {rank}: {'unknown' if report.num_batches is None else report.num_batches} batches, digest "
        f"{report.digest}, the first {report.first}"
        for rank, report in enumerate(reports)
    )
    raise ValueError(
        f"{name} gives its ranks other indices ({listed}). With seed= every rank iterates the whole sampler and takes "
        "its part of each global batch, so all must get the same. If it gives each rank its own part, let it show int "
        "attributes `rank` and `num_replicas`, as torch's DistributedSampler does; if not, let it draw from the "
        "process-wide generators, which seed= keys, or use a sampler of lit_loader.samplers"
    )
