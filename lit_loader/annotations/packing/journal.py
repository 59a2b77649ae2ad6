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

__all__ = ["JOURNAL_FILE", "Journal"]

JOURNAL_FILE: Final = "journal.jsonl"
"""Name of the journal."""


class Journal:
    """Shards of a run that are complete, one line of JSON each, after a line with the key of the plan.

    Args:
        path: The file, which is created.
        key: Key of the plan.
        place: The target, for messages.

    Raises:
        AnnotationError: If the journal is of another plan.
    """

    def __init__(self, path: Path, key: str, *, place: str) -> None:
        self._path = path
        self.shards: dict[str, Shard] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        # The last line of a run that was killed may be incomplete.
        records = list(_complete_lines(lines))
        if records and records[0].get("plan") != key:
            message = f"{place} has unfinished shards of other images, annotations or another size of shards"
            remedy = f"remove {place}, or {path.parent}, and pack again, or give the same arguments"
            raise AnnotationError(message, remedy=remedy)
        for record in records[1:]:
            self.shards[record["shard"]] = Shard(
                num_bytes=record["num_bytes"],
                digest=record["digest"],
                starts=np.array(record["starts"], np.int64),
                lengths=np.array(record["lengths"], np.int64),
                digests=np.frombuffer(bytes.fromhex(record["digests"]), np.uint8).reshape(-1, DIGEST_BYTES),
            )
        # The file is written anew, so that no line follows an incomplete one.
        with new_file(path) as file:
            for record in records or [{"plan": key}]:
                file.write(json.dumps(record).encode() + b"\n")

    def add(self, name: str, shard: Shard) -> None:
        """Record that a shard is complete."""
        record = {
            "shard": name,
            "num_bytes": shard.num_bytes,
            "digest": shard.digest,
            "starts": shard.starts.tolist(),
            "lengths": shard.lengths.tolist(),
            "digests": shard.digests.tobytes().hex(),
        }
        with self._path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")


def _complete_lines(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return
