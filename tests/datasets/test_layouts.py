"""Finding format and layout: the layouts that people have, ambiguous folders, and what is opened on the way."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import subprocess
import sys

import pytest

import lit_loader
from lit_loader.annotations.layouts import find_layouts
from lit_loader.datasets import dataset_overrides, open_source
from lit_loader.errors import AnnotationError
from tests.support.extras import needs
from tests.support.text_sets import write_image

STAGES = {"train": 6, "val": 3, "test": 2}
NAMES = {"cat", "dog"}
XML = (
    "<annotation><filename>{name}</filename><size><width>60</width><height>50</height><depth>3</depth></size>"
    "<object><name>{label}</name><bndbox><xmin>5</xmin><ymin>6</ymin><xmax>25</xmax><ymax>30</ymax></bndbox></object>"
    "</annotation>"
)


def names_of(stage, count):
    return [f"{stage}_{i}.jpg" for i in range(count)]


def label_of(i):
    return ("cat", "dog")[i % 2]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def coco_text(names):
    images = [{"id": i, "file_name": name, "width": 60, "height": 50} for i, name in enumerate(names)]
    objects = [
        {"id": i, "image_id": i, "category_id": i % 2, "bbox": [5, 6, 20, 24], "area": 480, "iscrowd": 0}
        for i in range(len(names))
    ]
    categories = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    return json.dumps({"info": {}, "images": images, "annotations": objects, "categories": categories})


def write_split(root, stage, count, *, images, annotate):
    for i, name in enumerate(names_of(stage, count)):
        write_image(root / images / name)
        annotate(i, name)


def roboflow_coco(root):
    for stage, folder in (("train", "train"), ("val", "valid"), ("test", "test")):
        write_split(root, stage, STAGES[stage], images=folder, annotate=lambda i, name: None)
        write(root / folder / "_annotations.coco.json", coco_text(names_of(stage, STAGES[stage])))


def coco_2017(root):
    for stage in ("train", "val"):
        write_split(root, stage, STAGES[stage], images=f"{stage}2017", annotate=lambda i, name: None)
        text = coco_text(names_of(stage, STAGES[stage]))
        write(root / "annotations" / f"instances_{stage}2017.json", text)
        # These have no objects, so they are no other layout.
        write(root / "annotations" / f"captions_{stage}2017.json", text)


def roboflow_yolo(root):
    for stage, folder in (("train", "train"), ("val", "valid"), ("test", "test")):

        def annotate(i, name, folder=folder):
            write(root / folder / "labels" / f"{name[:-4]}.txt", f"{i % 2} 0.5 0.5 0.2 0.3\n")

        write_split(root, stage, STAGES[stage], images=f"{folder}/images", annotate=annotate)
    paths = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    write(root / "data.yaml", f"{paths}\nnc: 2\nnames: ['cat', 'dog']\n")


def ultralytics_lists(root):
    for stage in STAGES:

        def annotate(i, name):
            write(root / "labels" / f"{name[:-4]}.txt", f"{i % 2} 0.5 0.5 0.2 0.3\n")

        write_split(root, stage, STAGES[stage], images="images", annotate=annotate)
        write(root / f"{stage}.txt", "".join(f"./images/{name}\n" for name in names_of(stage, STAGES[stage])))
    lists = "".join(f"{stage}: {stage}.txt\n" for stage in STAGES)
    write(root / "animals.yaml", f"path: ../datasets/animals\n{lists}names:\n  0: cat\n  1: dog\n")


def yolo_folders(root):
    for stage in STAGES:

        def annotate(i, name, stage=stage):
            write(root / "labels" / stage / f"{name[:-4]}.txt", f"{i % 2} 0.5 0.5 0.2 0.3\n")

        write_split(root, stage, STAGES[stage], images=f"images/{stage}", annotate=annotate)
    write(root / "classes.txt", "cat\ndog\n")


def ultralytics_path(root):
    yolo_folders(root / "animals")
    splits = "".join(f"{stage}: images/{stage}\n" for stage in STAGES)
    write(root / "animals.yaml", f"path: animals\n{splits}names: [cat, dog]\n")


def voc_folders(root):
    for stage in STAGES:

        def annotate(i, name):
            write(root / "Annotations" / f"{name[:-4]}.xml", XML.format(name=name, label=label_of(i)))

        write_split(root, stage, STAGES[stage], images="JPEGImages", annotate=annotate)
        ids = [name[:-4] for name in names_of(stage, STAGES[stage])]
        write(root / "ImageSets" / "Main" / f"{stage}.txt", "\n".join(ids))


def vocdevkit(root):
    voc_folders(root / "VOCdevkit" / "VOC2012")


def roboflow_voc(root):
    for stage, folder in (("train", "train"), ("val", "valid"), ("test", "test")):

        def annotate(i, name, folder=folder):
            write(root / folder / f"{name[:-4]}.xml", XML.format(name=name, label=label_of(i)))

        write_split(root, stage, STAGES[stage], images=folder, annotate=annotate)


def class_folders(root):
    for stage in STAGES:
        for i, name in enumerate(names_of(stage, STAGES[stage])):
            write_image(root / stage / label_of(i) / name)


def csv_tables(root):
    for stage in STAGES:
        write_split(root, stage, STAGES[stage], images="images", annotate=lambda i, name: None)
        rows = [f"{name},60,50,{label_of(i)},5,6,25,30" for i, name in enumerate(names_of(stage, STAGES[stage]))]
        write(root / f"{stage}.csv", "\n".join(["filename,width,height,class,xmin,ymin,xmax,ymax", *rows]))


def txt_lists(root):
    for stage in STAGES:
        write_split(root, stage, STAGES[stage], images="images", annotate=lambda i, name: None)
        rows = [f"images/{name} {label_of(i)}" for i, name in enumerate(names_of(stage, STAGES[stage]))]
        write(root / f"{stage}.txt", "\n".join(["path label", *rows]))


def labelme_folders(root):
    for stage in STAGES:

        def annotate(i, name, stage=stage):
            shape = {"label": label_of(i), "points": [[5, 6], [25, 30]], "shape_type": "rectangle", "flags": {}}
            content = {"version": "5.0", "flags": {}, "shapes": [{**shape, "group_id": None}], "imagePath": name}
            size = {"imageData": None, "imageHeight": 50, "imageWidth": 60}
            write(root / stage / f"{name[:-4]}.json", json.dumps({**content, **size}))

        write_split(root, stage, STAGES[stage], images=stage, annotate=annotate)


LAYOUTS = {
    "coco": roboflow_coco,
    "coco-2017": coco_2017,
    "yolo": roboflow_yolo,
    "yolo-lists": ultralytics_lists,
    "yolo-folders": yolo_folders,
    "yolo-path": ultralytics_path,
    "voc": voc_folders,
    "voc-devkit": vocdevkit,
    "voc-folders": roboflow_voc,
    "image_folder": class_folders,
    "keypoints_csv": csv_tables,
    "class_list": txt_lists,
    "labelme": labelme_folders,
}


def counts(source):
    return {stage: [table.num_images for table in source.tables(stage)] for stage in STAGES}


@pytest.fixture
def settings(tmp_path):
    return {"cache_dir": str(tmp_path / "cache"), "progress": False}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_with_its_own_splits_and_classes(name, tmp_path, settings):
    LAYOUTS[name](tmp_path / "set")
    source = open_source(tmp_path / "set", **settings)
    assert source.format == name.partition("-")[0]
    # COCO 2017 has no labelled test images, so it is tested on the validation split.
    expected = {**STAGES, "test": STAGES["val"]} if name == "coco-2017" else STAGES
    assert counts(source) == {stage: [count] for stage, count in expected.items()}
    (table,) = source.tables("train")
    assert set(table.class_names) == NAMES
    assert table.num_objects == STAGES["train"]


@needs("hydra")
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_printed_overrides_compose_the_same_source(name, tmp_path, settings, caplog):
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    root = tmp_path / "a 'set' of [mine]"
    LAYOUTS[name](root)
    with caplog.at_level(logging.INFO):
        source = open_source(root, **settings)
    assert f"{root}: {source.format} (" in caplog.text
    words = shlex.split(caplog.text.partition("as the only data set: ")[2])
    with initialize_config_module("lit_loader.conf", version_base="1.3"):
        config = compose("train", overrides=words)
    assert instantiate(config.dataset, _convert_="all") == source


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_image_is_opened_and_no_file_twice(name, tmp_path, monkeypatch):
    LAYOUTS[name](tmp_path / "set")
    opened = []
    open_file = io.open

    def record(path, *arguments, **keywords):
        opened.append(str(path))
        return open_file(path, *arguments, **keywords)

    monkeypatch.setattr("builtins.open", record)
    monkeypatch.setattr(io, "open", record)  # Path.open
    assert find_layouts(tmp_path / "set")
    inside = [path for path in opened if path.startswith(str(tmp_path))]
    assert bool(inside) is (name != "image_folder")
    assert not [path for path in inside if path.endswith(".jpg")]
    # The lists of a split and the data file say which images belong to it; annotations of single images are not read.
    assert len(inside) == len(set(inside))
    assert len(inside) <= 16


_AUDITED = """
import json, pathlib, sys
from lit_loader.annotations.layouts import find_layouts

