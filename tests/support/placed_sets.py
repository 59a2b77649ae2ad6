"""A small set of every format whose objects differ in the x of their boxes or points, to look up their places."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import read_annotations
from tests.support.text_sets import SIZE, write_image

__all__ = ["PLACED_SETS", "PlacedSet", "text_at"]


@dataclass(frozen=True, kw_only=True)
class PlacedSet:
    """A set.

    Attributes:
        format: Its format.
        name: NAME for the reader.
        files: Text of each annotation file.
        image_texts: Text at the place of each image.
        object_texts: Text at the place of each object.
        options: Options of the reader.
        images: Path of each image.
        size: Size of the images.
    """

    format: str
    name: str
    files: dict[str, str]
    image_texts: list[str | None]
    object_texts: list[str | None]
    options: dict[str, Any] = field(default_factory=dict)
    images: tuple[str, ...] = ("a.png", "b.png")
    size: tuple[int, int] = SIZE

    def write(self, root: Path) -> None:
        """Write the images and the annotation files."""
        for image in self.images:
            write_image(root / image, self.size)
        for name, text in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode())

    def read(self, root: Path, **options: Any) -> AnnotationTable:
        """Read the set."""
        options = {"progress": False, **self.options, **options}
        return read_annotations(self.format, root, self.name, **options)


def text_at(root: Path, place: Any) -> str | None:
    """Return the line, the entry or the name of the file at a place, None without a place."""
    if place is None:
        return None
    if place.entry is not None:
        list_name, _, number = place.entry.rstrip("]").partition("[")
        return json.dumps(json.loads((root / place.file).read_text())[list_name][int(number)])
    if place.line is None:
        return place.file if (root / place.file).exists() else "no such file"
    return (root / place.file).read_text().split("\n")[place.line - 1]


def _voc_object(x: int, *, corners: str = "xmin ymin xmax ymax", extra: str = "") -> str:
    """Return an object of three lines, with its x in a comment in the first line."""
    values = {"xmin": x, "ymin": 2, "xmax": x + 9, "ymax": 20}
    box = "".join(f"<{corner}>{values[corner]}</{corner}>" for corner in corners.split())
    return f"<object><!-- {x} -->\n<name>cat</name>{extra}\n<bndbox>{box}</bndbox></object>\n"


def _voc_file(*objects: str, head: str = "") -> str:
    size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>"
    return f"{head}<annotation>\n\n<filename>a.png</filename>\r\n{size}\n{''.join(objects)}</annotation>\n"


def _voc(change: Callable[[str], str] = lambda text: text, **options: Any) -> PlacedSet:
    files = {
        "Annotations/a.xml": change(_voc_file(_voc_object(11, **options), _voc_object(22, **options))),
        "Annotations/b.xml": change(_voc_file(_voc_object(33, **options), head="<!--\n-->\n\n")),
    }
    images = [*files]
    return PlacedSet(
        format="voc",
        name=".",
        files=files,
        image_texts=[*images],
        object_texts=["-- 11 ", "-- 22 ", "-- 33 "],
        images=("JPEGImages/a.png", "JPEGImages/b.png"),
    )


def _coco_document(indent: int | None) -> str:
    annotations = [
        {"id": x, "image_id": image, "category_id": 1, "bbox": [x, 2, 9, 20]}
        for x, image in ((33, 2), (11, 1), (22, 1))
    ]
    images = [
        {"id": number, "file_name": f"{name}.png", "width": 60, "height": 50} for number, name in ((2, "b"), (1, "a"))
    ]
    document = {"categories": [{"id": 1, "name": "cat"}], "images": images, "annotations": annotations}
    return json.dumps(document, indent=indent)


def _labelme_document(*xs: int) -> str:
    shapes = [
        {"label": "cat", "shape_type": "circle", "points": [[1, 1], [2, 2]]},
        *({"label": "cat", "shape_type": "rectangle", "points": [[x, 2], [x + 9, 20]]} for x in xs),
    ]
    return json.dumps({"imagePath": "a.png" if 11 in xs else "b.png", "shapes": shapes})


_FACES = {"a.png": (11, 22), "b.png": (33,)}
_EYES = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"


def _points(x: int, count: int, separator: str = " ") -> str:
    """Return points from x on, in a row of ten."""
    return separator.join(f"{x + i % 10}{separator}{3 + i % 40}" for i in range(count))


def _pts_file(x: int) -> str:
    return "version: 1\nn_points: 68\n{\n" + "\n".join(f"{x + i % 10} {3 + i % 40}" for i in range(68)) + "\n}\n"


_CELEBA = {
    "Eval/list_eval_partition.txt": "a.jpg 1\nb.jpg 0\nc.jpg 0\n",
    "Anno/list_bbox_celeba.txt": "3\nx_1 y_1 width height\na.jpg 1 2 9 9\nb.jpg 11 2 9 20\n\nc.jpg 22 2 9 20\n",
    "Anno/list_attr_celeba.txt": "3\nBald\na.jpg 1\nb.jpg -1\nc.jpg 1\n",
}
_CELEBA_POINTS = f"3\n{_EYES}\na.jpg {_points(1, 5)}\nb.jpg {_points(11, 5)}\nc.jpg {_points(22, 5)}\n"
_TABLE = """\
path,xmin,ymin,xmax,ymax,class
a.png,11,2,20,20,"c
at"

