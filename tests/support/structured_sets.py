"""Small sound data sets in every structured format, and the readers that belong to them."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path

from lit_loader.annotations.formats import ReadPolicy
from tests.support.text_sets import LENIENT, SIZE, read_set, write_image
from tests.support.voc_set import write_voc_xml

__all__ = ["STRUCTURED_SETS"]

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


def make_folders(root: Path) -> list[str]:
    names = ["cat/a.jpg", "cat/deep/b.png", "dog/c.JPG", "dog/d.png"]
    for name in names:
        write_image(root / name)
    return names


def make_class_list(root: Path) -> list[str]:
    for name in ("a.jpg", "b c.png", "deep/d.jpg"):
        write_image(root / name)
    (root / "list.txt").write_text("a.jpg 0\nb c.png 1 0\ndeep/d.jpg 2\na.jpg 1\n")
    (root / "classes.txt").write_text("owl\ncat\ndog\n")
    return ["list.txt", "classes.txt"]


def make_one_hot(root: Path) -> list[str]:
    for name in ("a.jpg", "b c.png", "deep/d.jpg"):
        write_image(root / name)
    (root / "list.csv").write_text('path,"cat",dog,owl\na.jpg,1,0,0\n"b c.png",0,1,1\ndeep/d.jpg,0,0,0\n')
    return ["list.csv"]


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


VOC = partial(read_set, "voc", "all")
COCO = partial(read_set, "coco", "a.json", image_dir="img")
IMGLAB = partial(read_set, "imglab", "a.xml")
LABELME = partial(read_set, "labelme", "ann")
FOLDERS = partial(read_set, "image_folder", ".")
CLASSES = partial(read_set, "class_list", "list.txt")
ONE_HOT = partial(read_set, "class_list", "list.csv", separator=",")
DOTS = {"class_name": "dot", "schema": {"names": ["left_eye"]}}

STRUCTURED_SETS = {
    "voc": (VOC, make_voc),
    "voc, lenient": (partial(VOC, policy=LENIENT_VOC), make_voc),
    "coco": (COCO, make_coco),
    "coco, lenient": (partial(COCO, policy=LENIENT), make_coco),
    "imglab": (IMGLAB, make_imglab),
    "imglab, lenient": (partial(IMGLAB, policy=LENIENT, schema="face_68"), make_imglab),
    "labelme": (LABELME, make_labelme),
    "labelme, lenient": (partial(LABELME, policy=LENIENT, **DOTS), make_labelme),
    "image_folder": (FOLDERS, make_folders),
    "image_folder, lenient": (partial(FOLDERS, policy=LENIENT), make_folders),
    "class_list": (partial(CLASSES, numbered=True, class_file="classes.txt"), make_class_list),
    "class_list, lenient": (partial(CLASSES, policy=LENIENT), make_class_list),
    "one-hot table": (ONE_HOT, make_one_hot),
    "one-hot table, lenient": (partial(ONE_HOT, one_hot=True, policy=LENIENT), make_one_hot),
}
