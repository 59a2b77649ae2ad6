"""By which ids the images of any table go in a VOC data set, and where their files belong there."""

from __future__ import annotations

from pathlib import PurePosixPath

from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.table import AnnotationTable

__all__ = ["voc_ids", "voc_image_paths"]


def voc_image_paths(table: AnnotationTable, *, image_dir: str = "JPEGImages") -> list[str]:
    """Return where the images of a table belong in the data set that ``write_voc`` writes.

    Args:
        table: The table.
        image_dir: Folder of the images, relative to the new root.

    Returns:
        One path an image, relative to the new root: the image's id with the extension of its file.

    Raises:
        ValueError: If two images have the same id, or an id cannot be that of a VOC image.
        UnsafePathError: If an id or ``image_dir`` leads out of the root.
    """
    folder = PurePosixPath(check_relative(image_dir))
    suffixes = [PurePosixPath(path).suffix for path in table.image_paths]
    return [
        str(folder / f"{image_id}{suffix}") for image_id, suffix in zip(voc_ids(table), suffixes, strict=True)
    ]


def voc_ids(table: AnnotationTable) -> list[str]:
    """Return the ids without the image's extension, which other formats leave on.

    An id that is the image's name without its extension stays, whatever it ends with: ``a.jpg`` of
    ``a.jpg.jpg``.

    Raises:
        ValueError: As ``voc_image_paths``.
        UnsafePathError: As ``voc_image_paths``.
    """
    ids: dict[str, int] = {}
    for i, (image_id, path) in enumerate(zip(table.image_ids, table.image_paths, strict=True)):
        suffix = PurePosixPath(path).suffix
        has_none = f"/{path}".removesuffix(suffix).endswith(f"/{image_id}")
        stem = image_id if has_none else image_id.removesuffix(suffix)
        name = stem if stem and not stem.endswith("/") else image_id
        parts = check_relative(name).split("/")
        if name != name.strip() or "\n" in name or any(part == "" or part.startswith(".") for part in parts):
            raise ValueError(
                f"image id {name!r} cannot be a line of a split file and an XML file's name: it must not begin "
                "or end with a space, nor a part of it with a dot"
            )
        if name in ids:
            raise ValueError(
                f"images {table.image_paths[ids[name]]!r} and {path!r} have the same id {name!r}; "
                "VOC has one XML file for each id, so select one of them"
            )
        ids[name] = i
    return list(ids)
