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
                <normalization_pair first="left eye" second="right eye"/>
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
hidden, 2 visible (also when it is left out); a point that is absent is not written (0 means absent, too). An object
with points may lack ``<bndbox>``: it gets the tight box of its points.

``<attributes>`` of an object: named values, written as CVAT and Datumaro write them; an empty value is none.

``<crowd>`` 1: the box holds a group, as COCO's ``iscrowd``.

``<schema>`` is the same in every file of a set, so that any file, split, or subset is read with the same
columns and no further argument: the points in their order, which two change places in a mirror, which two scale
an error; the attributes in their order and their values in the order of the ids; and ``<class>`` names in the
order of theirs. Points of a known schema are not listed: ``<keypoints schema="face_68"/>``. A part that is left
out is taken from the objects, sorted. A set without points and attributes whose classes are the sorted names of
its objects is written without ``<schema>``, as plain VOC.

Numbers are decimal, exact for float32: what is read was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.parallel import map_chunks
from lit_loader.formats.rows import Declared
from lit_loader.formats.voc_schema import add_text, schema_element, written_name, xml_text
from lit_loader.formats.writer import Writer, absent_places, lost_masks

__all__ = ["VocWriter", "voc_image_paths", "write_voc_xml"]


@dataclass(frozen=True, kw_only=True)
class VocWriter(Writer):
    """Writes a table as unified VOC XML, an image a file, and its split; images are not copied.

    Args:
        annotation_dir: Folder of the XML files, relative to the root.
        image_dir: Folder where the images are to lie, relative to the root: ``voc_image_paths`` returns where.
    """

    format: ClassVar[str] = "voc"
    description: ClassVar[str] = "unified VOC XML: boxes, points, attributes; NAME: the split, or . for none"
    name_of_split: ClassVar[str] = "{}"

    annotation_dir: str = "Annotations"
    image_dir: str = "JPEGImages"

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return what VOC cannot hold of a table."""
        lost, places = lost_masks(table), absent_places(table)
        if places:
            lost.append(f"places of {places} absent points")
        half_known = int(((table.widths == 0) != (table.heights == 0)).sum())
        if half_known:
            lost.append(f"{half_known} widths or heights whose counterpart is not known")
        if table.num_images == 0 and (table.class_names or table.attributes or table.keypoint_names):
            lost.append("names of classes, points and attributes, since there is no image to write them for")
        return lost

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a table.

        Raises:
            ValueError: If the table has another split, two images have the same id, or a name cannot be written.
            UnsafePathError: If an id, the split or a folder leads out of the root.
        """
        if table.split not in (None, name):
            raise ValueError(f"name={name!r} must be the table's split, {table.split!r}")
        places, ids = voc_image_paths(table, image_dir=self.image_dir), _image_ids(table)
        folder = root / check_relative(self.annotation_dir)
        split_file = root / check_relative(f"ImageSets/Main/{name}.txt")
        folder.mkdir(parents=True, exist_ok=True)  # of a set without images, too
        occurring = sorted(
            table.class_names[label] for label in np.flatnonzero(table.class_counts()).tolist()
        )
        is_plain = tuple(occurring) == table.class_names and table.keypoints is None and not table.attributes
        class_names = () if is_plain else table.class_names
        map_chunks(
            partial(
                _write_images, table=table, ids=ids, places=places, folder=folder, class_names=class_names
            ),
            range(table.num_images),
            num_workers=0,
            progress=progress,
            description="Writing annotations",
        )
        if name != ".":
            split_file.parent.mkdir(parents=True, exist_ok=True)
            split_file.write_bytes(
                "".join(f"{image_id}\n" for image_id in ids).encode("utf-8", "surrogateescape")
            )


