"""Writes VOC annotations: one XML file for an image, or a whole table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.table import AnnotationTable

__all__ = ["write_voc", "write_voc_xml"]

_FLAGS = ("truncated", "difficult", "occluded")


def write_voc_xml(
    path: Path | str,
    *,
    filename: str,
    width: int,
    height: int,
    names: Sequence[str],
    boxes: npt.ArrayLike,
    difficult: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    truncated: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    occluded: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    depth: int = 3,
) -> None:
    """Write the annotation of one image; ``read_voc`` gives the same numbers back.

    Args:
        path: The XML file; its folder must exist.
        filename: Name of the image file.
        width: Pixels; 0 (unknown) leaves ``<size>`` out.
        height: Pixels.
        names: Class of each object.
        boxes: ``(num_objects, 4)`` xyxy, written as they are; whole numbers without a fraction.
        difficult: One flag for each object; default: none is.
        truncated: As ``difficult``.
        occluded: As ``difficult``.
        depth: Channels of the image.

    Raises:
        ValueError: If lengths differ, a coordinate is not finite, or a text cannot stand in XML.
    """
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    flags = {"truncated": truncated, "difficult": difficult, "occluded": occluded}
    for what, column in {"boxes": corners, **flags}.items():
        if column is not None and len(column) != len(names):
            raise ValueError(f"{what} has {len(column)} rows; there are {len(names)} names")
    if not np.isfinite(corners).all():
        raise ValueError(f"boxes={corners.tolist()} must be finite")
    root = Element("annotation")
    _text(root, "folder", Path(path).parent.name)
    _text(root, "filename", filename)
    if width and height:
        size = SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", depth)):
            _text(size, tag, str(int(value)))
    for i, name in enumerate(names):
        element = SubElement(root, "object")
        _text(element, "name", name)
        for tag in _FLAGS:
            column = flags[tag]
            _text(element, tag, "0" if column is None else str(int(bool(column[i]))))
        box = SubElement(element, "bndbox")
        for tag, corner in zip(("xmin", "ymin", "xmax", "ymax"), corners[i].tolist(), strict=True):
            _text(box, tag, str(int(corner)) if corner.is_integer() else repr(corner))
    indent(root)
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def write_voc(table: AnnotationTable, root: Path | str, *, annotation_dir: str = "Annotations") -> None:
    """Write a table as VOC XML files, and its split file when the table has a split; images are not copied.

    Args:
        table: The table; keypoints, crowd flags and attributes have no place in VOC and must be absent.
        root: The folder of the new data set; made when missing.
        annotation_dir: Folder of the XML files, relative to ``root``.

    Raises:
        ValueError: If the table holds what VOC cannot, or two images have the same id.
    """
    if table.keypoints is not None or table.attributes or table.crowd.any():
        raise ValueError(
            "keypoints, attributes and crowd objects cannot be written as VOC; leave them out first"
        )
    ids = list(table.image_ids)
    if len(set(ids)) != len(ids):
        raise ValueError("two images of the table have the same id; VOC has one XML file for each id")
    for i, image_id in enumerate(ids):
        rows = table.objects(i)
        path = Path(root, annotation_dir, check_relative(image_id) + ".xml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_voc_xml(
            path,
            filename=table.image_path(i).name,
            width=int(table.widths[i]),
            height=int(table.heights[i]),
            names=[table.class_names[label] for label in table.labels[rows]],
            boxes=table.boxes[rows],
            difficult=table.difficult[rows],
            truncated=table.truncated[rows],
            occluded=table.occluded[rows],
        )
    if table.split is not None:
        split_file = Path(root, "ImageSets/Main", check_relative(table.split) + ".txt")
        split_file.parent.mkdir(parents=True, exist_ok=True)
        split_file.write_text("".join(f"{image_id}\n" for image_id in ids), encoding="utf-8")


def _text(parent: Element, tag: str, text: str) -> None:
    if any(
        not (c in "\t\n" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff")
        for c in text
    ):
        raise ValueError(f"<{tag}> {text!r} holds a character that XML cannot")
    SubElement(parent, tag).text = text
