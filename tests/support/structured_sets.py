"""Small sound data sets in every structured format, and the readers that belong to them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.annotations.table import AnnotationTable
from tests.support.text_sets import SIZE, write_image
from tests.support.voc_set import write_voc_xml

__all__ = ["STRUCTURED_SETS"]

QUIET = {"use_cache": False, "progress": False}
LENIENT = ReadPolicy(malformed="drop", missing_image="drop", unreadable_image="keep", unknown_class="drop")
LENIENT_VOC = ReadPolicy(missing_annotation="drop", malformed="drop", missing_image="drop", schema_mismatch="unite")
SCHEMA = {"names": ["p", "q", "r"], "flip_pairs": [[0, 1]], "normalization_pair": [0, 1]}


def make_voc(root: Path) -> list[str]:
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for name in ("a", "b"):
        write_image(root / f"JPEGImages/{name}.jpg")
        write_voc_xml(
            root / f"Annotations/{name}.xml",
            filename=f"{name}.jpg",
            width=SIZE[0],
            height=SIZE[1],
            names=["cat", "dog"],
            boxes=[[1, 2, 30, 40], [2.5, 3, 20, 20]],
            crowd=[False, True],
            keypoints=[[[3, 4], [5, 6.5], [7, 8]]] * 2,
            visibility=[[2, 1, 0], [0, 0, 2]],
            schema=SCHEMA,
            attributes={"pose": ["up", None], "size": ["small", "large"]},
            attribute_values={"pose": ["up", "down"], "size": ["small", "large"]},
        )
    (root / "ImageSets/Main/all.txt").write_text("a\nb\n")
    return ["Annotations/a.xml", "Annotations/b.xml", "ImageSets/Main/all.txt"]


def read_voc_strictly(root: Path) -> AnnotationTable:
    return read_annotations("voc", root, "all", **QUIET)


def read_voc_leniently(root: Path) -> AnnotationTable:
    return read_annotations("voc", root, "all", policy=LENIENT_VOC, num_workers=0, **QUIET)


def make_coco(root: Path) -> list[str]:
    images = []
    for number, name in enumerate(("a.jpg", "b.png"), 1):
        write_image(root / "img" / name)
        images.append({"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
    del images[1]["width"]
    box = {"bbox": [1, 2, 30, 20.5], "area": 615, "iscrowd": 0, "segmentation": [[1, 2, 3, 4, 5, 6]]}
    points = {"keypoints": [3, 4, 2, 5, 6.5, 1, 0, 0, 0], "num_keypoints": 2, "attributes": {"pose": "up"}}
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 1} | box,
        {"id": 2, "image_id": 2, "category_id": 7} | box | points,
        {"id": 3, "image_id": 2, "category_id": 7} | points,
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 7, "name": "face", "keypoints": ["p", "left_q", "right_q"]}]
    document = {"images": images, "categories": categories, "annotations": annotations}
    (root / "a.json").write_text(json.dumps(document, indent=1))
    return ["a.json"]


def read_coco_strictly(root: Path) -> AnnotationTable:
    return read_annotations("coco", root, "a.json", image_dir="img", **QUIET)


def read_coco_leniently(root: Path) -> AnnotationTable:
    return read_annotations("coco", root, "a.json", image_dir="img", policy=LENIENT, num_workers=0, **QUIET)


def make_imglab(root: Path) -> list[str]:
    boxes = """  <box top='1' left='2' width='30' height='20' ignore='0'>
      <label>face</label>
      <part name='00' x='3' y='4'/>
      <part name='01' x='5' y='6.5'/>
    </box>
    <box top='5' left='6' width='7' height='8' occluded='1' age='3'/>