def voc_image_paths(table: AnnotationTable, *, image_dir: str = "JPEGImages") -> list[str]:
    """Return where the images of a table belong in the data set that `VocWriter` writes, relative to its root.

    That is the image's id with the ending of its file.

    Raises:
        ValueError: If two images have the same id, or an id cannot be that of a VOC image.
        UnsafePathError: If an id or ``image_dir`` leads out of the root.
    """
    folder, ids = PurePosixPath(check_relative(image_dir)), _image_ids(table)
    endings = (PurePosixPath(path).suffix for path in table.image_paths)
    return [str(folder / f"{image_id}{ending}") for image_id, ending in zip(ids, endings, strict=True)]


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
    """Write the annotation of one image; ``VocReader`` gives the same numbers back.

    Give ``schema`` and ``attribute_values`` for images without objects too: every file of a set lists what
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
            listed, and a reader sorts those that occur.
        class_names: All classes of the set in the order of their ids; default: as ``attribute_values``.
        depth: Channels of the image.

    Raises:
        ValueError: If lengths differ, a number is not finite, a name cannot be written in XML or be read back, or a
            value is none of those listed.
    """
    corners = _floats(boxes).reshape(-1, 4)
    flags = {"truncated": truncated, "difficult": difficult, "occluded": occluded, "crowd": crowd}
    attributes = attributes or {}
    for what, column in {"boxes": corners, **flags, **attributes}.items():
        if column is not None and len(column) != len(names):
            raise ValueError(f"{what} has {len(column)} rows; there are {len(names)} names")
    if not np.isfinite(corners).all():
        raise ValueError(f"boxes={corners.tolist()} must be finite")
    points_schema = None if schema is None else keypoint_schema(schema)
    points, seen = _checked_points(keypoints, visibility, points_schema, num_objects=len(names))
    declared = Declared(
        class_names=tuple(class_names),
        keypoints=points_schema,
        attributes=tuple((name, tuple(values)) for name, values in (attribute_values or {}).items()),
    )
    _check_declared(names, attributes, declared)
    root = Element("annotation")
    add_text(root, "folder", Path(path).parent.name)
    add_text(root, "filename", filename)
    if width and height:
        size = SubElement(root, "size")
        for tag, value in (("width", width), ("height", height), ("depth", depth)):
            add_text(size, tag, str(int(value)))
    schema_block = schema_element(declared)
    if schema_block is not None:
        root.append(schema_block)
    for i, name in enumerate(names):
        element = SubElement(root, "object")
        add_text(element, "name", written_name(name, "class"))
        for tag, column in flags.items():
            is_set = column is not None and bool(column[i])
            if is_set or tag != "crowd":
                add_text(element, tag, str(int(is_set)))
        box = SubElement(element, "bndbox")
        for tag, corner in zip(("xmin", "ymin", "xmax", "ymax"), corners[i], strict=True):
            add_text(box, tag, _number_text(corner))
        if points_schema is not None and seen[i].any():
            _add_points(element, points_schema.names, points[i], seen[i])
        _add_attributes(element, {key: values[i] for key, values in attributes.items()})
    indent(root)
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _write_images(
    chunk: Sequence[int],
    *,
    table: AnnotationTable,
    ids: Sequence[str],
    places: Sequence[str],
    folder: Path,
    class_names: Sequence[str],
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
            schema=table.keypoint_schema,
            attributes={
                name: [
                    None if value < 0 else attribute.names[value] for value in attribute.ids[rows].tolist()
                ]
                for name, attribute in table.attributes.items()
            },
            attribute_values={name: attribute.names for name, attribute in table.attributes.items()},
            class_names=class_names,
        )


def _image_ids(table: AnnotationTable) -> list[str]:
    """Return the ids of images without the image's ending, which other formats leave on.

    An id that is the image's name without its ending stays, whatever it ends with: ``a.jpg`` of ``a.jpg.jpg``.
    """
    ids: dict[str, int] = {}
    for i, (image_id, path) in enumerate(zip(table.image_ids, table.image_paths, strict=True)):
        ending = PurePosixPath(path).suffix
        has_none = f"/{path}".removesuffix(ending).endswith(f"/{image_id}")
        stem = image_id if has_none else image_id.removesuffix(ending)
        name = stem if stem and not stem.endswith("/") else image_id
        parts = check_relative(name).split("/")
        if name != name.strip() or "\n" in name or any(part == "" or part.startswith(".") for part in parts):
            raise ValueError(
                f"image id {name!r} cannot be a line of a split file and an XML file's name: it must not begin or end "
                "with a space, nor a part of it with a dot"
            )
        if name in ids:
            raise ValueError(
                f"images {table.image_paths[ids[name]]!r} and {path!r} have the same id {name!r}; VOC has one XML file "
                "for each id, so select one of them"
            )
        ids[name] = i
    return list(ids)


