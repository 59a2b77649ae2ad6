"""Galleries of data: images of a table with their annotations, findings of a check, and batches of training."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.json_file import read_entries
from lit_loader.annotations.places import Place
from lit_loader.annotations.problems import shorten
from lit_loader.collate import LandmarkBatch, MultiTaskBatch
from lit_loader.collate.classification import ClassificationBatch
from lit_loader.datamodules import TableDataModule
from lit_loader.datamodules.pictures import LONGER_SIDE
from lit_loader.datasets import Stage
from lit_loader.errors import AnnotationError, SettingError
from lit_loader.foundation.counts import counted
from lit_loader.images.reading import ImageReading
from lit_loader.inspection.drawing import draw_image, draw_mirrored
from lit_loader.inspection.findings import Finding, Severity
from lit_loader.inspection.gallery import Gallery
from lit_loader.inspection.kinds import KINDS
from lit_loader.types import IndexArray

__all__ = [
    "choose_images",
    "matching_objects",
    "object_cells",
    "read_findings",
    "show_batches",
    "show_findings",
    "show_mirrored",
    "show_table",
]


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
    heading: str = "",
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
        heading: Heading above the pictures, such as the name of the set.

    Raises:
        SettingError: If a class, an attribute or a value is unknown, or ``num_images`` is below 1.
        IndexError: If a row is outside the table.
    """
    matches = matching_objects(table, classes=classes, attributes=attributes or {})
    if rows is None:
        rows = choose_images(table, matches, num_images=num_images, seed=seed).tolist()
    gallery = Gallery(title or str(table.root))
    num_images = table.num_images if matches is None else len(np.unique(table.image_of_object()[matches]))
    gallery.add_section(heading, f"{len(rows)} of {num_images} images{_condition(classes, attributes or {})}")
    for row in rows:
        objects = table.objects(row)
        highlighted = [] if matches is None else (np.flatnonzero(matches[objects]) + objects.start).tolist()
        picture = draw_image(
            table, row, highlighted=highlighted, numbered=numbered, longer_side=longer_side, reading=reading
        )
        gallery.add(picture, caption_of(table, row))
    return gallery


def show_mirrored(
    table: AnnotationTable,
    *,
    num_images: int = 16,
    seed: int = 0,
    classes: Sequence[str] = (),
    attributes: Mapping[str, str] | None = None,
    longer_side: int | None = None,
    reading: ImageReading = ImageReading(),
    title: str = "",
    heading: str = "",
) -> Gallery:
    """Return pictures of objects and of their mirror images with the names of points, as `draw_mirrored` draws them.

    Args:
        table: The annotations.
        num_images: Number of images, chosen at random among those with an object that has both points of a pair; the
            object with the most pairs is shown. Fewer if fewer fit.
        seed: Seed of the choice.
        classes: Show objects of these classes; empty for any class.
        attributes: Show objects that have all of these values of attributes.
        longer_side: As in `draw_mirrored`.
        reading: Settings for reading image files.
        title: Title of the gallery; ``""`` for the folder of the images.
        heading: Heading above the pictures, such as the name of the set.

    Raises:
        SettingError: If a class, an attribute or a value is unknown, or ``num_images`` is below 1.
        ValueError: If the table has no points, or their mirror pairs are unknown.
    """
    if table.visibility is None or not table.flip_pairs:
        expected = "points" if table.visibility is None else "mirror pairs of its points"
        raise ValueError(f"{table!r} has no {expected}; read it with a schema that has flip_pairs")
    matches = matching_objects(table, classes=classes, attributes=attributes or {})
    object_rows = mirrored_objects(table, table.flip_pairs, matches, num_images=num_images, seed=seed)
    gallery = Gallery(title or str(table.root))
    condition = _condition(classes, attributes or {})
    gallery.add_section(heading, f"{len(object_rows)} images{condition}; the names must fit both halves")
    image_rows = table.image_of_object()[object_rows].tolist()
    for row, object_row in zip(image_rows, object_rows, strict=True):
        picture = draw_mirrored(table, object_row, longer_side=longer_side, reading=reading)
        gallery.add(picture, f"{table.image_paths[row]} (object {object_row - table.objects(row).start})")
    return gallery


