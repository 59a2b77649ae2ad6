"""Compare a packed set with the digests in its catalog."""

from __future__ import annotations

from collections.abc import Mapping

from lit_loader.annotations.packing.index import PACKED_KEY
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.pack_target import CATALOG_FILE, PackTarget, set_file

__all__ = ["verify_packed"]


def verify_packed(target: PackTarget, *, progress: bool) -> list[str]:
    """Read all shards of a packed set, compare them with their digests, and return a text for each difference.

    Args:
        target: Where the set is.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If no packed set with digests is there.
        StorageError: If the store refuses a request.
    """
    sizes = target.sizes()
    if CATALOG_FILE not in sizes:
        raise AnnotationError(f"no packed set is there; {CATALOG_FILE} is missing", path=target.place)
    catalog = Catalog.load(target.fetch(CATALOG_FILE))
    if catalog.digests is None or catalog.object_digests is None:
        raise AnnotationError("its catalog has no digests; pack it anew", path=target.place)
    missing = [key for key in catalog.objects if key not in sizes]
    if missing:
        return [f"{key} is missing" for key in missing]
    differing = target.differing(catalog, progress=progress)
    # Only tables know the paths of images, and only differences need them.
    paths = _path_by_slot(target, catalog, sizes) if differing else {}
    problems = []
    for number, slots in differing.items():
        problems += [f"{catalog.objects[number]}: the image {paths.get(slot, slot)!r} differs" for slot in slots]
        if not slots:
            problems.append(f"{catalog.objects[number]} differs, but none of its images; annotations or headers do")
    return problems


def _path_by_slot(target: PackTarget, catalog: Catalog, sizes: Mapping[str, int]) -> dict[int, str]:
    names = [name for name in sizes if name.endswith(set_file("")) and name != CATALOG_FILE]
    paths: dict[int, str] = {}
    for name in names:
        table = AnnotationTable.load(target.fetch(name), key=PACKED_KEY)
        paths |= dict(zip(catalog.slots(table.image_paths).tolist(), table.image_paths, strict=True))
    return paths
