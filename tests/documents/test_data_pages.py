"""The pages of docs/data/ agree with the formats, the rules and the sources of the code."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from lit_loader.annotations.formats import ReadPolicy, read_annotations, readers, writers
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS
from lit_loader.app.composition import compose_config
from lit_loader.datasets import FormatSource, VocSource, draw_shapes, open_source
from lit_loader.errors import AnnotationError
from lit_loader.inspection.kinds import KINDS, READER_KINDS
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documents import ALL, PAGES, README, ROOT, blocks, commands
from tests.support.made_sets import MAKERS, split_in_two
from tests.support.text_sets import write_image

FORMATS = PAGES["data/formats"]
SOURCES = re.findall(r"^\|[^|]*\| `((?:Voc|Format)Source\(.*?\))`", FORMATS, re.MULTILINE)


def table_rows(page, heading):
    """Return the cells of each row of the first table below a heading of a page, without the header."""
    lines = page[page.index(f"\n{heading}\n") :].splitlines()[2:]
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def test_table_of_formats_is_complete():
    rows = table_rows(FORMATS, "## Formats that are read and written")
    written = {row[0].strip("` "): row[3].strip("| ") == "yes" for row in rows}
    assert written == {name: name in writers() for name in readers()}


def test_readme_and_pages_give_the_number_of_formats():
    assert f"{len(readers())} formats" in README
    for name in ("data/index", "data/formats", "data/unified-xml"):
        assert f"{len(readers())} formats" in PAGES[name].replace("[", ""), name


def test_actions_of_the_read_policy_are_documented():
    documented = {}
    for problem, default, alternatives in table_rows(FORMATS, "## Problems in the files"):
        name = re.match(r"`(\w+)`", problem.strip("| "))[1]
        documented[name] = [default.split()[0].strip("`"), set(re.findall(r"`(\w+)`", alternatives))]
    defaults = vars(ReadPolicy())
    hints = get_type_hints(ReadPolicy)
    assert documented == {name: [default, set(get_args(hints[name])) - {default}] for name, default in defaults.items()}


def test_every_rule_of_a_check_is_documented():
    severities = {}
    for names, severity, _ in table_rows(PAGES["data/check"], "## Rules"):
        kinds = re.findall(r"`(\w+)`", names)
        words = severity.split(", ")
        severities |= dict(zip(kinds, words if len(words) == len(kinds) else words * len(kinds), strict=True))
    assert severities == {name: KINDS[name].severity for name in KINDS.keys() - READER_KINDS.keys()}


def test_known_keypoint_schemas_are_documented():
    rows = table_rows(PAGES["data/keypoints"], "## Known schemas")
    pairs = {row[0].strip("|` "): int(row[2]) for row in rows}
    assert pairs == {name: len(schema.flip_pairs) for name, schema in KEYPOINT_SCHEMAS.items()}


def test_xml_example_is_in_the_unified_format(tmp_path):
    (xml,) = blocks(PAGES["data/unified-xml"], "xml")
    for folder in ("Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir()
    (tmp_path / "Annotations" / "portrait.xml").write_text(xml)
    (tmp_path / "JPEGImages" / "portrait.jpg").touch()
    table = read_annotations("voc", tmp_path, use_cache=False, progress=False)
    assert table.keypoint_names == ("left eye", "right eye")
    assert table.flip_pairs == ((0, 1),)
    assert table.visibility.tolist() == [[2, 1]]
    assert table.attributes["expression"].names == ("calm",)
    assert len(table.report) == 0


def test_table_of_layouts_has_five_sources():
    assert len(SOURCES) == 5


@pytest.mark.parametrize("code", SOURCES)
def test_sources_of_the_table_read_their_layouts(code, tmp_path):
    source = eval(code, {"VocSource": VocSource, "FormatSource": FormatSource})
    if source.root.endswith("mine"):
        return  # it differs from COCO only in its names
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[source.format](root, split_in_two(tmp_path))
    source = replace(source, root=root, cache_dir=str(tmp_path / "cache"), progress=False)
    assert all(source.tables(stage)[0].num_images > 0 for stage in ("train", "val"))


@pytest.fixture(scope="module")
def voc2012(tmp_path_factory):
    """A folder with the splits of VOC2012, which has no test.txt."""
    folder = tmp_path_factory.mktemp("voc") / "VOC2012"
    splits = {"train": 4, "val": 2, "test": 2}
    root = draw_shapes(folder, num_images=splits, class_shares=(0.5, 0.3, 0.2), progress=False)
    (root / "ImageSets/Main/test.txt").unlink()
    return root


def test_documented_sources_of_voc2012_read_its_splits(voc2012, tmp_path):
    codes = re.findall(r"(VocSource\([^()]*VOC2012[^()]*\))", ALL)
    command_words = [words for words in commands(ALL, "lit-loader train") if any("VOC2012" in word for word in words)]
    assert codes
    assert command_words
    sources = [eval(code, {"VocSource": VocSource}) for code in codes]
    configs = [compose_config(ROOT / "conf", "train", words) for words in command_words]
    sources += [instantiate(cfg.dataset, _convert_="all") for cfg in configs]
    for source in sources:
        source = replace(source, root=str(voc2012), cache_dir=str(tmp_path), progress=False)
        source.prepare()
        assert [table.num_images for table in source.tables("train")] == [4]


def test_several_layouts_are_listed_as_documented(tmp_path):
    MAKERS["coco"](tmp_path, split_in_two(tmp_path / "source"))
    annotations = tmp_path / "annotations"
    (annotations / "reviewed_train2017.json").write_bytes((annotations / "instances_train2017.json").read_bytes())
    with pytest.raises(AnnotationError) as error:
        open_source(tmp_path)
    (documented,) = (text for text in blocks(PAGES["data/find-format"], "text") if "several layouts" in text)
    assert str(error.value).replace(str(tmp_path), "/home/me/set") == documented.strip()


def test_oriented_task_of_the_page_passes_plain_tensors(tmp_path, monkeypatch):
    (code,) = (code for code in blocks(PAGES["data/oriented-boxes"], "python") if code.startswith("# my_oriented.py"))
    (tmp_path / "my_oriented.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_oriented", raising=False)
    my_oriented = importlib.import_module("my_oriented")

    class SumOfBoxes(nn.Module):
        def forward(self, images, boxes, labels):
            assert all(type(item) is torch.Tensor for item in boxes)
            return sum(item.sum() for item in boxes)

    task = my_oriented.OrientedTask(SumOfBoxes())
    targets = [{"boxes": torch.ones(2, 5), "labels": torch.ones(2, dtype=torch.int64)}]
    assert task.training_step(([torch.zeros(3, 8, 8)], targets), 0) == 10


ROW = "0 0.5 0.5 0.2 0.2\n"
XML = (
    "<annotation><filename>a.jpg</filename><size><width>60</width><height>50</height><depth>3</depth></size>"
    "<object><name>cat</name><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax><ymax>24</ymax></bndbox></object>"
    "</annotation>"
)


def coco_text(file_name):
    return json.dumps(
        {
            "images": [{"id": 0, "file_name": file_name, "width": 60, "height": 50}],
            "annotations": [{"id": 0, "image_id": 0, "category_id": 1, "bbox": [3, 4, 17, 20], "iscrowd": 0}],
            "categories": [{"id": 1, "name": "cat"}],
        }
    )


# Paths of the image and of the other files of an export, which are found as the format.
EXPORTS = {
    "CVAT COCO 1.0": ("coco", "images/a.jpg", {"annotations/instances_default.json": coco_text("a.jpg")}),
    "CVAT Pascal VOC 1.1": (
        "voc",
        "JPEGImages/a.jpg",
        {"Annotations/a.xml": XML, "ImageSets/Main/default.txt": "a\n", "labelmap.txt": "# label\ncat:1,2,3::\n"},
    ),
    "CVAT YOLO 1.1": (
        "yolo",
        "obj_train_data/a.jpg",
        {
            "obj_train_data/a.txt": ROW,
            "obj.names": "cat\n",
            "obj.data": "classes = 1\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n",
            "train.txt": "data/obj_train_data/a.jpg\n",
        },
    ),
    "CVAT Ultralytics YOLO": (
        "yolo",
        "images/train/a.jpg",
        {
            "labels/train/a.txt": ROW,
            "data.yaml": "names:\n  0: cat\npath: .\ntrain: train.txt\n",
            "train.txt": "data/images/train/a.jpg\n",
        },
    ),
    "Label Studio COCO": ("coco", "images/a.jpg", {"result.json": coco_text("images/a.jpg")}),
    "Label Studio YOLO": (
        "yolo",
        "images/a.jpg",
        {"labels/a.txt": ROW, "classes.txt": "cat\n", "notes.json": '{"categories": [{"id": 0, "name": "cat"}]}'},
    ),
    "Label Studio Pascal VOC": ("voc", "images/a.jpg", {"Annotations/a.xml": XML}),
    "labelImg Pascal VOC": ("voc", "a.jpg", {"a.xml": XML}),
    "VoTT CSV": (
        "keypoints_csv",
        "a.jpg",
        {"vott.csv": '"image","xmin","ymin","xmax","ymax","label"\na.jpg,3,4,20,24,cat\n'},
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_labelling_tools_are_found(name, tmp_path):
    format, image, files = EXPORTS[name]
    write_image(tmp_path / "set" / image)
    for path, text in files.items():
        (tmp_path / "set" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / path).write_text(text)
    settings = {"val_fraction": 0.0, "test_fraction": 0.0, "cache_dir": str(tmp_path), "progress": False}
    source = open_source(tmp_path / "set", **settings)
    (table,) = source.tables("train")
    assert (source.format, table.num_images, table.num_objects, table.class_names) == (format, 1, 1, ("cat",))
