"""Compare a packed set with the digests in its catalog."""

from __future__ import annotations

from lit_loader.annotations.packing.index import file_digest, load_table, target_catalog
from lit_loader.errors import AnnotationError
from lit_loader.storage.pack_target import CATALOG_FILE, PackTarget, set_file

__all__ = ["verify_packed"]


def verify_packed(target: PackTarget, *, progress: bool) -> list[str]:
    """Read a packed set, compare its files with their digests, and return a text for each difference.

    Args:
        target: Where the set is.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If no packed set with digests is there, or its catalog is damaged.
        StorageError: If the store refuses a request.
    """
    sizes = target.sizes()
    if CATALOG_FILE not in sizes:
        raise AnnotationError(f"no packed set is there; {CATALOG_FILE} is missing", path=target.place)
    catalog = target_catalog(target)
    digests = {set_file(name): digest for name, digest in (catalog.table_digests or {}).items()}
    missing = [name for name in (*catalog.objects, *digests) if name not in sizes]
    if missing:
        return [f"{name} is missing" for name in missing]
    problems: list[str] = []
    path_by_slot: dict[int, str] = {}
    for name, digest in digests.items():
        with target.fetched(name) as path:
            if file_digest(path) == digest:
                # Only tables know the paths of images.
                paths = load_table(path).image_paths
                path_by_slot |= dict(zip(catalog.slots(paths).tolist(), paths, strict=True))
            else:
                problems.append(f"{name} differs")
    for number, slots in target.differing(catalog, progress=progress).items():
        key = catalog.objects[number]
        problems += [f"{key}: the image {path_by_slot.get(slot, slot)!r} differs" for slot in slots]
        if not slots:
            problems.append(f"{key} differs, but none of its images; annotations or headers do")
    return problems
