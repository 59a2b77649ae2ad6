"""Every shared real set is read, with the counts of its README, or refused by its name; skipped where they are not.

What else is in the sets is tested beside each reader; here none is left out.
"""

from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError

DATUMARO = "formats_datumaro"
OPEN_IMAGES = f"{DATUMARO}/open_images_dataset/v6/annotations"
CORNERS = ["xmin", "ymin", "xmax", "ymax"]
VOTT = {"path_column": "image", "box_columns": CORNERS, "class_column": "label"}
CELLS = {"class_column": "cell_type", "box_columns": CORNERS, "image_dir": "BCCD/JPEGImages"}
VGGFACE2 = {"box_columns": ["X", "Y", "W", "H"], "box_format": "xywh"}
LIST = {"numbered": True, "class_file": "classes.txt"}
KEEP = {"policy": {"missing_image": "keep", "unreadable_image": "keep", "degenerate": "keep", "malformed": "drop"}}
CSV_LIST = {"image_dir": "images", "separator": ",", "header": True}
MMPOSE = "mmpose_samples"
FACES = "derived_face_txt"

# folder -> format, name, options, images, objects of each set that is read
READ = {
    "bccd": [("keypoints_csv", "test.csv", KEEP | CELLS, 364, 4888)],
    "bccd/BCCD": [
        ("voc", "train", KEEP, 205, 2805), ("voc", "val", KEEP, 87, 1138), ("voc", "test", KEEP, 72, 945),
        ("voc", "trainval", KEEP, 292, 3943), ("voc", ".", KEEP, 364, 4888),
    ],
    "bccd_cells_cls": [("image_folder", "train", {}, 501, 501), ("image_folder", "val", {}, 167, 167),
                       ("image_folder", "test", {}, 105, 105)],
    "sign_digits_cls": [("image_folder", "Dataset", {}, 228, 228)],
    "cls_tree_mmpretrain": [("class_list", "ann.txt", LIST, 3, 3)],
    "udacity_faces": [
        ("keypoints_csv", "training_frames_keypoints.csv", {"schema": "face_68", "image_dir": "training"}, 79, 79),
        ("keypoints_csv", "test_frames_keypoints.csv", {"schema": "face_68", "image_dir": "test"}, 16, 16),
    ],
    "dlib_faces": [
        ("imglab", "training.xml", {}, 4, 18), ("imglab", "testing.xml", {}, 5, 25),
        ("imglab", "training_with_face_landmarks.xml", {}, 4, 18),
        ("imglab", "testing_with_face_landmarks.xml", {}, 5, 25),
    ],
    "mmpose_samples": [
        ("coco", "wflw/test_wflw.json", {"image_dir": "wflw"}, 2, 4),
        ("coco", "300w/test_300w.json", {"image_dir": "300w"}, 2, 2),
        ("coco", "cofw/test_cofw.json", {"image_dir": "cofw"}, 2, 2),
        ("coco", "300vw/anno_300vw.json", {"image_dir": "300vw"}, 3, 3),
        ("coco", "coco/test_coco.json", {"image_dir": "coco"}, 4, 14),
        ("pts", "300vw/*/annot/*.pts", {"image_dir": "../imgs"}, 4, 4),
    ],
    ".": [
        ("wflw", f"{FACES}/list_98pt_rect_attr.txt", {"image_dir": f"{MMPOSE}/wflw"}, 2, 4),
        ("retinaface", f"{FACES}/label_retinaface.txt", {"image_dir": f"{MMPOSE}/wflw"}, 2, 4),
        ("pts", f"{FACES}/300w_pts", {"image_dir": f"../../{MMPOSE}/300w"}, 2, 2),
    ],
    "widerface_mmdet/WIDERFace": [
        ("voc", ".", {"image_dir": "WIDER_train/0--Parade", "annotation_dir": "WIDER_train/Annotations"}, 1, 10),
    ],
    "retinaface_label_txt": [("retinaface", "label_excerpt.txt", KEEP, 2, 2)],
    "coco_small": [("coco", "annotations.json", {"image_dir": "images"}, 6, 36),
                   ("coco", "keypoints_annotations.json", {"image_dir": "images"}, 2, 10)],
    "voc_coco_mmdet/VOCdevkit/VOC2007": [("voc", "test", {}, 1, 2)],
    "voc_coco_mmdet/VOCdevkit/VOC2012": [("voc", "test", {}, 1, 1)],
    "labelme_json": [
        ("labelme", "bbox_detection/data_annotated", {"class_file": "bbox_detection/labels.txt"}, 3, 9),
        ("labelme", "classification/data_annotated", {}, 2, 2),
        ("labelme", "primitives", {}, 1, 3),
    ],
    f"{DATUMARO}/voc_dataset/voc_dataset1": [("voc", "aeroplane_train", {}, 1, 2)],
    f"{DATUMARO}/voc_dataset/voc_dataset2": [("voc", ".", KEEP, 5, 4)],
    f"{DATUMARO}/widerface_dataset": [
        ("widerface", "wider_face_split/wider_face_train_bbx_gt.txt", {"image_dir": "WIDER_train/images"}, 2, 3),
        ("widerface", "wider_face_split/wider_face_val_bbx_gt.txt", {"image_dir": "WIDER_val/images"}, 1, 3),
    ],
    f"{DATUMARO}/celeba_dataset/dataset": [
        ("celeba", split, {"image_dir": "Img/img_celeba", "aligned": False}, images, images)
        for split, images in ((".", 5), ("train", 2), ("val", 1), ("test", 2))
    ],
    f"{DATUMARO}/celeba_dataset/dataset_with_meta_file": [("celeba", ".", {"image_dir": "Img/img_celeba"}, 5, 5)],
    f"{DATUMARO}/vott_csv_dataset/dataset": [("keypoints_csv", "train-export.csv", VOTT, 2, 3),
                                             ("keypoints_csv", "test-export.csv", VOTT, 2, 2)],
    f"{DATUMARO}/vgg_face2_dataset": [
        ("keypoints_csv", "bb_landmark/loose_bb_train.csv", VGGFACE2 | {"image_dir": "train"}, 3, 3),
        ("keypoints_csv", "bb_landmark/loose_bb_test.csv", VGGFACE2 | {"image_dir": "test"}, 1, 1),
        ("keypoints_csv", "bb_landmark/loose_landmark_train.csv", {"schema": "face_5", "image_dir": "train"}, 3, 3),
        ("keypoints_csv", "bb_landmark/loose_landmark_test.csv", {"schema": "face_5", "image_dir": "test"}, 1, 1),
    ],
    f"{DATUMARO}/imagenet_dataset": [("image_folder", ".", KEEP, 3, 3)],
    f"{DATUMARO}/kaggle_dataset/image_csv": [("class_list", "ann.csv", CSV_LIST, 5, 5),
                                             ("class_list", "ann_wo_ext.csv", CSV_LIST, 5, 5)],
    f"{DATUMARO}/kaggle_dataset/image_txt": [("class_list", "ann.txt", {"image_dir": "images"}, 5, 5)],
}  # fmt: skip

