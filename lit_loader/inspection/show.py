"""Galleries of data: images of a table with their annotations, findings of a check, and batches of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.pictures import LONGER_SIDE
from lit_loader.errors import SettingError
from lit_loader.images.reading import ImageReading
from lit_loader.inspection.drawing import draw_image
from lit_loader.inspection.findings import Finding
from lit_loader.inspection.gallery import Gallery
from lit_loader.types import IndexArray

__all__ = ["choose_images", "matching_objects", "show_findings", "show_table"]


def show_table(
    table: AnnotationTable,
    *,
    num_images: int = 16,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    classes: Sequence[str] = (),
    attributes: Mapping[str, str] | None = None,
    numbered: bool = False,
    longer_side: int = LONGER_SIDE,
    reading: ImageReading = ImageReading(),
    title: str = "",
) -> Gallery:
    """Return pictures of annotated images, as `draw_image` draws them.

    Args:
        table: The annotations.
        num_images: Number of images, chosen at random; fewer if fewer fit.
        seed: Seed of the choice.
        rows: Rows of the images to show instead of a random choice.
        classes: Show images that contain one of these classes, with its objects highlighted; empty for any image.
        attributes: Show images with an object that has all of these values of attributes, with the object highlighted.
        numbered: Begin each name with the object's number in the image.
        longer_side: Larger of height and width of an image in pixels.
        reading: Settings for reading image files.
        title: Title of the gallery; ``""`` for the folder of the images.

    Raises:
        SettingError: If a class, an attribute or a value is unknown, no image fits, or ``num_images`` is below 1.
        IndexError: If a row is outside the table.
    """
    matches = matching_objects(table, classes=classes, attributes=attributes or {})
    if rows is None:
        rows = choose_images(table, matches, num_images=num_images, seed=seed).tolist()
    gallery = Gallery(title or str(table.root))
    gallery.add_section(table.split or "", f"{len(rows)} of {table.num_images} images")
    for row in rows:
        objects = np.arange(table.num_objects)[table.objects(row)]
        highlighted = [] if matches is None else objects[matches[objects]].tolist()
        picture = draw_image(
            table, row, highlighted=highlighted, numbered=numbered, longer_side=longer_side, reading=reading
        )
        gallery.add(picture, caption_of(table, row))
    return gallery


def show_findings(
    tables: Mapping[str, AnnotationTable],
    findings: Iterable[Finding],
    *,
    num_images: int = 16,
    longer_side: int = LONGER_SIDE,
    reading: ImageReading = ImageReading(),
    title: str = "findings",
) -> Gallery:
    """Return pictures of the images of findings, with the objects of the findings highlighted.

    Args:
        tables: The table of each set by its name.
        findings: The findings, the worst first. Findings without an image, or of another set, are left out.
        num_images: Maximum number of pictures of each kind of finding.
        longer_side: Larger of height and width of an image in pixels.
        reading: Settings for reading image files.
        title: Title of the gallery.

    Raises:
        SettingError: If ``num_images`` is below 1, or no finding is about an image of the tables.
    """
    _check_number(num_images)
    rows_by_path = {split: {path: row for row, path in enumerate(table.image_paths)} for split, table in tables.items()}
    findings_by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        # Paths, because rows count differently if the set is read with other options.
        if finding.image in rows_by_path.get(finding.split, {}):
            findings_by_kind.setdefault(finding.kind, []).append(finding)
    if not findings_by_kind:
        rule = f"has no finding about an image of the sets {', '.join(tables)}"
        raise SettingError("findings", "...", rule, "check the same data with lit-loader check")
    gallery = Gallery(title)
    for kind, same_kind in findings_by_kind.items():
        gallery.add_section(kind.replace("_", " "), f"{same_kind[0].severity}: {same_kind[0].remedy}")
        for finding in same_kind[:num_images]:
            table = tables[finding.split]
            row = rows_by_path[finding.split][str(finding.image)]
            objects = table.objects(row)
            object_row = finding.object_row
            is_known = object_row is not None and objects.start <= object_row < objects.stop
            highlighted = [object_row] if is_known and object_row is not None else []
            picture = draw_image(table, row, highlighted=highlighted, longer_side=longer_side, reading=reading)
            place = "" if finding.place is None else f" ({finding.place})"
            gallery.add(picture, f"{finding.split}: {finding.image}: {finding.message}{place}")
    return gallery


def matching_objects(
    table: AnnotationTable, *, classes: Sequence[str], attributes: Mapping[str, str]
) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the objects of some classes that have some values of attributes, or None without a condition.

    Args:
        table: The annotations.
        classes: Names of classes, of which an object needs one; empty for all.
        attributes: Required value of each attribute.

    Returns:
        bool ``(num_objects,)``, or None.

    Raises:
        SettingError: If a class, an attribute or a value is unknown.
    """
    if not classes and not attributes:
        return None
    matches = np.ones(table.num_objects, dtype=np.bool_)
    if classes:
        ids = [_position("classes", name, table.class_names) for name in classes]
        matches &= np.isin(table.labels, ids)
    for name, value in attributes.items():
        _position("attributes", name, tuple(table.attributes))
        attribute = table.attributes[name]
        matches &= attribute.ids == _position("attributes", value, attribute.names)
    return matches


def choose_images(
    table: AnnotationTable, matches: npt.NDArray[np.bool_] | None, *, num_images: int, seed: int
) -> IndexArray:
    """Return rows of randomly chosen images, ascending, int64 ``(n,)``.

    Args:
        table: The annotations.
        matches: Mask of objects, of which an image needs at least one; None for any image.
        num_images: Maximum number of images.
        seed: Seed of the choice, which depends on nothing else but the table and the mask.

    Raises:
        SettingError: If ``num_images`` is below 1, or no image fits.
    """
    _check_number(num_images)
    candidates = np.arange(table.num_images)
    if matches is not None:
        candidates = np.unique(table.image_of_object()[matches])
    if not len(candidates):
        rule = f"leaves none of the {table.num_images} images of {table!r}"
        raise SettingError("classes and attributes", "...", rule, "choose others")
    chosen = np.random.default_rng(seed).permutation(candidates)[:num_images]
    return np.sort(chosen)


def caption_of(table: AnnotationTable, row: int) -> str:
    """Return the path of an image, its size in the annotations, and its number of objects."""
    objects = table.objects(row)
    num_objects = objects.stop - objects.start
    size = f"{table.widths[row]}x{table.heights[row]}, " if table.widths[row] and table.heights[row] else ""
    return f"{table.image_paths[row]} ({size}{num_objects} object{'s' if num_objects != 1 else ''})"


def _check_number(num_images: int) -> None:
    if num_images < 1:
        raise SettingError("num_images", num_images, "must be at least 1")


def _position(argument: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise SettingError(argument, name, f"is unknown; the data has {', '.join(names) or 'none'}")
    return list(names).index(name)