def mirrored_objects(
    table: AnnotationTable,
    flip_pairs: Sequence[tuple[int, int]],
    matches: npt.NDArray[np.bool_] | None = None,
    *,
    num_images: int,
    seed: int = 0,
) -> list[int]:
    """Return the rows of objects that show the exchange of points: one for each image, with the most complete pairs.

    Args:
        table: The annotations, with points.
        flip_pairs: Positions of points that a flip exchanges, at least one pair.
        matches: Mask of objects to choose from, or None for all.
        num_images: Maximum number of images, chosen at random.
        seed: Seed of the choice.

    Raises:
        ValueError: If a position is not in the table, or ``num_images`` is below 1.
    """
    assert table.visibility is not None
    if max(map(max, flip_pairs)) >= len(table.keypoint_names):
        num_points = len(table.keypoint_names)
        raise ValueError(
            f"flip_pairs={list(flip_pairs)} has a position of {num_points} or more; there are {num_points} points"
        )
    present = table.visibility[:, np.array(flip_pairs)] > 0
    num_pairs = present.all(axis=2).sum(axis=1)
    if matches is not None:
        num_pairs = num_pairs * matches
    images = choose_images(table, num_pairs > 0, num_images=num_images, seed=seed).tolist()
    return [table.objects(row).start + int(num_pairs[table.objects(row)].argmax()) for row in images]


def _condition(classes: Sequence[str], attributes: Mapping[str, str]) -> str:
    """Return the condition on the images of a gallery, such as `` with cat or dog, pose=front``; empty for none."""
    parts = [" or ".join(classes), *(f"{name}={value}" for name, value in attributes.items())]
    text = ", ".join(part for part in parts if part)
    return f" with {shorten(text)}" if text else ""


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
        num_images: Maximum number of pictures of each kind of finding. Kinds of users' own readers count as one kind.
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
            # A file may invent any number of kinds.
            kind = finding.kind if finding.kind in KINDS else "other kinds"
            findings_by_kind.setdefault(kind, []).append(finding)
    if not findings_by_kind:
        rule = f"has no finding about an image of the sets {', '.join(tables)}"
        raise SettingError("findings", "...", rule, "check the same data with lit-loader check")
    gallery = Gallery(title)
    for kind, same_kind in findings_by_kind.items():
        gallery.add_section(kind.replace("_", " "), f"{same_kind[0].severity}: {same_kind[0].remedy}")
        for finding in same_kind[:num_images]:
            table = tables[finding.split]
            row = rows_by_path[finding.split][str(finding.image)]
            highlighted = _objects_of(finding, table, row)
            picture = draw_image(table, row, highlighted=highlighted, longer_side=longer_side, reading=reading)
            place = "" if finding.place is None else f" ({finding.place})"
            gallery.add(picture, f"{finding.split}: {finding.image}: {finding.message}{place}")
    return gallery


def _objects_of(finding: Finding, table: AnnotationTable, row: int) -> list[int]:
    """Return the rows of the objects of a finding in an image of a table, which may be read with other options."""
    if finding.object_row is None:
        return []
    objects = table.objects(row)
    if finding.place is not None:
        places = {finding.place, finding.partner_place} - {None}
        return [i for i in range(objects.start, objects.stop) if table.place_of_object(i) in places]
    # Without places, rows are comparable only if the table is the one that was checked; a file has no image_row.
    rows = (finding.object_row, finding.partner_row) if finding.image_row == row else ()
    return [i for i in rows if i is not None and objects.start <= i < objects.stop]


