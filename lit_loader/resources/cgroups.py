"""Limits of the control groups that this process is in, of version 1, version 2, or both at once.

A process is in one group of each hierarchy, and every group above it limits it too, so that the tightest of
them counts. Where a hierarchy is mounted, and which part of it, is said by ``/proc/self/mountinfo``: in a
container the mount often shows the container's own group as its root, while ``/proc/self/cgroup`` may name it
by its path on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, TypeVar

__all__ = ["CgroupLimits", "read_cgroup_limits", "read_throttled_s"]

_Limit = TypeVar("_Limit", int, float)

_NO_LIMIT: Final = 1 << 60
"""Bytes above which version 1 means no limit: it writes the largest multiple of a page."""


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """What the control groups allow.

    Attributes:
        cores: CPU seconds a second; None: no quota.
        memory_left_bytes: What the process may still take before a limit is reached, memory that the kernel can
            reclaim from the group's file cache included; None: no limit.
    """

    cores: float | None
    memory_left_bytes: int | None


class _Mount(NamedTuple):
    version: int
    controllers: frozenset[str]
    shown: PurePosixPath  # the group that stands at the mount point
    place: Path


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits of this process.

    Args:
        root: Where ``proc`` and ``sys`` lie; another one for tests.

    Returns:
        The tightest limits on the way from the process's own groups up to the mounts. What cannot be read
        (another system, a hidden ``/sys``) limits nothing.
    """
    return CgroupLimits(
        cores=_tightest(_quota(folder) for folder in _folders(root, "cpu")),
        memory_left_bytes=_tightest(_memory_left(folder) for folder in _folders(root, "memory")),
    )


def read_throttled_s(root: Path = Path("/")) -> float | None:
    """Return the seconds for which a quota has held this process's groups back so far; None: not told."""
    found = [_throttled(folder) for folder in _folders(root, "cpu")]
    return max((seconds for seconds in found if seconds is not None), default=None)


def _tightest(limits: Iterable[_Limit | None]) -> _Limit | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()  # version 2: "max 100000" or "150000 100000"
    if not words:
        words = [_text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()]
    quota, period = (_number(word) for word in [*words, "", ""][:2])
    return quota / period if quota is not None and period and quota > 0 else None


def _memory_left(folder: Path) -> int | None:
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [number for name in names if (number := _number(_text(folder / name).strip())) is not None]
    limit = min(limits, default=_NO_LIMIT)
    if limit >= _NO_LIMIT:
        return None
    used = _number(
        _text(folder / "memory.current").strip() or _text(folder / "memory.usage_in_bytes").strip()
    )
    told = _fields(folder / "memory.stat")
    reclaimable = told.get("total_inactive_file", told.get("inactive_file", 0))
    return max(0, limit - max(0, (used or 0) - reclaimable))


def _throttled(folder: Path) -> float | None:
    told = _fields(folder / "cpu.stat")
    if "throttled_usec" in told:
        return told["throttled_usec"] / 1e6
    return told["throttled_time"] / 1e9 if "throttled_time" in told else None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from the process's own upwards, of every hierarchy."""
    groups = dict(_groups(root))
    for mount in _mounts(root):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        own = groups.get(controller if mount.version == 1 else "")
        if own is None:
            continue
        folder = mount.place
        if own.is_relative_to(mount.shown) and ".." not in own.parts:
            folder = mount.place / own.relative_to(mount.shown)
        while not folder.is_dir() and folder != mount.place:
            folder = folder.parent
        yield folder
        while folder != mount.place:
            folder = folder.parent
            yield folder


def _groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield controller (``""``: version 2) and group of this process."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            yield controller, PurePosixPath(group or "/")


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, *_, options = [*right.split(), "", ""][:3]
        words = left.split()
        if len(words) < 5 or kind not in ("cgroup", "cgroup2"):
            continue
        shown, place = (word.replace("\\040", " ") for word in words[3:5])
        yield _Mount(
            2 if kind == "cgroup2" else 1,
            frozenset(options.split(",")),
            PurePosixPath(shown),
            root / place.lstrip("/"),
        )


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(word: str) -> int | None:
    return int(word) if word.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