def bytes_read():
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])

top = pathlib.Path(sys.argv[1])
opened = []
# Unlike a patched open(), the hook also sees os.open and code in C.
sys.addaudithook(lambda event, arguments: event == "open" and opened.append(str(arguments[0])))
sets = {}
for attempt in range(2):  # the first search imports the readers, which are files, too
    for root in sorted(top.iterdir()):
        opened.clear()
        start = bytes_read()
        layouts = [layout.name for layout in find_layouts(root)]
        num_bytes = bytes_read() - start
        sets[root.name] = {
            "layouts": layouts, "bytes": num_bytes, "opened": [path for path in opened if path.startswith(str(root))]
        }
print(json.dumps(sets))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system does not count the bytes of a process")
def test_at_most_one_annotation_file_is_read_in_full_and_no_image_is_opened(tmp_path):
    padding = 1 << 19
    for name, write_set in LAYOUTS.items():
        write_set(tmp_path / name)
        # Every annotation file is longer than the start that a search reads.
        for ending in ("*.json", "*.xml", "*.csv"):
            for path in (tmp_path / name).rglob(ending):
                with path.open("a") as file:
                    file.write("\n" * padding)
    result = subprocess.run([sys.executable, "-c", _AUDITED, tmp_path], capture_output=True, text=True, check=True)
    sets = json.loads(result.stdout)
    assert sets.keys() == LAYOUTS.keys()
    for name, search in sets.items():
        assert search["layouts"], name
        opened = search["opened"]
        assert not [path for path in opened if path.endswith(".jpg")], name
        assert len(set(opened)) <= 16, name
        # A reader reads the data file of YOLO and the lists of splits again for each stage.
        annotations = [path for path in opened if path.endswith((".json", ".xml", ".csv"))]
        assert len(annotations) == len(set(annotations)), name
        # 64 KiB of each file, one whole file, and the reading of the counter itself.
        assert search["bytes"] < len(opened) * (1 << 16) + padding + (1 << 17), name