def show_batches(
    datamodule: TableDataModule,
    stage: Stage = "train",
    *,
    epoch: int = 0,
    start: int = 0,
    num_batches: int = 4,
    max_images: int = 16,
    title: str = "",
) -> Gallery:
    """Return a picture of each of some consecutive batches, as training sees them; none beyond the epoch's end.

    They have passed the sampler, mixes, transforms, the collate function and, with its draws on a CPU, the batch
    transform. They are the batches of a run with the same seed on one rank.

    Args:
        datamodule: The data module.
        stage: The stage. Each of several sets for validation, test or prediction becomes a section.
        epoch: The epoch, from 0.
        start: Number of the first batch, from 0; it takes the time of making the batches before.
        num_batches: Maximum number of batches of each set.
        max_images: Maximum number of images of a batch.
        title: Title of the gallery; ``""`` for the stage and the epoch.

    Raises:
        ValueError: If a number is out of range.
        NotImplementedError: If a data module of your own does not define ``draw_batch``.
        ImportError: If matplotlib is not installed.
    """
    tables = datamodule.tables(stage)
    gallery = Gallery(title or f"{stage} batches of epoch {epoch}")
    # Training joins its sets; their numbers of images are then ambiguous.
    loader_tables = [tables] if stage == "train" else [[table] for table in tables]
    for index, sets in enumerate(loader_tables):
        source = stage if len(loader_tables) == 1 else f"{stage} set {index}"
        gallery.add_section("" if source == stage else source)
        batches = datamodule.batches(stage, epoch=epoch, start=start, num_batches=num_batches, dataloader_idx=index)
        for number, batch in enumerate(batches, start=start):
            figure = datamodule.draw_batch(batch, max_images=max_images, title="")
            buffer = io.BytesIO()
            figure.savefig(buffer, format="jpg", dpi=figure.dpi, pil_kwargs={"quality": 92, "subsampling": 0})
            names = batch_paths(batch, sets[0]) if len(sets) == 1 else []
            caption = f"{source} batch {number} of epoch {epoch}"
            gallery.add(buffer.getvalue(), f"{caption}: {', '.join(names[:max_images])}" if names else caption)
    return gallery


def batch_paths(batch: Any, table: AnnotationTable) -> list[str]:
    """Return the path of each image of a batch, relative to the root; empty if the batch does not hold their ids.

    Args:
        batch: The result of one of lit_loader's collate functions.
        table: The table of the batch's samples.
    """
    if isinstance(batch, ClassificationBatch | LandmarkBatch | MultiTaskBatch):
        ids = batch.image_ids.tolist()
    else:
        targets = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else ()
        if not all(isinstance(target, Mapping) and "image_id" in target for target in targets):
            return []
        ids = [int(target["image_id"]) for target in targets]
    rows = {number: row for row, number in enumerate(table.image_numbers.tolist())}
    return [table.image_paths[rows[number]] for number in ids if number in rows]


def matching_objects(
    table: AnnotationTable, *, classes: Sequence[str], attributes: Mapping[str, str]
) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the objects of some classes that have some values of attributes, or None without a condition.

    Args:
        table: The annotations.
        classes: Names of classes; an object needs one of them. Empty for all.
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
        matches &= attribute.ids == _position("attributes", value, attribute.names, owner=name)
    return matches


def choose_images(
    table: AnnotationTable, matches: npt.NDArray[np.bool_] | None, *, num_images: int, seed: int
) -> IndexArray:
    """Return rows of randomly chosen images, ascending, int64 ``(n,)``.

    Args:
        table: The annotations.
        matches: Mask of objects; an image needs at least one of them. None for any image.
        num_images: Maximum number of images.
        seed: Seed of the choice, which depends on nothing else but the table and the mask.

    Raises:
        SettingError: If ``num_images`` is below 1.
    """
    _check_number(num_images)
    candidates = np.arange(table.num_images)
    if matches is not None:
        candidates = np.unique(table.image_of_object()[matches])
    chosen = np.random.default_rng(seed).permutation(candidates)[:num_images]
    return np.sort(chosen)


def caption_of(table: AnnotationTable, row: int) -> str:
    """Return the path of an image, its size in the annotations, and its number of objects."""
    objects = table.objects(row)
    num_objects = objects.stop - objects.start
    size = f"{table.widths[row]}x{table.heights[row]}, " if table.widths[row] and table.heights[row] else ""
    return f"{table.image_paths[row]} ({size}{counted(num_objects, 'object')})"