def _checked_points(
    keypoints: npt.ArrayLike | None,
    visibility: npt.ArrayLike | None,
    schema: KeypointSchema | None,
    *,
    num_objects: int,
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int64]]:
    """Return the points ``(num_objects, K, 2)`` and their visibility ``(num_objects, K)``."""
    if keypoints is None:
        if visibility is not None:
            raise ValueError("visibility is given without keypoints; give both or none")
        return np.zeros((num_objects, 0, 2)), np.zeros((num_objects, 0), dtype=np.int64)
    if schema is None:
        raise ValueError("keypoints are given without schema; name the points, e.g. schema='face_5'")
    shape = (num_objects, len(schema.names))
    points = _floats(keypoints)
    points = np.zeros((*shape, 2)) if points.size == 0 else points
    seen = np.full(shape, 2, dtype=np.int64) if visibility is None else np.asarray(visibility)
    seen = np.zeros(shape, dtype=np.int64) if seen.size == 0 else seen.astype(np.int64)
    if points.shape != (*shape, 2) or seen.shape != shape:
        raise ValueError(
            f"keypoints {points.shape} and visibility {seen.shape} must be {(*shape, 2)} and {shape}: "
            f"{num_objects} objects of {shape[1]} points"
        )
    if not np.isin(seen, (0, 1, 2)).all():
        raise ValueError(f"visibility={seen.tolist()} must be 0 (absent), 1 (hidden) or 2 (visible)")
    if not np.isfinite(points[seen > 0]).all():
        raise ValueError(f"keypoints={points.tolist()} must be finite where visibility is not 0")
    return points, seen


def _check_declared(
    names: Sequence[str], attributes: Mapping[str, Sequence[str | None]], declared: Declared
) -> None:
    """Check that what is listed for the whole set has what this file has."""
    listed = dict(declared.attributes)
    checks: list[tuple[str, Sequence[str | None], tuple[str, ...] | None]]
    checks = [("class_names", names, declared.class_names or None)]
    checks += [(f"attribute_values[{key!r}]", values, listed.get(key)) for key, values in attributes.items()]
    for what, values, known in checks:
        strange = sorted({value for value in values if value is not None} - set(known or ()))
        if known is not None and strange:
            raise ValueError(f"{what}={known} lack {strange[0]!r}, which an object has; list it too")
        if known is not None and len(set(known)) != len(known):
            raise ValueError(f"{what}={known} must differ")
    lacking = sorted(attributes.keys() - listed.keys())
    if listed and lacking:
        raise ValueError(f"attribute_values lack {lacking} of attributes; list all of them or none")


def _add_points(
    element: Element, names: Sequence[str], points: npt.NDArray[np.floating], seen: npt.NDArray[np.int64]
) -> None:
    parent = SubElement(element, "keypoints")
    for name, (x, y), visibility in zip(names, points, seen.tolist(), strict=True):
        if visibility:
            attributes = {"x": _number_text(x), "y": _number_text(y), "visibility": str(visibility)}
            SubElement(
                parent, "point", {"name": xml_text(written_name(name, "point"), "point"), **attributes}
            )


def _add_attributes(element: Element, values: Mapping[str, str | None]) -> None:
    present = {name: value for name, value in values.items() if value is not None}
    if not present:
        return
    parent = SubElement(element, "attributes")
    for name, value in present.items():
        attribute = SubElement(parent, "attribute")
        add_text(attribute, "name", written_name(name, "attribute"))
        add_text(attribute, "value", written_name(value, f"value of attribute {name!r}"))


def _floats(values: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return float32 as it is, so that it is written in few digits, and anything else as float64."""
    given = np.asarray(values)
    return given if given.dtype == np.float32 else given.astype(np.float64)


def _number_text(number: np.floating) -> str:
    """Return a number in the fewest digits that give its type the same bits again."""
    value = float(number)
    if value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0):
        return str(int(value))
    return str(number)