def test_only_the_start_of_a_file_is_read(tmp_path):
    """The keys of COCO behind the first 64 KiB are not found."""
    write_image(tmp_path / "train_0.jpg")
    text = coco_text(["train_0.jpg"])
    write(tmp_path / "train.json", text)
    assert [layout.format for layout in find_layouts(tmp_path)] == ["coco"]
    write(tmp_path / "train.json", f'{{"note": "{"x" * 70_000}", {text[1:]}')
    assert find_layouts(tmp_path) == []


def test_images_are_held_out_where_there_is_no_split(tmp_path, settings, caplog):
    for label in ("cat", "dog"):
        for i in range(20):
            write_image(tmp_path / "set" / label / f"{i}.jpg", size=(40 + i, 50 if label == "cat" else 60))
    with caplog.at_level(logging.INFO):
        source = open_source(tmp_path / "set", val_fraction=0.2, test_fraction=0.1, **settings)
    assert counts(source) == {"train": [28], "val": [8], "test": [4]}
    assert "no split for val: 20 % of the training images are held out" in caplog.text
    assert counts(open_source(tmp_path / "set", **settings)) == {"train": [32], "val": [4], "test": [4]}


def test_several_layouts_are_named_with_the_option_that_chooses(tmp_path, settings):
    coco_2017(tmp_path)
    for stage in ("train", "val"):
        text = coco_text(names_of(stage, STAGES[stage] - 1))
        write(tmp_path / "annotations" / f"person_keypoints_{stage}2017.json", text)
    with pytest.raises(
        AnnotationError, match=r"(?s)coco:annotations/instances_2017: .*coco:annotations/person_.*layout="
    ):
        open_source(tmp_path, **settings)
    source = open_source(tmp_path, layout="coco:annotations/person_keypoints_2017", **settings)
    assert counts(source)["train"] == [STAGES["train"] - 1]
    with pytest.raises(AnnotationError, match=r"(?s)layout='voc' is none of those that fit.*instances"):
        open_source(tmp_path, layout="voc", **settings)