# file -> the format that a user may take it for, and its name in the error
REFUSED = {
    "via_json/via_bbox.json": ("coco", "VIA JSON"),
    f"{DATUMARO}/cvat_dataset/for_images/export_task/train.xml": ("imglab", "CVAT XML"),
    f"{DATUMARO}/cvat_dataset/for_images/export_project/annotations.xml": ("imglab", "CVAT XML"),
    f"{DATUMARO}/labelme_dataset/Annotations/subset1/img1.xml": ("imglab", "old LabelMe XML"),
    f"{OPEN_IMAGES}/oidv6-train-annotations-bbox.csv": ("keypoints_csv", "Open Images CSV"),
    f"{OPEN_IMAGES}/oidv6-train-annotations-human-imagelabels.csv": ("class_list", "Open Images CSV"),
    f"{OPEN_IMAGES}/train-annotations-object-segmentation.csv": ("keypoints_csv", "Open Images CSV"),
    f"{OPEN_IMAGES}/oidv6-class-descriptions.csv": ("class_list", "Open Images CSV"),
    f"{OPEN_IMAGES}/image_ids_and_rotation.csv": ("class_list", "Open Images CSV"),
    "cls_tree_mmpretrain/ann.json": ("coco", "expected a COCO file with the keys images, annotations, categories"),
}

ELSEWHERE = {
    "nasty_images": "images without annotations: tests/images/test_shared_images.py",
    "yolo_mark": "tests of the YOLO reader",
    f"{DATUMARO}/yolo_dataset": "tests of the YOLO reader",
    f"{DATUMARO}/coco_dataset": "tests/annotations/formats/test_coco_real_data.py",
    f"{DATUMARO}/imagenet_txt_dataset": "tests/annotations/formats/test_class_list.py",
    FACES: "'.' above, since its images are in another folder",
}


@pytest.mark.parametrize("folder", READ)
def test_a_set_has_the_images_and_objects_of_its_readme(shared_data, folder):
    for format, name, options, images, objects in READ[folder]:
        quiet = {"use_cache": False}
        table = read_annotations(format, shared_data / folder, name, **quiet, **options)
        assert (table.num_images, table.num_objects) == (images, objects), (format, name)


@pytest.mark.parametrize("file", REFUSED)
def test_sets_of_other_formats_are_refused_by_name(shared_data, file):
    format, words = REFUSED[file]
    with pytest.raises(AnnotationError, match=words):
        read_annotations(format, shared_data, file, use_cache=False)


def test_every_shared_set_is_read_or_refused(shared_data):
    folders = [path for path in shared_data.iterdir() if path.is_dir() and path.name != DATUMARO]
    folders += [path for path in (shared_data / DATUMARO).iterdir() if path.is_dir()]
    listed = [f"{name}/" for name in (*READ, *REFUSED, *ELSEWHERE)]
    for folder in folders:
        name = f"{folder.relative_to(shared_data)}/"
        assert any(listed_name.startswith(name) for listed_name in listed), f"{name} is neither read nor refused"
