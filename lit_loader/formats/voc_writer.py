"""Writes VOC annotations: one XML file for an image, or a whole table.

The **unified VOC format** is VOC with three additions, each of which other readers of VOC ignore. A file that
needs none of them is plain VOC.

    <annotation>
        <folder>Annotations</folder>
        <filename>portrait.jpg</filename>
        <size>
            <width>640</width>
            <height>480</height>
            <depth>3</depth>
        </size>
        <schema>
            <keypoints>
                <point name="left eye"/>
                <point name="right eye"/>
                <point name="nose"/>
                <mirror first="left eye" second="right eye"/>
                <interocular first="left eye" second="right eye"/>
            </keypoints>
            <attribute>
                <name>expression</name>
                <value>calm</value>
                <value>laughing</value>
            </attribute>
        </schema>
        <object>
            <name>face</name>
            <truncated>0</truncated>
            <difficult>0</difficult>
            <occluded>1</occluded>
            <bndbox>
                <xmin>100</xmin>
                <ymin>80.5</ymin>
                <xmax>220</xmax>
                <ymax>240</ymax>
            </bndbox>
            <keypoints>
                <point name="left eye" x="130" y="120.25" visibility="2"/>
                <point name="nose" x="155" y="165" visibility="1"/>
            </keypoints>
            <attributes>
                <attribute>
                    <name>expression</name>
                    <value>laughing</value>
                </attribute>
            </attributes>
        </object>
        <object>
            <name>face</name>
            <crowd>1</crowd>
            <bndbox>
                <xmin>300</xmin>
                <ymin>10</ymin>
                <xmax>640</xmax>
                <ymax>200</ymax>
            </bndbox>
        </object>
    </annotation>

``<keypoints>`` of an object: its points by name, in pixels, in any order. ``visibility`` is COCO's number: 1
hidden, 2 visible (also when it is left out); a point that is absent is not written (0 says so too). An object
with points may lack ``<bndbox>``: it gets the tight box of its points.

``<attributes>`` of an object: named values, written as CVAT and Datumaro write them; an empty value is none.

``<crowd>`` 1: the box holds a group, as COCO's ``iscrowd``.

``<schema>`` says the same in every file of a set, so that any file, split, or subset is read with the same
columns and no further argument: the points in their order, which two change places in a mirror, which two scale
an error; the attributes in their order and their values in the order of the ids; and ``<class>`` names in the
order of theirs. Points of a known schema are not listed: ``<keypoints schema="face_68"/>``. A part that is left
out is taken from the objects, sorted. A set without points and attributes whose classes are the sorted names of
its objects is written without ``<schema>``, as plain VOC.

Numbers are decimal, exact for float32: what is read was written. What else a table holds and VOC cannot,
`lit_loader.formats.not_kept` lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.not_kept import refuse_loss, what_is_lost
from lit_loader.formats.parallel import map_chunks
from lit_loader.formats.voc_elements import (
    add_attributes,
    add_points,
    check_listed,
    checked_points,
    float_array,
    number_text,
)
from lit_loader.formats.voc_ids import voc_ids, voc_image_paths
from lit_loader.formats.voc_schema import VocSchema, add_text, check_name, schema_element

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
    crowd: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    keypoints: npt.ArrayLike | None = None,
    visibility: npt.ArrayLike | None = None,
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    attributes: Mapping[str, Sequence[str | None]] | None = None,
    attribute_values: Mapping[str, Sequence[str]] | None = None,
    class_names: Sequence[str] = (),
    depth: int = 3,
) -> None:
    """Write the annotation of one image; ``read_voc`` gives the same numbers back.

    Give ``schema`` and ``attribute_values`` for images without objects too: every file of a set says what
    the set's points and attributes are.

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
        crowd: As ``difficult``; written for objects that have it.
        keypoints: ``(num_objects, K, 2)`` pixels; needs ``schema``.
        visibility: ``(num_objects, K)``: 0 absent (not written), 1 hidden, 2 visible; default: all 2.
        schema: What the K points are, as `keypoint_schema` takes it.
        attributes: For each attribute the value of each object, None where it has none.
        attribute_values: For each attribute all values of the set in the order of their ids; default: none is
            said, and a reader sorts those that occur.
        class_names: All classes of the set in the order of their ids; default: as ``attribute_values``.
        depth: Channels of the image.

    Raises:
        ValueError: If lengths differ, a number is not finite, a name cannot stand in XML or be read back, or a
            value is none of those listed.
    """
    corners = float_array(boxes).reshape(-1, 4)
    flags = {"truncated": truncated, "difficult": difficult, "occluded": occluded, "crowd": crowd}
    attributes = attributes or {}
    for what, column in {"boxes": corners, **flags, **attributes}.items():
        if column is not None and len(column) != len(names):
            raise ValueError(f"{what} has {len(column)} rows; there are {len(names)} names")
    if not np.isfinite(corners).all():
        raise ValueError(f"boxes={corners.tolist()} must be finite")
    points_schema = None if schema is None else keypoint_schema(schema)
    points, seen = checked_points(keypoints, visibility, points_schema, num_objects=len(names))
    listed = {name: tuple(values) for name, values in (attribute_values or {}).items()}
    check_listed(names, tuple(class_names), attributes, listed)
    root = Element("annotation")
    add_text(root, "folder", Path(path).parent.name)
    add_text(root, "filename", filename)
    if width and height:
        size = SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", depth)):
            add_text(size, tag, str(int(value)))
    said = VocSchema(
        class_names=tuple(class_names), keypoints=points_schema, attributes=tuple(listed.items())
    )
    schema_block = schema_element(said)
    if schema_block is not None:
        root.append(schema_block)
    for i, name in enumerate(names):
        element = SubElement(root, "object")
        add_text(element, "name", check_name(name, what="class"))
        for tag in _FLAGS:
            column = flags[tag]
            add_text(element, tag, "0" if column is None else str(int(bool(column[i]))))
        if crowd is not None and crowd[i]:
            add_text(element, "crowd", "1")
        box = SubElement(element, "bndbox")
        for tag, corner in zip(("xmin", "ymin", "xmax", "ymax"), corners[i], strict=True):
            add_text(box, tag, number_text(corner))
        if points_schema is not None and seen[i].any():
            add_points(element, points_schema.names, points[i], seen[i])
        add_attributes(element, {key: values[i] for key, values in attributes.items()})
    indent(root)
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def write_voc(
    table: AnnotationTable,
    root: Path | str,
    *,
    annotation_dir: str = "Annotations",
    image_dir: str = "JPEGImages",
    allow_loss: bool = False,
    progress: bool = True,
) -> list[str]:
    """Write a table as unified VOC XML, and its split file when it has a split; images are not copied.

    Everything that a table holds is written but what `what_is_lost` lists for ``"voc"``: the little that no
    reader gives.

    Args:
        table: The table.
        root: The folder of the new data set; made when missing.
        annotation_dir: Folder of the XML files, relative to ``root``.
        image_dir: Folder where the images are to lie, relative to ``root``: ``voc_image_paths`` says where.
        allow_loss: Whether to write even if the files cannot hold everything.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        What of the table the files do not hold, in words; empty when nothing is lost.

    Raises:
        ValueError: If two images have the same id, a name cannot be written, or something would be lost and
            ``allow_loss`` is False.
        UnsafePathError: If an id, the split or a folder leads out of ``root``.
    """
    lost = what_is_lost(table, "voc")
    refuse_loss(lost, format="VOC", allow_loss=allow_loss)
    places = voc_image_paths(table, image_dir=image_dir)
    ids = voc_ids(table)
    folder = Path(root, check_relative(annotation_dir))
    split_file = None if table.split is None else check_relative(f"ImageSets/Main/{table.split}.txt")
    folder.mkdir(parents=True, exist_ok=True)  # of a set without images, too
    map_chunks(
        partial(_write_images, table=table, ids=ids, places=places, folder=folder, said=_said(table)),
        range(table.num_images),
        num_workers=0,
        progress=progress,
        description="Writing annotations",
    )
    if split_file is not None:
        path = Path(root, split_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(f"{image_id}\n" for image_id in ids).encode("utf-8", "surrogateescape"))
    return lost


def _said(table: AnnotationTable) -> dict[str, Any]:
    """Return what every file of the set says of all of them."""
    occurring = np.flatnonzero(table.class_counts()).tolist()
    usual = tuple(sorted(table.class_names[label] for label in occurring)) == table.class_names
    is_plain = usual and table.keypoints is None and not table.attributes
    return {
        "schema": table.keypoint_schema,
        "attribute_values": {name: attribute.names for name, attribute in table.attributes.items()},
        "class_names": () if is_plain else table.class_names,
    }


def _write_images(
    chunk: Sequence[int],
    *,
    table: AnnotationTable,
    ids: Sequence[str],
    places: Sequence[str],
    folder: Path,
    said: Mapping[str, Any],
) -> None:
    for i in chunk:
        rows, path = table.objects(i), folder / f"{ids[i]}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_voc_xml(
            path,
            filename=PurePosixPath(places[i]).name,
            width=int(table.widths[i]),
            height=int(table.heights[i]),
            names=[table.class_names[label] for label in table.labels[rows].tolist()],
            boxes=table.boxes[rows],
            difficult=table.difficult[rows],
            truncated=table.truncated[rows],
            occluded=table.occluded[rows],
            crowd=table.crowd[rows],
            keypoints=None if table.keypoints is None else table.keypoints[rows],
            visibility=None if table.visibility is None else table.visibility[rows],
            attributes={
                name: [
                    None if value < 0 else attribute.names[value] for value in attribute.ids[rows].tolist()
                ]
                for name, attribute in table.attributes.items()
            },
            **said,
        )