def test_a_table_beside_class_folders_is_a_second_layout(tmp_path, settings):
    class_folders(tmp_path)
    write(tmp_path / "train.csv", "path,label\ntrain/cat/train_0.jpg,cat\ntrain/dog/train_1.jpg,dog\n")
    assert [layout.name for layout in find_layouts(tmp_path)] == ["class_list", "image_folder"]


def test_a_stage_with_one_class_is_a_stage(tmp_path):
    class_folders(tmp_path)
    for image in (tmp_path / "val" / "dog").iterdir():
        image.unlink()
    (tmp_path / "val" / "dog").rmdir()
    (layout,) = find_layouts(tmp_path)
    assert layout.stages == {stage: stage for stage in STAGES}


@pytest.mark.parametrize(
    ("folders", "layouts"),
    [
        (["train", "train_old", "valid"], [{"train": "train", "val": "valid"}]),
        (["train1", "train2", "val"], [{"train": "train1", "val": "val"}, {"train": "train2", "val": "val"}]),
        (["train", "val", "test-dev"], [{"train": "train", "val": "val", "test": "test-dev"}]),
    ],
)
def test_folders_of_one_stage_are_never_mixed_or_chosen_silently(tmp_path, folders, layouts):
    for folder in folders:
        for i in range(2):
            write(tmp_path / folder / "labels" / f"{folder}{i}.txt", f"{i} 0.5 0.5 0.2 0.3")
            write_image(tmp_path / folder / "images" / f"{folder}{i}.jpg")
    write(tmp_path / "classes.txt", "cat\ndog\n")
    proposals = find_layouts(tmp_path)
    assert [layout.stages for layout in proposals] == layouts
    assert ("not used: train_old" in proposals[0].reason) == ("train_old" in folders)


def test_labelme_folders_of_stages_do_not_train_on_other_stages(tmp_path):
    labelme_folders(tmp_path)
    (tmp_path / "train").rename(tmp_path / "train_a")
    labelme_folders(tmp_path)
    (layout,) = find_layouts(tmp_path)
    assert layout.stages == {stage: stage for stage in STAGES}
    assert "not used: train_a" in layout.reason


@pytest.mark.parametrize(
    ("folders", "files"),
    [
        (["images_part_1", "images_part_2"], []),
        (["trainA", "trainB", "testA"], []),
        (["image", "mask"], []),
        (["images/cam", "images/drone"], ["annotations.xml"]),
        (["cat", "dog"], ["metadata.json"]),
    ],
)
def test_folders_that_are_no_classes_are_refused(tmp_path, folders, files):
    for folder in folders:
        write_image(tmp_path / folder / "a.jpg")
    for file in files:
        write(tmp_path / file, "<annotations><version>1.1</version></annotations>")
    assert find_layouts(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "image\na.jpg\nb.jpg\n",
        "image,age,gender,height,weight\na.jpg,30,1,180,70\n",
        "image,age\na.jpg,30\n",
        "image,score\na.jpg,0.3\n",
    ],
)
def test_tables_whose_columns_are_no_annotations_are_refused(tmp_path, text):
    for name in ("a.jpg", "b.jpg"):
        write_image(tmp_path / name)
    write(tmp_path / "test.csv", text)
    assert find_layouts(tmp_path) == []


