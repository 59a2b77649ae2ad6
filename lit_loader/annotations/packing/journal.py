"""Journal of a packing run: the shards that are complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import new_file
from lit_loader.storage.catalog import DIGEST_BYTES
from lit_loader.storage.shard_writer import Shard

__all__ = ["JOURNAL_FILE", "Journal", "other_plan"]

JOURNAL_FILE: Final = "journal.jsonl"
"""Name of the journal."""


class Journal:
    """Shards of a run that are complete, one line of JSON each, after a line with the key of the plan.

    Args:
        path: The file.
        key: Key of the plan.
        place: The target, for messages.

    Attributes:
        shards: The shards that are complete, by name.
        is_continued: True if an earlier run has written to the target by this plan.

    Raises:
        AnnotationError: If the journal is of another plan.
    """

    def __init__(self, path: Path, key: str, *, place: str) -> None:
        self._path = path
        self._key = key
        lines = path.read_bytes().splitlines() if path.exists() else []
        records = list(_complete_lines(lines))
        if records and records[0].get("plan") != key:
            raise other_plan(place, path.parent)
        self.is_continued = bool(records)
        self.shards = dict(_shards(records[1:]))

    def start(self) -> None:
        """Write the file anew, so that no line follows an incomplete one."""
        with new_file(self._path) as file:
            for record in ({"plan": self._key}, *(_record(name, shard) for name, shard in self.shards.items())):
                file.write(json.dumps(record).encode() + b"\n")

    def add(self, name: str, shard: Shard) -> None:
        """Record that a shard is complete."""
        with self._path.open("ab") as file:
            file.write(json.dumps(_record(name, shard)).encode() + b"\n")


def other_plan(place: str, work: Path) -> AnnotationError:
    """Return the error of a target with an unfinished run of another plan."""
    message = f"{place} has an unfinished run of other images, annotations or another size of shards"
    remedy = f"give the same arguments for unchanged images, or remove {work} and the shards that the run has written"
    return AnnotationError(message, remedy=remedy)


def _record(name: str, shard: Shard) -> dict[str, Any]:
    return {
        "shard": name,
        "num_bytes": shard.num_bytes,
        "digest": shard.digest,
        "starts": shard.starts.tolist(),
        "lengths": shard.lengths.tolist(),
        "digests": shard.digests.tobytes().hex(),
    }


def _shards(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Shard]]:
    """Yield name and shard of each record; one that this version did not write counts as missing."""
    for record in records:
        try:
            shard = Shard(
                num_bytes=int(record["num_bytes"]),
                digest=str(record["digest"]),
                starts=np.array(record["starts"], np.int64),
                lengths=np.array(record["lengths"], np.int64),
                digests=np.frombuffer(bytes.fromhex(record["digests"]), np.uint8).reshape(-1, DIGEST_BYTES),
            )
            name = str(record["shard"])
        except (KeyError, OverflowError, TypeError, ValueError):
            continue
        if shard.starts.shape == shard.lengths.shape == shard.digests.shape[:1]:
            yield name, shard


def _complete_lines(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records up to the first line that is incomplete, because the run was killed, or no record."""
    for line in lines:
        try:
            record = json.loads(line)
        except (RecursionError, ValueError):
            return
        if not isinstance(record, dict):
            return
        yield record