a.png,22,2,31,20,"c
at"
b.png,33,2,42,20,dog
"""
_LISTED = ["a.png", "b.png"]
_XS = [" 11 ", " 22 ", " 33 "]

PLACED_SETS: dict[str, PlacedSet] = {
    "voc": _voc(),
    "voc_other_corners": _voc(corners="xmax xmin ymax ymin"),
    "voc_nested_objects": _voc(extra="<part>\n<object/></part><!-- <object> -->"),
    "voc_split_without_files": PlacedSet(
        format="voc",
        name="train",
        files={"ImageSets/Main/train.txt": "\nb\n\na\n", "Annotations/a.xml": _voc_file(_voc_object(11))},
        image_texts=["b", "Annotations/a.xml"],
        object_texts=["-- 11 "],
        options={"policy": {"missing_annotation": "empty"}},
        images=("JPEGImages/a.png", "JPEGImages/b.png"),
    ),
    **{
        f"coco_indent_{indent}": PlacedSet(
            format="coco",
            name="all.json",
            files={"all.json": _coco_document(indent)},
            image_texts=["b.png", "a.png"],
            object_texts=["[33, 2", "[11, 2", "[22, 2"],
        )
        for indent in (None, 2)
    },
    "labelme": PlacedSet(
        format="labelme",
        name=".",
        files={"a.json": _labelme_document(11, 22), "b.json": _labelme_document(33)},
        image_texts=["a.json", "b.json"],
        object_texts=["[[11, 2]", "[[22, 2]", "[[33, 2]"],
    ),
    "imglab": PlacedSet(
        format="imglab",
        name="all.xml",
        files={
            "all.xml": "<dataset>\n<images>\n"
            + "".join(
                f"<image file='{name}'>\n"
                + "".join(f"<box\nleft='{x}' top='2' width='9' height='20'/><!-- {x} -->\n" for x in xs)
                + "</image>\n"
                for name, xs in _FACES.items()
            )
            + "</images></dataset>"
        },
        image_texts=_LISTED,
        object_texts=["<box", "<box", "<box"],
    ),
    "yolo_list": PlacedSet(
        format="yolo",
        name="train",
        files={
            "train.txt": "images/b.png\n\nimages/a.png\n",
            "labels/a.txt": "\n0 0.25 0.5 0.11 0.4\n0 0.5 0.5 0.22 0.4\n",
            "labels/b.txt": "0 0.5 0.5 0.33 0.4\n",
        },
        image_texts=["b.png", "a.png"],
        object_texts=["0.33", "0.11", "0.22"],
        options={"class_names": ["cat"]},
        images=("images/a.png", "images/b.png"),
    ),
    "dota": PlacedSet(
        format="dota",
        name=".",
        files={
            "labelTxt/a.txt": "gsd:1\n11 2 20 2 20 20 11 20 cat 0\n\n22 2 31 2 31 20 22 20 cat 0\n",
            "labelTxt/b.txt": "33 2 42 2 42 20 33 20 cat 1\n",
        },
        image_texts=["labelTxt/a.txt", "labelTxt/b.txt"],
        object_texts=[f"{x} 2 {x + 9} 2 {x + 9} 20 {x} 20 cat {flag}" for x, flag in ((11, 0), (22, 0), (33, 1))],
        images=("images/a.png", "images/b.png"),
    ),
    "yolo_folder": PlacedSet(
        format="yolo",
        name="train",
        files={"labels/train/a.txt": "0 0.25 0.5 0.11 0.4\n\n0 0.5 0.5 0.22 0.4\n", "labels/train/b.txt": ""},
        image_texts=["images/train", "images/train"],
        object_texts=["0.11", "0.22"],
        options={"class_names": ["cat"]},
        images=("images/train/a.png", "images/train/b.png"),
    ),
    "keypoints_txt": PlacedSet(
        format="keypoints_txt",
        name="list.txt",
        # The second line names the image of the first without its extension, so both become one image.
        files={"list.txt": "# faces\na.png 11 2 20 20\n\na 22 2 31 20\nb.png 33 2 42 20\n"},
        image_texts=_LISTED,
        object_texts=_XS,
        options={"columns": "path box"},
    ),
    **{
        name: PlacedSet(
            format=name,
            name="table.csv",
            files={"table.csv": _TABLE},
            image_texts=_LISTED,
            object_texts=[",11,", ",22,", ",33,"],
        )
        for name in ("keypoints_csv", "csv")
    },
    "wflw": PlacedSet(
        format="wflw",
        name="list.txt",
        files={
            "list.txt": "\n".join(
                f"{_points(x, 98)} {x} 2 {x + 9} 20 0 1 0 0 1 0 {name}" for name, xs in _FACES.items() for x in xs
            )
        },
        image_texts=_LISTED,
        object_texts=[" 11 2 20 20 ", " 22 2 31 20 ", " 33 2 42 20 "],
    ),
    "retinaface": PlacedSet(
        format="retinaface",
        name="label.txt",
        files={"label.txt": "# a.png\n11 2 9 20\n\n22 2 9 20\n# b.png\n33 2 9 20\n"},
        image_texts=_LISTED,
        object_texts=["11 2", "22 2", "33 2"],
    ),
    "widerface": PlacedSet(
        format="widerface",
        name="gt.txt",
        files={"gt.txt": "a.png\n2\n11 2 9 20 0 0 0 0 0 0\n22 2 9 20 0 0 0 0 0 0\n\nb.png\n1\n33 2 9 20 0 0 0 0 0 0\n"},
        image_texts=_LISTED,
        object_texts=["11 2", "22 2", "33 2"],
    ),
    "celeba_boxes": PlacedSet(
        format="celeba",
        name="train",
        files=_CELEBA,
        image_texts=["b.jpg 0", "c.jpg 0"],
        object_texts=["b.jpg 11 2", "c.jpg 22 2"],
        options={"aligned": False, "image_dir": "."},
        images=("a.jpg", "b.jpg", "c.jpg"),
    ),
    "celeba_points": PlacedSet(
        format="celeba",
        name="train",
        files=_CELEBA | {"Anno/list_landmarks_align_celeba.txt": _CELEBA_POINTS},
        image_texts=["b.jpg 0", "c.jpg 0"],
        object_texts=["b.jpg 11 3", "c.jpg 22 3"],
        options={"image_dir": "."},
        images=("a.jpg", "b.jpg", "c.jpg"),
        size=(178, 218),
    ),
    "pts": PlacedSet(
        format="pts",
        name=".",
        files={"a.pts": _pts_file(11), "b.pts": _pts_file(33)},
        image_texts=["a.pts", "b.pts"],
        object_texts=["a.pts", "b.pts"],
    ),
    "class_list": PlacedSet(
        format="class_list",
        name="train.txt",
        files={"train.txt": "\na.png cat dog\n\nb.png\n"},
        image_texts=_LISTED,
        object_texts=["cat dog", "cat dog"],
    ),
    "class_table": PlacedSet(
        format="class_list",
        name="train.csv",
        files={"train.csv": "path,cat,dog\na.png,1,1\n\nb.png,0,1\n"},
        image_texts=_LISTED,
        object_texts=["a.png,1,1", "a.png,1,1", "b.png,0,1"],
        options={"separator": ","},
    ),
    "image_folder": PlacedSet(
        format="image_folder",
        name=".",
        files={},
        image_texts=["cat", "dog"],
        object_texts=["cat", "dog"],
        images=("cat/a.png", "dog/b.png"),
    ),
}