def test_a_list_is_not_its_own_class_file(tmp_path):
    write_image(tmp_path / "0.jpg")
    write(tmp_path / "labels.txt", "0.jpg 0\n0.jpg 1\n")
    (layout,) = find_layouts(tmp_path)
    assert (layout.format, layout.options) == ("class_list", {})


def test_the_lists_of_voc_are_matched_by_their_stage(tmp_path):
    voc_folders(tmp_path)
    (tmp_path / "ImageSets" / "Main" / "val.txt").rename(tmp_path / "ImageSets" / "Main" / "valid.txt")
    (layout,) = find_layouts(tmp_path)
    assert layout.stages == {"train": "train", "val": "valid", "test": "test"}


def test_a_missing_first_image_does_not_hide_the_folder_of_the_others(tmp_path):
    coco_2017(tmp_path)
    (tmp_path / "train2017" / "train_0.jpg").unlink()
    (layout,) = find_layouts(tmp_path)
    assert layout.stage_options == {stage: {"image_dir": f"{stage}2017"} for stage in ("train", "val")}


def test_labels_of_yolo_are_found_behind_empty_ones_and_lists_of_classes(tmp_path):
    yolo_folders(tmp_path)
    write(tmp_path / "labels" / "classes.txt", "cat\ndog\n")
    for path in sorted((tmp_path / "labels").glob("*/*.txt"))[:-1]:
        path.write_text("")
    assert [layout.format for layout in find_layouts(tmp_path)] == ["yolo"]


def test_the_reason_of_a_refused_layout_is_in_the_error(tmp_path):
    write(tmp_path / "data.yaml", "train: /kaggle/input/set/images\nnames: [cat]\n")
    with pytest.raises(AnnotationError, match=r"no layout .*not yolo \(data.yaml names .*: .*/kaggle/input"):
        open_source(tmp_path)


def test_an_unreadable_folder_does_not_end_the_search(tmp_path, monkeypatch):
    roboflow_coco(tmp_path)
    (tmp_path / "lost+found").mkdir()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [layout.format for layout in find_layouts(tmp_path)] == ["coco"]


def test_folders_of_stages_are_no_classes(tmp_path):
    for stage in STAGES:
        for name in names_of(stage, 2):
            write_image(tmp_path / stage / name)
    assert find_layouts(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_via_settings": {}, "_via_img_metadata": {}}', "VIA JSON: export it from VIA as COCO$"),
        ("{}", "no layout of a known format fits; it contains notes.json; name the format"),
        ('[{"id": 1, "annotations": [{"completed_by": 1}]}]', "this may be Label Studio JSON: export it"),
    ],
)
def test_a_folder_without_a_layout_is_refused_with_the_format_it_may_have(text, message, tmp_path):
    write(tmp_path / "notes.json", text)
    with pytest.raises(AnnotationError, match=message):
        open_source(tmp_path)


def test_paths_out_of_the_root_find_no_images(tmp_path, settings):
    write_image(tmp_path / "outside" / "train_0.jpg")
    write(tmp_path / "set" / "train.json", coco_text(["../outside/train_0.jpg"]))
    write(tmp_path / "set" / "train.csv", "filename,class\n../outside/train_0.jpg,cat\n")
    (layout,) = find_layouts(tmp_path / "set")
    assert layout.options == {}
    with pytest.raises(AnnotationError, match=r"'\.\.'"):
        open_source(tmp_path / "set", **settings).tables("train")


