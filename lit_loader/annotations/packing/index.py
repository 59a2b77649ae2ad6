"""Index of a packed set: the catalog of its images, and the table of each set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.merge import concatenate
from lit_loader.annotations.packing.plan import ShardPlan
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError, CacheError
from lit_loader.storage.catalog import DIGEST_BYTES, Catalog
from lit_loader.storage.pack_target import CATALOG_FILE, PackTarget, set_file
from lit_loader.storage.shard_writer import Shard

__all__ = [
    "PACKED_KEY",
    "extended_catalog",
    "file_digest",
    "load_catalog",
    "load_table",
    "numbered_like",
    "stored_tables",
    "target_catalog",
    "target_table",
]

PACKED_KEY: Final = "packed"
"""Key of the tables of packed sets."""

# A packed set has no folder of its own: its root is where it is read from.
_ROOT: Final = Path("/")


def load_catalog(path: Path, *, place: str | None = None) -> Catalog:
    """Map the catalog of a packed set.

    Args:
        path: The file.
        place: Where it is, for messages; None for ``path``.

    Raises:
        AnnotationError: If it is missing or damaged.
    """
    with _without_cache_errors(path, place):
        return Catalog.load(path)


def load_table(path: Path, *, place: str | None = None) -> AnnotationTable:
    """Map the table of a set, as `load_catalog` does."""
    with _without_cache_errors(path, place):
        return AnnotationTable.load(path, key=PACKED_KEY)


@contextmanager
def _without_cache_errors(path: Path, place: str | None) -> Iterator[None]:
    """Replace the remedies of cache files, which can be deleted, while an index cannot."""
    try:
        yield
    except CacheError as error:
        remedy = "copy it again, or pack the set with this version"
        problem = error.problem.replace(f"{path} ", "the file ", 1)
        raise AnnotationError(problem, path=place or path, remedy=remedy) from None


def target_catalog(target: PackTarget) -> Catalog:
    """Return the catalog of a target, with digests.

    Raises:
        AnnotationError: If it is missing or damaged, or has no digests.
    """
    with target.fetched(CATALOG_FILE) as path:
        catalog = load_catalog(path, place=f"{target.place}/{CATALOG_FILE}")
    if catalog.digests is None or catalog.object_digests is None or catalog.table_digests is None:
        raise AnnotationError("its catalog has no digests", path=target.place, remedy="pack it anew")
    return catalog


def target_table(target: PackTarget, name: str) -> AnnotationTable:
    """Return the table of a set of a target.

    Raises:
        AnnotationError: If it is missing or damaged.
    """
    with target.fetched(set_file(name)) as path:
        return load_table(path, place=f"{target.place}/{set_file(name)}")


def file_digest(path: Path) -> str:
    """Return the digest of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=DIGEST_BYTES)).hexdigest()


def numbered_like(
    packed_tables: Mapping[str, AnnotationTable], tables: Mapping[str, AnnotationTable]
) -> dict[str, AnnotationTable]:
    """Return tables whose classes have the numbers that they have in the packed records."""
    lists = [table.class_names for table in (*packed_tables.values(), *tables.values())]
    class_names = tuple(dict.fromkeys(name for names in lists for name in names))
    return {name: table.with_class_names(class_names) for name, table in tables.items()}


def extended_catalog(catalog: Catalog | None, plans: Sequence[ShardPlan], shards: Sequence[Shard]) -> Catalog:
    """Return a catalog with the images of new shards after its own."""
    paths = [
        plan.images.table.image_paths[plan.images.rows[position][0]]
        for plan in plans
        for position in range(plan.begin, plan.end)
    ]
    base = catalog or _empty_catalog()
    counts = np.array([plan.end - plan.begin for plan in plans], np.int64)
    numbers = np.repeat(np.arange(len(plans), dtype=np.int32) + np.int32(len(base.objects)), counts)
    assert base.digests is not None
    assert base.object_digests is not None
    return Catalog(
        root="",
        objects=[*base.objects, *(plan.name for plan in plans)],
        versions=[""] * (len(base.objects) + len(plans)),
        object_of=np.concatenate([base.object_of, numbers]),
        starts=np.concatenate([base.starts, *(shard.starts for shard in shards)]),
        lengths=np.concatenate([base.lengths, *(shard.lengths for shard in shards)]),
        path_hashes=np.concatenate([base.path_hashes, Catalog.hash_paths(paths)]),
        digests=np.concatenate([base.digests, *(shard.digests for shard in shards)]),
        object_digests=[*base.object_digests, *(shard.digest for shard in shards)],
        table_digests=base.table_digests,
    )


def _empty_catalog() -> Catalog:
    empty = np.zeros(0, np.int64)
    return Catalog(
        root="",
        objects=[],
        versions=[],
        object_of=empty.astype(np.int32),
        starts=empty,
        lengths=empty,
        path_hashes=empty.astype(np.uint64),
        digests=np.zeros((0, DIGEST_BYTES), np.uint8),
        object_digests=[],
        table_digests={},
    )


def stored_tables(
    tables: Mapping[str, AnnotationTable], packed_tables: Mapping[str, AnnotationTable], catalog: Catalog
) -> dict[str, AnnotationTable]:
    """Return the tables to store: the packed rows of each set, then its new images."""
    stored: dict[str, AnnotationTable] = {}
    for name, table in tables.items():
        # Cached stamps are of the files that were packed.
        rootless = replace(table, root=_ROOT, image_stamps=None, split=name)
        if name in packed_tables:
            packed_paths = set(packed_tables[name].image_paths)
            new_rows = [row for row, path in enumerate(table.image_paths) if path not in packed_paths]
            packed_table = replace(packed_tables[name], shards=None)
            rootless = concatenate([packed_table, rootless.select(np.array(new_rows, np.int64))])
        shards: npt.NDArray[np.int32] = catalog.object_of[catalog.slots(rootless.image_paths)]
        stored[name] = replace(rootless, shards=shards)
    return stored
