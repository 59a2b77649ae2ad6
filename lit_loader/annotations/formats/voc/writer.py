"""Write unified VOC annotations: one XML file for an image, or a whole table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import ClassVar
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.rows import DeclaredNames
from lit_loader.annotations.formats.voc.schema import (
    CORNERS,
    QUAD_CORNERS,
    ROTATED_BOX,
    schema_element,
    written_name,
    xml_text,
)
from lit_loader.annotations.formats.writer import Writer, in_chunks, lost, number_text
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.quadrangles import has_numbers
from lit_loader.annotations.table import AnnotationTable

__all__ = ["VocWriter", "voc_image_paths", "write_image_xml"]


@dataclass(frozen=True, kw_only=True)
class VocWriter(Writer):
    """Writes a table as unified VOC XML, one file per image, and its split; images are not copied.

    Args:
        annotation_dir: Folder of the XML files, relative to the root.
        image_dir: Folder for the images, relative to the root; `voc_image_paths` returns their paths.
    """

    format: ClassVar[str] = "voc"
    description: ClassVar[str] = "unified VOC XML: boxes, points, attributes; NAME: the split, or . for none"
    name_of_split: ClassVar[str] = "{}"

    annotation_dir: str = "Annotations"
    image_dir: str = "JPEGImages"

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return the parts of a table that VOC cannot hold."""
        losses = lost(table, "masks", "numbers", "places", "sizes")
        if table.num_images == 0 and (table.class_names or table.attributes or table.keypoint_names):
            losses.append("names of classes, points and attributes, because without images no file can list them")
        return losses

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a table.

        Raises:
            ValueError: If the table has another split, two images have the same id, or a name cannot be written.
            UnsafePathError: If an id, the split or a folder leads out of the root.
        """
        if table.split not in (None, name):
            raise ValueError(f"name={name!r} must be the table's split, {table.split!r}")
        # All ids and folders are checked before the first file is written.
        image_paths = voc_image_paths(table, image_dir=self.image_dir)
        ids = _image_ids(table)
        folder = root / check_relative(self.annotation_dir)
        split_file = root / check_relative(f"ImageSets/Main/{name}.txt")
        folder.mkdir(parents=True, exist_ok=True)  # also for a set without images: the reader requires it
        labels = np.flatnonzero(table.class_counts()).tolist()
        used_names = sorted(table.class_names[label] for label in labels)
        is_plain = tuple(used_names) == table.class_names and table.keypoints is None and not table.attributes
        # The reader sorts the classes of plain VOC by name, so only another order must be listed.
        declared = DeclaredNames(
            class_names=() if is_plain else table.class_names,
            keypoints=table.keypoint_schema,
            attributes=tuple((name, attribute.names) for name, attribute in table.attributes.items()),
        )
        names = [
            (folder / f"{image_id}.xml", PurePosixPath(path).name)
            for image_id, path in zip(ids, image_paths, strict=True)
        ]
        write = partial(_write_images, table=table, names=names, declared=declared)
        list(in_chunks(write, range(table.num_images), progress=progress))
        if name != ".":
            lines = "".join(f"{image_id}\n" for image_id in ids)
            split_file.parent.mkdir(parents=True, exist_ok=True)
            # File names may have bytes that are not UTF-8, which Python holds as surrogates.
            split_file.write_bytes(lines.encode("utf-8", "surrogateescape"))


def voc_image_paths(table: AnnotationTable, *, image_dir: str = "JPEGImages") -> list[str]:
    """Return the paths of a table's images in the data set that `VocWriter` writes, relative to its root.

    The file name is the image's id with the ending of its file.

    Raises:
        ValueError: If two images have the same id, or an id is not valid in VOC.
        UnsafePathError: If an id or ``image_dir`` leads out of the root.
    """
    folder = PurePosixPath(check_relative(image_dir))
    ids = _image_ids(table)
    endings = (PurePosixPath(path).suffix for path in table.image_paths)
    return [str(folder / f"{image_id}{ending}") for image_id, ending in zip(ids, endings, strict=True)]


def write_image_xml(
    path: Path,
    table: AnnotationTable,
    image: int,
    *,
    filename: str,
    declared: DeclaredNames,
    point_scores: npt.NDArray[np.float32] | None = None,
) -> None:
    """Write the annotation of one image of a table.

    Args:
        path: The XML file; its folder must exist.
        table: The table.
        image: Row of the image.
        filename: Name of the image file.
        declared: Names that ``<schema>`` lists; the same in every file of a set, including files without objects.
        point_scores: Scores of predicted points, float32 ``(num_objects, K)``, with a row for each object of the table;
            None for no scores.

    Raises:
        ValueError: If a name cannot be written in XML or would not be read back.
    """
    root = Element("annotation")
    SubElement(root, "folder").text = xml_text(path.parent.name, "<folder>")
    SubElement(root, "filename").text = xml_text(filename, "<filename>")
    # A size of 0 is unknown; without <size> the reader takes it from the image.
    width = int(table.widths[image])
    height = int(table.heights[image])
    if width and height:
        size = SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", 3)):
            SubElement(size, tag).text = str(value)
    schema = schema_element(declared)
    if schema is not None:
        root.append(schema)
    for row in range(int(table.offsets[image]), int(table.offsets[image + 1])):
        _add_object(root, table, row, None if point_scores is None else point_scores[row])
    indent(root)
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_object(root: Element, table: AnnotationTable, row: int, point_scores: npt.NDArray[np.float32] | None) -> None:
    element = SubElement(root, "object")
    SubElement(element, "name").text = written_name(table.class_names[int(table.labels[row])], "class")
    for tag in ("truncated", "difficult", "occluded", "crowd"):
        is_set = bool(getattr(table, tag)[row])
        if is_set or tag != "crowd":  # <crowd> is not part of VOC, so it is written only where it is needed
            SubElement(element, tag).text = str(int(is_set))
    box = SubElement(element, "bndbox")
    for tag, corner in zip(CORNERS, table.boxes[row], strict=True):
        SubElement(box, tag).text = number_text(corner)
    _add_oriented(element, table, row)
    points = Element("keypoints")
    if table.keypoints is not None and table.visibility is not None:
        columns = (table.keypoint_names, table.keypoints[row], table.visibility[row].tolist())
        for position, (name, (x, y), visibility) in enumerate(zip(*columns, strict=True)):
            if visibility:
                texts = {"name": written_name(name, "point"), "x": number_text(x), "y": number_text(y)}
                point = SubElement(points, "point", {**texts, "visibility": str(visibility)})
                if point_scores is not None:
                    point.set("score", number_text(point_scores[position]))
    values = Element("attributes")
    for name, attribute in table.attributes.items():
        if attribute.ids[row] >= 0:
            value = SubElement(values, "attribute")
            SubElement(value, "name").text = written_name(name, "attribute")
            text = written_name(attribute.names[attribute.ids[row]], f"value of attribute {name!r}")
            SubElement(value, "value").text = text
    # An object without points or values is written as in plain VOC.
    element.extend(part for part in (points, values) if len(part))


def _add_oriented(element: Element, table: AnnotationTable, row: int) -> None:
    """Add the oriented box of an object, if it has one."""
    texts: dict[str, str] = {}
    if table.corners is not None and has_numbers(table.corners[[row]]):
        texts = dict(zip(QUAD_CORNERS, map(number_text, table.corners[row].ravel()), strict=True))
    if table.rotated_boxes is not None and has_numbers(table.rotated_boxes[[row]]):
        *numbers, degrees = table.rotated_boxes[row]
        # float64 radians, because a float32 would not restore the degrees.
        angle = number_text(np.float64(0.0 - math.radians(degrees)))
        texts = dict(zip(ROTATED_BOX, [*map(number_text, numbers), angle], strict=True))
    if texts:
        # roLabelImg reads the element that <type> names, other readers only <bndbox>.
        SubElement(element, "type").text = "robndbox"
        box = SubElement(element, "robndbox")
        for tag, text in texts.items():
            SubElement(box, tag).text = text


def _write_images(
    chunk: Sequence[int], *, table: AnnotationTable, names: Sequence[tuple[Path, str]], declared: DeclaredNames
) -> None:
    for i in chunk:
        path, filename = names[i]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image_xml(path, table, i, filename=filename, declared=declared)


def _image_ids(table: AnnotationTable) -> list[str]:
    """Return the ids of images without the ending of the image file, which other formats include."""
    path_by_id: dict[str, str] = {}
    for table_id, path in zip(table.image_ids, table.image_paths, strict=True):
        ending = PurePosixPath(path).suffix
        # The id "a.jpg" of the file "a.jpg.jpg" has no ending to remove.
        is_stem = f"/{path}".removesuffix(ending).endswith(f"/{table_id}")
        stem = table_id if is_stem else table_id.removesuffix(ending)
        image_id = stem if stem and not stem.endswith("/") else table_id
        # A reader strips the lines of a split, and ignores hidden files and folders.
        parts = check_relative(image_id).split("/")
        is_line = image_id == image_id.strip() and "\n" not in image_id
        if not is_line or any(part == "" or part.startswith(".") for part in parts):
            raise ValueError(
                f"image id {image_id!r} cannot be a line of a split file and an XML file's name: it must not begin or "
                "end with a space, nor a part of it with a dot"
            )
        if image_id in path_by_id:
            raise ValueError(
                f"images {path_by_id[image_id]!r} and {path!r} have the same id {image_id!r}; VOC has one XML file "
                "for each id, so select one of them"
            )
        path_by_id[image_id] = path
    return list(path_by_id)