@needs("hydra")
def test_names_are_text_in_the_printed_settings(tmp_path, settings):
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    root = tmp_path / "${oc.env:HOME}"
    for stage in ("train", "val"):
        write_split(root, stage, 2, images="im${x}", annotate=lambda i, name: None)
        write(root / f"{stage}.json", coco_text(names_of(stage, 2)))
    source = open_source(root, **settings)
    assert source.options == {"image_dir": "im${x}"}
    assert counts(source)["train"] == [2]
    with initialize_config_module("lit_loader.conf", version_base="1.3"):
        config = compose("train", overrides=dataset_overrides(source))
    assert instantiate(config.dataset, _convert_="all") == source


def test_arguments_override_what_was_found(tmp_path, settings):
    roboflow_coco(tmp_path)
    settings |= {"class_names": ["dog", "cat"], "options": {"masks": False}, "policy": {"missing_image": "drop"}}
    source = lit_loader.open_source(tmp_path, test="valid/_annotations.coco.json", **settings)
    assert source.tables("train")[0].class_names == ("dog", "cat")
    assert source.options == {"masks": False}
    assert source.policy == {"missing_image": "drop"}


def test_every_other_setting_is_passed_on(tmp_path, settings):
    roboflow_coco(tmp_path)
    names = dict.fromkeys(("train", "val", "test", "predict"), "train/_annotations.coco.json")
    unaffected = {"group_pattern": "(.*)_", "seed": 3, "num_workers": 0, "stage_options": {"val": {"masks": False}}}
    source = open_source(tmp_path, **names, **unaffected, **settings)
    assert {name: getattr(source, name) for name in names} == names
    assert (source.group_pattern, source.seed, source.num_workers) == ("(.*)_", 3, 0)
    assert (source.cache_dir, source.progress) == (settings["cache_dir"], False)
    assert source.stage_options["val"] == {"masks": False}


def test_options_of_a_stage_are_added_to_those_that_were_found(tmp_path, settings):
    roboflow_coco(tmp_path)
    source = open_source(tmp_path, stage_options={"val": {"masks": False}}, **settings)
    assert source.stage_options["val"] == {"image_dir": "valid", "masks": False}
    assert source.stage_options["train"] == {"image_dir": "train"}
    with pytest.raises(ValueError, match=r"stage_options names .*vall"):
        open_source(tmp_path, stage_options={"vall": {}}, **settings)


def test_class_folders_beside_unread_annotations_are_refused_with_the_remedy(tmp_path):
    class_folders(tmp_path)
    write(tmp_path / "metadata.csv", "id,age\n1,2\n")
    with pytest.raises(AnnotationError, match=r"metadata\.csv may be annotations; choose dataset=image_folder"):
        open_source(tmp_path)


def test_real_sets_are_found_or_refused_with_the_option(shared_data, settings):
    layouts_by_name = {
        "bccd_cells_cls": ["image_folder"],
        "sign_digits_cls": ["Dataset/image_folder"],
        "udacity_faces": ["keypoints_csv"],
        "yolo_mark": ["yolo"],
        "bccd": ["BCCD/voc", "keypoints_csv"],
        "coco_small": ["coco:annotations", "coco:keypoints_annotations"],
        "derived_face_txt": ["pts", "retinaface", "wflw"],
        "dlib_faces": ["imglab", "imglab:with_face_landmarks"],
        "labelme_json": ["labelme"],
        "via_json": [],
        "formats_datumaro/cvat_dataset": [],
        "formats_datumaro/widerface_dataset": ["widerface"],
        "formats_datumaro/vott_csv_dataset": ["keypoints_csv"],
        "formats_datumaro/celeba_dataset": ["dataset/celeba", "dataset_with_meta_file/celeba"],
    }
    for name, layouts in layouts_by_name.items():
        assert [layout.name for layout in find_layouts(shared_data / name)] == layouts, name
    udacity = open_source(shared_data / "udacity_faces", **settings)
    assert counts(udacity) == {"train": [71], "val": [8], "test": [16]}
    assert len(udacity.tables("train")[0].keypoint_names) == 68
