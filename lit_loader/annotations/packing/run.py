"""Pack annotation tables and their images into shards: plan, write, resume, append, verify.

NOTE [Order of writing]
    Shards come first. Each is complete when it appears, and a line of the journal in the target's ``work`` folder then
    records its digests, so a run that was killed continues with the shards that the journal lacks. The plan, which
    image goes where, depends only on the tables and the sizes of the images, so the continued run writes the same
    bytes. The index is written last and twice: completely in ``work``, where a marker with the plan's key commits it,
    and then to the target, the catalog before the tables. A reader that opens a table first therefore finds all of its
    images in the catalog, also while new shards are being appended.

NOTE [Files of others]
    Another program may have written files to the target, and a copied set may contain a ``work`` folder. A run
    replaces only the files that its catalog or journal names. It moves files by name alone, and follows no links.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np

from lit_loader.annotations.fingerprint import annotation_digest
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.packing.index import (
    PACKED_KEY,
    extended_catalog,
    file_digest,
    numbered_like,
    stored_tables,
    target_catalog,
    target_table,
)
from lit_loader.annotations.packing.journal import JOURNAL_FILE, Journal, other_plan
from lit_loader.annotations.packing.plan import (
    NewImages,
    ShardPlan,
    cuts,
    image_file_stamp,
    plan_key,
    read_image,
    shard_images,
)
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.shard_records import RecordWriter
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.foundation.files import file_lock, new_file
from lit_loader.foundation.host import count_cores
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.mirror import is_mirrored
from lit_loader.storage.pack_target import CATALOG_FILE, PackTarget, set_file
from lit_loader.storage.shard_writer import Shard, image_digest, write_shard

__all__ = ["PackReport", "pack_tables"]

_COMMITTED: Final = "committed"
_MAX_KEY_BYTES: Final = 100
_CHUNK_IMAGES: Final = 1000
_MAX_THREADS: Final = 16
_ItemT = TypeVar("_ItemT")
_ResultT = TypeVar("_ResultT")

Advance = Callable[[int, int], None]
"""Called with the number of images of a finished step, and the number of their bytes."""


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """Result of packing.

    Attributes:
        num_images: Images that this run packed, including those that a killed run had packed.
        num_bytes: Bytes of their shards.
        num_shards: Number of these shards.
        num_skipped: Images that were packed before.
        num_shared: Images that another of the sets has as well; they are packed once.
    """

    num_images: int
    num_bytes: int
    num_shards: int
    num_skipped: int = 0
    num_shared: int = 0


def pack_tables(
    tables: Mapping[str, AnnotationTable],
    target: PackTarget,
    *,
    shard_bytes: int,
    append: bool = False,
    num_workers: int | None = None,
    progress: Callable[[str, int], Advance] = lambda description, total: lambda images, num_bytes: None,
) -> PackReport:
    """Pack sets with their images.

    An image in several sets is packed once, in a shard of the first of them.

    Args:
        tables: Tables by the name of their set, with the same root, classes and attributes.
        target: Where to write.
        shard_bytes: Largest size of a shard with more than one image.
        append: Add images to a packed set; images that it has are compared and skipped.
        num_workers: Number of threads that read images and write shards, or None to decide by the number of cores.
        progress: Called with a description and a number of images; returns a function that counts them.

    Raises:
        AnnotationError: If an image is missing, is in a store, or differs from the packed one; a set is called
            ``"catalog"``; or the target has a packed set, an unfinished run of other images, or files of others.
        OSError: If a file cannot be read or written.
        StorageError: If the store refuses a request.
    """
    for name, table in tables.items():
        if set_file(name).lower() == CATALOG_FILE:
            raise AnnotationError(f"a set cannot be called {name!r}, because {CATALOG_FILE} is the index")
        # Files of a mirror have only the size of their images.
        if is_mirrored(table.root):
            remedy = "copy the data set to this host, and pack it from there"
            raise AnnotationError("the images are in a store", path=table.root, remedy=remedy)
    for folder in (target.work, target.work / "shards"):
        if folder.is_symlink():
            raise AnnotationError("expected a folder for unfinished files, got a link", path=folder, remedy="remove it")
    target.work.mkdir(parents=True, exist_ok=True)
    with file_lock(target.work / "lock", wait=False) as is_alone:
        if not is_alone:
            raise AnnotationError("another process is packing to this place; wait until it ends", path=target.place)
        packing = _Packing(target, shard_bytes, min(num_workers or count_cores(), _MAX_THREADS), progress)
        try:
            return packing.run(tables, append=append)
        finally:
            # Only a journal lets the next run continue.
            if not (target.work / JOURNAL_FILE).exists():
                shutil.rmtree(target.work, ignore_errors=True)


class _Packing:
    """One run of `pack_tables`."""

    def __init__(
        self, target: PackTarget, shard_bytes: int, num_threads: int, progress: Callable[[str, int], Advance]
    ) -> None:
        self._target = target
        self._work = target.work
        self._shard_bytes = shard_bytes
        self._num_threads = num_threads
        self._progress = progress

    def run(self, tables: Mapping[str, AnnotationTable], *, append: bool) -> PackReport:
        """Pack the tables; see `pack_tables`."""
        committed_key = self._committed_key()
        if committed_key is not None and append:
            self._put_committed()
        sizes = self._target.sizes()
        is_packed = CATALOG_FILE in sizes
        if is_packed and not append and committed_key is None:
            message = "a packed set is there already"
            remedy = "give another place, or add the images that it lacks"
            raise AnnotationError(message, path=self._target.place, remedy=remedy, settings={"append": True})
        catalog = target_catalog(self._target) if is_packed and append else None
        packed_tables: dict[str, AnnotationTable] = {}
        if catalog is not None:
            packed_tables = {name: target_table(self._target, name) for name in tables if set_file(name) in sizes}
            self._compare(tables, packed_tables, catalog)
            tables = numbered_like(packed_tables, tables)
        plans, num_shared, num_skipped = self._plan(tables, packed_tables, catalog)
        key = plan_key(plans, tables, self._shard_bytes)
        if committed_key is not None and not append:
            # A run that was killed after its commit has nothing to do but to move its index.
            if committed_key != key:
                raise other_plan(self._target.place, self._work)
            self._put_committed()
        elif plans or catalog is None or _has_new_rows(tables, packed_tables):
            shards = self._write(plans, key, sizes, catalog)
            new_catalog = extended_catalog(catalog, plans, shards)
            self._finish(stored_tables(tables, packed_tables, new_catalog), new_catalog, key)
            sizes = {plan.name: shard.num_bytes for plan, shard in zip(plans, shards, strict=True)}
        return PackReport(
            num_images=sum(plan.end - plan.begin for plan in plans),
            num_bytes=sum(sizes[plan.name] for plan in plans),
            num_shards=len(plans),
            num_skipped=num_skipped,
            num_shared=num_shared,
        )

    # -- the plan -------------------------------------------------------------------------------------------------

    def _plan(
        self,
        tables: Mapping[str, AnnotationTable],
        packed_tables: Mapping[str, AnnotationTable],
        catalog: Catalog | None,
    ) -> tuple[list[ShardPlan], int, int]:
        """Return the shards to write, and how many images are in several sets and how many are packed."""
        seen: set[str] = set()
        plans: list[ShardPlan] = []
        num_shared = 0
        num_skipped = 0
        for name, table in tables.items():
            rows_by_path: dict[str, list[int]] = {}
            for row, path in enumerate(table.image_paths):
                rows_by_path.setdefault(path, []).append(row)
            paths = list(rows_by_path)
            is_packed = np.zeros(len(paths), np.bool_) if catalog is None else catalog.slots(paths) >= 0
            new_paths = [path for path, packed in zip(paths, is_packed.tolist(), strict=True) if not packed]
            num_skipped += len(paths) - len(new_paths)
            unique_paths = [path for path in new_paths if path not in seen]
            num_shared += len(new_paths) - len(unique_paths)
            seen.update(unique_paths)
            images = self._measured(table, [rows_by_path[path] for path in unique_paths])
            packed_table = packed_tables.get(name)
            # Numbers go on, because the members of all shards of a set have different names.
            first_number = 0 if packed_table is None else len(set(packed_table.image_paths))
            images = replace(images, first_number=first_number)
            first_shard = sum(_is_shard_of(name, key) for key in catalog.objects) if catalog is not None else 0
            for number, (begin, end) in enumerate(cuts(images.sizes, self._shard_bytes)):
                shard_name = f"shards/{name}-{first_shard + number:06d}.tar"
                plans.append(ShardPlan(name=shard_name, images=images, begin=begin, end=end))
        return plans, num_shared, num_skipped

    def _measured(self, table: AnnotationTable, rows: Sequence[Sequence[int]]) -> NewImages:
        """Return images with the sizes of their files and records."""
        writer = RecordWriter(table)

        def measure(chunk: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
            return [(*image_file_stamp(table, image[0]), len(writer.encode(image))) for image in chunk]

        chunks = [rows[start : start + _CHUNK_IMAGES] for start in range(0, len(rows), _CHUNK_IMAGES)]
        advance = self._progress("Measuring images", len(rows))
        measures: list[tuple[int, int, int]] = []
        for chunk_measures in self._on_threads(measure, chunks):
            advance(len(chunk_measures), 0)
            measures += chunk_measures
        array = np.array(measures, np.int64).reshape(-1, 3)
        return NewImages(table=table, rows=rows, sizes=array[:, [0, 2]], times=array[:, 1], first_number=0)

    # -- shards ---------------------------------------------------------------------------------------------------

    def _write(
        self, plans: Sequence[ShardPlan], key: str, sizes: Mapping[str, int], catalog: Catalog | None
    ) -> list[Shard]:
        """Write the shards that the journal lacks, and return all of them in order."""
        journal = Journal(self._work / JOURNAL_FILE, key, place=self._target.place)
        self._refuse_others(sizes, catalog, plans if journal.is_continued else ())
        journal.start()
        counts = {plan.name: plan.end - plan.begin for plan in plans}
        # A shard may have been deleted since.
        finished = {
            name: shard
            for name, shard in journal.shards.items()
            if (sizes.get(name), counts.get(name)) == (shard.num_bytes, len(shard.starts))
        }
        advance = self._progress("Packing images", sum(plan.end - plan.begin for plan in plans))
        shutil.rmtree(self._work / "shards", ignore_errors=True)

        def write(plan: ShardPlan) -> tuple[ShardPlan, Shard]:
            shard = finished.get(plan.name)
            if shard is None:
                shard = write_shard(self._work / plan.name, shard_images(plan))
                self._target.put([plan.name])
            return plan, shard

        shards: list[Shard] = []
        for plan, shard in self._on_threads(write, plans):
            if plan.name not in finished:
                journal.add(plan.name, shard)
            advance(plan.end - plan.begin, shard.num_bytes)
            shards.append(shard)
        return shards

    def _refuse_others(self, sizes: Mapping[str, int], catalog: Catalog | None, plans: Sequence[ShardPlan]) -> None:
        """Raise AnnotationError if shards or tables are there that neither the catalog nor the journal has."""
        packed_files = {plan.name for plan in plans}
        if catalog is not None:
            packed_files |= {CATALOG_FILE, *catalog.objects, *map(set_file, catalog.table_digests or ())}
        names = [name for name in sizes if name not in packed_files and name.endswith((".tar", set_file("")))]
        # A packed set has no other folders.
        strangers = sorted(name for name in names if "/" not in name.removeprefix("shards/"))
        if strangers:
            message = f"files there are not of this packed set: {shorten(', '.join(strangers))}"
            remedy = "remove them, or give another place"
            raise AnnotationError(message, path=self._target.place, remedy=remedy)

    def _on_threads(self, function: Callable[[_ItemT], _ResultT], items: Iterable[_ItemT]) -> Iterator[_ResultT]:
        """Yield the results of a function in order; items that have not begun are cancelled by an error."""
        iterator = iter(items)
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="lit_loader_pack") as pool:
            # Few items ahead, so that little memory is needed.
            pending = deque(pool.submit(function, item) for item in islice(iterator, 2 * self._num_threads))
            try:
                while pending:
                    yield pending.popleft().result()
                    pending.extend(pool.submit(function, item) for item in islice(iterator, 1))
            finally:
                pool.shutdown(cancel_futures=True)

    # -- the index ------------------------------------------------------------------------------------------------

    def _finish(self, tables: Mapping[str, AnnotationTable], catalog: Catalog, key: str) -> None:
        """Write the index; see NOTE [Order of writing]."""
        for path in self._work.glob(set_file("*")):
            path.unlink()
        digests = dict(catalog.table_digests or {})
        for name, table in tables.items():
            path = self._work / set_file(name)
            table.save(path, key=PACKED_KEY)
            digests[name] = file_digest(path)
        replace(catalog, table_digests=digests).save(self._work / CATALOG_FILE)
        with new_file(self._work / _COMMITTED) as file:
            file.write(key.encode())
        self._put_committed()

    def _committed_key(self) -> str | None:
        """Return the key of the plan of an index that was committed and may not be moved, or None."""
        marker = self._work / _COMMITTED
        if not marker.exists():
            return None
        with marker.open("rb") as file:
            return file.read(_MAX_KEY_BYTES).decode(errors="replace")

    def _put_committed(self) -> None:
        """Move the index to the target; files that were moved before the run was killed are gone."""
        names = sorted((path.name for path in self._work.glob(set_file("*"))), key=lambda name: name != CATALOG_FILE)
        self._target.put(names)
        (self._work / JOURNAL_FILE).unlink(missing_ok=True)
        (self._work / _COMMITTED).unlink()

    # -- packed images ------------------------------------------------------------------------------------------

    def _compare(
        self, tables: Mapping[str, AnnotationTable], packed_tables: Mapping[str, AnnotationTable], catalog: Catalog
    ) -> None:
        """Raise AnnotationError if a packed image or its annotation has changed."""
        assert catalog.digests is not None
        digests = catalog.digests
        for name, table in tables.items():
            slots = catalog.slots(table.image_paths)
            rows = np.flatnonzero(slots >= 0)
            advance = self._progress("Comparing packed images", len(rows))

            def has_changed(row: int, table: AnnotationTable = table, slots: Any = slots) -> bool:
                return bool(image_digest(read_image(table, row)) != digests[slots[row]].tobytes())

            for row, changed in zip(rows.tolist(), self._on_threads(has_changed, rows.tolist()), strict=True):
                advance(1, 0)
                if changed:
                    raise self._change(table, row, "has changed since it was packed")
            if name in packed_tables:
                self._compare_annotations(table, packed_tables[name])

    def _compare_annotations(self, table: AnnotationTable, packed_table: AnnotationTable) -> None:
        same_root = replace(packed_table, root=table.root, shards=None)
        table, packed_table = with_same_names([table, same_root])
        packed_rows: dict[str, list[int]] = {}
        for row, path in enumerate(packed_table.image_paths):
            packed_rows.setdefault(path, []).append(row)
        rows: dict[str, list[int]] = {}
        for row, path in enumerate(table.image_paths):
            if path in packed_rows:
                rows.setdefault(path, []).append(row)
        for path, numbers in rows.items():
            digests = [annotation_digest(table, row) for row in numbers]
            if digests != [annotation_digest(packed_table, row) for row in packed_rows[path]]:
                raise self._change(table, numbers[0], "has other annotations than when it was packed")

    def _change(self, table: AnnotationTable, row: int, problem: str) -> AnnotationError:
        remedy = "pack the set anew into another place, or restore the file"
        return AnnotationError(
            f"the image {problem} to {self._target.place}", path=table.image_path(row), remedy=remedy
        )


def _has_new_rows(tables: Mapping[str, AnnotationTable], packed_tables: Mapping[str, AnnotationTable]) -> bool:
    """Return True if a set is not packed, or has images that its packed table lacks."""
    return any(
        name not in packed_tables or not set(table.image_paths) <= set(packed_tables[name].image_paths)
        for name, table in tables.items()
    )


def _is_shard_of(name: str, key: str) -> bool:
    number = key.removeprefix(f"shards/{name}-").removesuffix(".tar")
    return number.isdigit() and len(number) == 6