"""
    for name in ("a.jpg", "b.png"):
        write_image(root / name)
    images = f"<image file='a.jpg'>\n{boxes}</image>\n<image file='b.png' width='60' height='50'>{boxes}</image>"
    head = "<?xml version='1.0' encoding='ISO-8859-1'?>\n<?xml-stylesheet type='text/xsl' href='s.xsl'?>\n"
    (root / "a.xml").write_text(f"{head}<dataset>\n<name>x</name>\n<images>\n{images}\n</images>\n</dataset>\n")
    return ["a.xml"]


def read_imglab_strictly(root: Path) -> AnnotationTable:
    return read_annotations("imglab", root, "a.xml", **QUIET)


def read_imglab_leniently(root: Path) -> AnnotationTable:
    return read_annotations("imglab", root, "a.xml", policy=LENIENT, schema="face_68", num_workers=0, **QUIET)


def make_folders(root: Path) -> list[str]:
    names = ["cat/a.jpg", "cat/deep/b.png", "dog/c.JPG", "dog/d.png"]
    for name in names:
        write_image(root / name)
    return names


def read_folders_strictly(root: Path) -> AnnotationTable:
    return read_annotations("image_folder", root, **QUIET)


def read_folders_leniently(root: Path) -> AnnotationTable:
    return read_annotations("image_folder", root, policy=LENIENT, num_workers=0, **QUIET)


def make_class_list(root: Path) -> list[str]:
    for name in ("a.jpg", "b c.png", "deep/d.jpg"):
        write_image(root / name)
    (root / "list.txt").write_text("a.jpg 0\nb c.png 1 0\ndeep/d.jpg 2\na.jpg 1\n")
    (root / "classes.txt").write_text("owl\ncat\ndog\n")
    return ["list.txt", "classes.txt"]


def read_class_list_strictly(root: Path) -> AnnotationTable:
    return read_annotations("class_list", root, "list.txt", numbered=True, class_file="classes.txt", **QUIET)


def read_class_list_leniently(root: Path) -> AnnotationTable:
    return read_annotations("class_list", root, "list.txt", policy=LENIENT, num_workers=0, **QUIET)


def make_one_hot(root: Path) -> list[str]:
    for name in ("a.jpg", "b c.png", "deep/d.jpg"):
        write_image(root / name)
    (root / "list.csv").write_text('path,"cat",dog,owl\na.jpg,1,0,0\n"b c.png",0,1,1\ndeep/d.jpg,0,0,0\n')
    return ["list.csv"]


def read_one_hot_strictly(root: Path) -> AnnotationTable:
    return read_annotations("class_list", root, "list.csv", separator=",", **QUIET)


def read_one_hot_leniently(root: Path) -> AnnotationTable:
    options = {"separator": ",", "one_hot": True, "policy": LENIENT}
    return read_annotations("class_list", root, "list.csv", num_workers=0, **options, **QUIET)


def labelme_shape(kind: str, label: str, *points: list[float], **more: object) -> dict[str, object]:
    shape = {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}}
    return shape | more


def make_labelme(root: Path) -> list[str]:
    """Write ann/a.json with its image in img, and ann/b.json with its image in itself."""
    write_image(root / "img/a.jpg")
    write_image(root / "b.png")
    embedded = base64.b64encode((root / "b.png").read_bytes()).decode()
    (root / "b.png").unlink()
    shapes = [
        labelme_shape("rectangle", "cat", [30, 40], [1, 2], group_id=1, flags={"difficult": True, "wet": False}),
        labelme_shape("point", "left_eye", [5, 6.5], group_id=1),
        labelme_shape("polygon", "dog", [1, 2], [30, 4], [12.5, 20], flags={"wet": True}),
        labelme_shape("circle", "ball", [1, 2], [3, 4]),
    ]
    (root / "ann").mkdir()
    for name, image, data in (("a", "..\\img\\a.jpg", None), ("b", "b.png", embedded)):
        size = {"imageWidth": SIZE[0], "imageHeight": SIZE[1]} if data is None else {}
        document = {"version": "5.0.1", "flags": {"day": True}, "shapes": shapes, "imagePath": image, "imageData": data}
        (root / f"ann/{name}.json").write_text(json.dumps(document | size, indent=1))
    return ["ann/a.json", "ann/b.json"]


def read_labelme_strictly(root: Path) -> AnnotationTable:
    return read_annotations("labelme", root, "ann", **QUIET)


def read_labelme_leniently(root: Path) -> AnnotationTable:
    options = {"policy": LENIENT, "class_name": "dot", "schema": {"names": ["left_eye"]}, "num_workers": 0}
    return read_annotations("labelme", root, "ann", **options, **QUIET)


STRUCTURED_SETS = {
    "voc": (read_voc_strictly, make_voc),
    "voc, lenient": (read_voc_leniently, make_voc),
    "coco": (read_coco_strictly, make_coco),
    "coco, lenient": (read_coco_leniently, make_coco),
    "imglab": (read_imglab_strictly, make_imglab),
    "imglab, lenient": (read_imglab_leniently, make_imglab),
    "labelme": (read_labelme_strictly, make_labelme),
    "labelme, lenient": (read_labelme_leniently, make_labelme),
    "image_folder": (read_folders_strictly, make_folders),
    "image_folder, lenient": (read_folders_leniently, make_folders),
    "class_list": (read_class_list_strictly, make_class_list),
    "class_list, lenient": (read_class_list_leniently, make_class_list),
    "one-hot table": (read_one_hot_strictly, make_one_hot),
    "one-hot table, lenient": (read_one_hot_leniently, make_one_hot),
}
