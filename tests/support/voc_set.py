"""A small VOC data set that a test writes as it likes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.annotations.formats.rows import DeclaredNames
from lit_loader.annotations.formats.voc import write_image_xml
from lit_loader.annotations.keypoints import keypoint_schema


class VocSet:
    """Writes files in VOC layout; image files are empty, since sizes are annotated."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (root / folder).mkdir(parents=True)

    def add(self, image_id, *objects, size=(100, 80), filename=None, image=".jpg", head="", before=""):
        """Add an image; an object is ``(name, xmin, ymin, xmax, ymax)`` and, if need be, further XML.

        ``head`` is text before the root element, ``before`` elements in front of the objects.
        """
        rows = []
        for name, *corners in objects:
            tags = zip(("xmin", "ymin", "xmax", "ymax"), corners[:4], strict=True)
            box = "".join(f"<{tag}>{corner}</{tag}>" for tag, corner in tags)
            extra = "".join(corners[4:])
            rows.append(f"<object><name>{name}</name>{extra}<bndbox>{box}</bndbox></object>")
        width, height = size if size else (None, None)
        sized = f"<size><width>{width}</width><height>{height}</height></size>" if size else ""
        named = f"<filename>{image_id}{image or '.jpg'}</filename>" if filename is None else filename
        self.raw(image_id, "\n".join((f"{head}<annotation>{named}{sized}{before}", *rows, "</annotation>")))
        if image:
            path = self.root / "JPEGImages" / f"{image_id}{image}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def raw(self, image_id, text):
        path = self.root / "Annotations" / f"{image_id}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def split(self, name, text):
        (self.root / "ImageSets/Main" / f"{name}.txt").write_bytes(text.encode())

    def read(self, name=".", **arguments) -> AnnotationTable:
        """Read a split; fields of the policy are accepted like options."""
        policy = {field: arguments.pop(field) for field in list(arguments) if field in ReadPolicy.__dataclass_fields__}
        arguments = {"use_cache": False, "progress": False, **arguments}
        return read_annotations("voc", self.root, name, policy=ReadPolicy(**policy), **arguments)


def write_voc_xml(
    path,
    *,
    filename,
    width,
    height,
    names,
    boxes,
    keypoints=None,
    visibility=None,
    schema=None,
    attributes=None,
    attribute_values=None,
    **flags,
):
    """Write the annotation of one image from columns of its objects."""
    columns = {}
    table_attributes = {}
    if schema is not None:
        schema = keypoint_schema(schema)
        points = np.array(keypoints)
        columns = {
            "keypoints": points,
            "visibility": np.full(points.shape[:2], 2) if visibility is None else visibility,
            **schema.columns(),
        }
    for name, values in (attributes or {}).items():
        value_names = (attribute_values or {}).get(name) or sorted({value for value in values if value is not None})
        ids = [-1 if value is None else value_names.index(value) for value in values]
        table_attributes[name] = Attribute(ids=np.array(ids), names=tuple(value_names))
    classes = sorted(set(names))
    table = AnnotationTable(
        root="/",
        image_paths=["a.jpg"],
        widths=[width],
        heights=[height],
        class_names=classes,
        offsets=[0, len(names)],
        boxes=boxes,
        labels=[classes.index(name) for name in names],
        attributes=table_attributes,
        **columns,
        **flags,
    )
    listed = tuple((name, tuple(values)) for name, values in (attribute_values or {}).items())
    declared = DeclaredNames(keypoints=schema, attributes=listed)
    write_image_xml(Path(path), table, 0, filename=filename, declared=declared)


@pytest.fixture
def voc(tmp_path):
    """An empty set."""
    return VocSet(tmp_path / "voc")


@pytest.fixture
def three_images(voc):
    """Three images: a dog and a cat, nothing, and three dogs."""
    voc.add("b", ("dog", 1, 2, 30, 40), ("cat", 5, 6, 70, 80))
    voc.add("a", size=(50, 60))
    voc.add("c", ("dog", 0, 0, 10, 10), ("dog", 1.5, 2.25, 20, 20), ("dog", 3, 3, 9, 9))
    return voc