def object_cells(table: AnnotationTable, row: int) -> tuple[list[str], list[list[object]]]:
    """Return a table of the objects of an image: the headings, and the cells of each object.

    Args:
        table: The annotations.
        row: Row of the image.
    """
    columns = ["number", "class", *table.attributes, "left", "top", "right", "bottom", "place"]
    objects = table.objects(row)
    rows: list[list[object]] = []
    for number, object_row in enumerate(range(objects.start, objects.stop)):
        values = [
            attribute.names[attribute.ids[object_row]] if attribute.ids[object_row] >= 0 else ""
            for attribute in table.attributes.values()
        ]
        place = table.place_of_object(object_row)
        box = [round(side, 1) for side in table.boxes[object_row].tolist()]
        rows.append([number, table.class_names[table.labels[object_row]], *values, *box, place or ""])
    return columns, rows


def read_findings(path: Path) -> list[Finding]:
    """Return the findings in a JSON file of ``lit-loader check --json``, in the order of the file.

    Args:
        path: The file. Only the fields that pictures need are read and checked.

    Raises:
        AnnotationError: If it is not such a file; names it, and the entry.
    """
    findings: list[Finding] = []
    keys: list[str] = []

    def take(key: str, start: int, entries: list[Any]) -> None:
        keys.append(key)
        if key == "findings":
            for number, entry in enumerate(entries, start=start):
                findings.append(_finding(path, number, entry))

    read_entries(path.absolute().parent, path.name, take)
    if "findings" not in keys:
        problem = f"expected an object with a list 'findings', got the keys {shorten(', '.join(keys)) or 'none'}"
        raise AnnotationError(problem, path=path, remedy="write it with lit-loader check --json")
    return findings


def _finding(path: Path, number: int, entry: Any) -> Finding:
    """Return a finding from an untrusted entry of a JSON file."""
    fields = entry if isinstance(entry, dict) else {}
    texts: dict[str, Any] = {name: fields.get(name) for name in ("kind", "severity", "message", "remedy", "split")}
    image = fields.get("image")
    object_row = fields.get("object_row")
    is_valid = (
        all(isinstance(text, str) for text in texts.values())
        and texts["severity"] in get_args(Severity)
        and isinstance(image, str | None)
        # type(): True is an int, but no row.
        and type(object_row) in (int, NoneType)
    )
    if not is_valid:
        problem = f"findings[{number}] is not a finding of a check: {shorten(repr(entry), 200)}"
        raise AnnotationError(problem, path=path, remedy="write the file with lit-loader check --json")
    # Captions show them, so they must not be longer than a picture is wide. Names of sets and images are looked up.
    texts |= {name: shorten(texts[name]) for name in ("message", "remedy")}
    return Finding(
        **texts,
        image=image,
        object_row=object_row,
        place=_place(fields.get("place")),
        partner_place=_place(fields.get("partner_place")),
    )


def _place(value: Any) -> Place | None:
    """Return a place from an untrusted value of a JSON file, or None."""
    if not isinstance(value, dict) or not isinstance(value.get("file"), str):
        return None
    line = value.get("line")
    entry = value.get("entry")
    return Place(
        file=value["file"], line=line if type(line) is int else None, entry=entry if isinstance(entry, str) else None
    )


def _check_number(num_images: int) -> None:
    if num_images < 1:
        raise SettingError("num_images", num_images, "must be at least 1")


def _position(argument: str, name: str, names: Sequence[str], *, owner: str | None = None) -> int:
    """Return the position of a name.

    Args:
        argument: Argument that has the name, for a message.
        name: The name.
        names: All names.
        owner: Attribute whose values the names are, or None.

    Raises:
        SettingError: If the name is unknown; suggests a similar one.
    """
    if name not in names:
        rule = f"is unknown; the data has {', '.join(names) or 'none'}"
        name_by_folded = {candidate.casefold(): candidate for candidate in names}
        similar = difflib.get_close_matches(name.casefold(), name_by_folded, n=1)
        remedy = f"did you mean {name_by_folded[similar[0]]!r}?" if similar else ""
        raise SettingError(argument, name if owner is None else f"{owner}={name}", rule, remedy)
    return list(names).index(name)
