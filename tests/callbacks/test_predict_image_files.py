"""Predictions on image files without annotations: names of files and classes, and pictures, of every task."""

from __future__ import annotations

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from lit_loader import (
    AnnotationTable,
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    ScheduledTransform,
)
from lit_loader.callbacks import PredictionWriter
from lit_loader.datasets import ImageFilesSource
from lit_loader.recipes import ClassificationTask, DetectionTask, LandmarkTask, MultiTask
from tests.support.drawn_set import DrawnSource
from tests.support.tiny_trainer import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
PATHS = ["a.png", "sub/b.png", "sub/c.jpg"]
CLASSES = ["cat", "dog"]


@pytest.fixture
def folder(tmp_path):
    for number, path in enumerate(PATHS):
        file = tmp_path / "images" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + 8 * number, 32), (60 * number, 90, 120)).save(file)
    return tmp_path / "images"


def predict(tmp_path, folder, datamodule_type, task, *, object_class=None, **settings):
    """Predict with a task of random weights; return the file and the folder of pictures."""
    source = ImageFilesSource(folder, object_class=object_class, progress=False)
    writer = PredictionWriter(folder=tmp_path / "out", num_pictures=2, min_picture_score=0.0, **settings)
    trainer_of(tmp_path, writer).predict(task, datamodule_type(source), return_predictions=False)
    return writer.paths


def pictures_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))


class Boxes(torch.nn.Module):
    """Detects one box of the second class in each image."""

    def forward(self, images, targets=None):
        boxes = torch.tensor([[1.0, 2.0, 21.0, 22.0]])
        return [{"boxes": boxes, "labels": torch.tensor([2]), "scores": torch.tensor([0.75])} for _ in images]


@pytest.mark.parametrize("format", ["coco", "csv", "voc", "keypoints_txt"])
def test_every_format_names_the_files_and_the_classes_of_the_model(tmp_path, folder, format):
    task = DetectionTask(lambda num_classes: Boxes(), class_names=CLASSES)
    path, pictures = predict(tmp_path, folder, DetectionDataModule, task, format=format)
    if format == "coco":
        results = json.loads(path.read_text())
        assert [result["file_name"] for result in results] == PATHS
        assert {result["category_name"] for result in results} == {"dog"}
        assert [result["image_id"] for result in results] == [1, 2, 3]
    elif format == "voc":
        texts = [file.read_text() for file in sorted((path / "Annotations").rglob("*.xml"))]
        assert all("<name>dog</name>" in text for text in texts)
        assert [name.rpartition("/")[2] in text for name, text in zip(PATHS, texts, strict=True)] == [True] * 3
    else:
        lines = [line for line in path.read_text().splitlines() if "dog" in line]
        assert [name in line for name, line in zip(PATHS, lines, strict=True)] == [True] * 3
    assert pictures_in(pictures) == ["a.png.jpg", "sub/b.png.jpg"]
    with Image.open(pictures / "a.png.jpg") as picture:
        assert picture.size == (40 * 25, 32 * 25)


def checkpoint_of(tmp_path, category_ids):
    """A checkpoint that a task writes while it trains on a set with these ids of its two classes."""
    table = AnnotationTable(
        root=".",
        image_paths=["a.png"],
        widths=[9],
        heights=[9],
        class_names=CLASSES,
        category_ids=category_ids,
        offsets=[0, 0],
        boxes=np.zeros((0, 4)),
        labels=[],
    )
    task = DetectionTask(lambda num_classes: Boxes(), class_names=CLASSES)
    task.trainer = trainer_of(tmp_path)
    task.trainer.datamodule = DetectionDataModule(DrawnSource(train=table))
    task.on_train_start()
    checkpoint = {"state_dict": {}}
    task.on_save_checkpoint(checkpoint)
    return checkpoint


DAMAGED_RECORDS = [
    [1, 2],
    {"cat": True, "dog": 2},
    {"cat": 2, "dog": 2},
    {"cat": 1, "dog": -2},
    {"cat": 1, "dog": None},
]


@pytest.mark.parametrize(("category_ids", "expected"), [([44, 31], 31), (None, 2)])
def test_category_ids_are_those_of_the_training_data(tmp_path, folder, category_ids, expected):
    checkpoint = checkpoint_of(tmp_path, category_ids)
    task = DetectionTask(lambda num_classes: Boxes(), class_names=CLASSES)
    task.on_load_checkpoint(checkpoint)
    path, _ = predict(tmp_path, folder, DetectionDataModule, task)
    results = [(result["category_id"], result["category_name"]) for result in json.loads(path.read_text())]
    assert results == [(expected, "dog")] * 3
    # A checkpoint of the loaded task, saved without its data, keeps them.
    loaded = {}
    task.on_save_checkpoint(loaded)
    assert checkpoint == {"state_dict": {}, **loaded}


@pytest.mark.parametrize("record", DAMAGED_RECORDS, ids=str)
def test_damaged_record_of_category_ids_is_ignored_with_a_warning(tmp_path, caplog, record):
    (key,) = checkpoint_of(tmp_path, None).keys() - {"state_dict"}
    task = DetectionTask(lambda num_classes: Boxes(), class_names=CLASSES)
    task.on_load_checkpoint({"state_dict": {}, key: record})
    assert task.category_ids == {}
    assert "record of category ids is damaged" in caplog.text


def test_labels_of_whole_images_are_rows_of_a_table(tmp_path, folder):
    task = ClassificationTask("classifier_small", class_names=CLASSES)
    path, pictures = predict(tmp_path, folder, ClassificationDataModule, task)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == PATHS
    assert {row["label"] for row in rows} <= set(CLASSES)
    assert len(pictures_in(pictures)) == 2


@pytest.mark.parametrize("class_names", [None, CLASSES])
def test_points_belong_to_an_object_that_fills_the_image(tmp_path, folder, class_names):
    task = LandmarkTask("heatmaps_small", keypoint_names=["eye", "nose"], class_names=class_names)
    path, pictures = predict(tmp_path, folder, LandmarkDataModule, task, object_class="face")
    results = json.loads(path.read_text())
    assert [result["file_name"] for result in results] == PATHS
    assert [result["bbox"] for result in results] == [[0, 0, 40 + 8 * number, 32] for number in range(3)]
    assert {len(result["keypoints"]) for result in results} == {6}
    names = {result["category_name"] for result in results}
    assert names == {"face"} if class_names is None else names <= set(CLASSES)
    assert len(pictures_in(pictures)) == 2


def test_multi_task_predictions_have_the_names_of_the_model(tmp_path, folder):
    attributes = {"finish": ["plain", "dotted"]}
    task = MultiTask("fcos_small", class_names=CLASSES, keypoint_names=["eye"], attributes=attributes)
    path, pictures = predict(tmp_path, folder, MultiTaskDataModule, task, format="csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["path"] for row in rows} <= set(PATHS)
    assert {row["finish"] for row in rows} <= {"plain", "dotted"}
    assert len(pictures_in(pictures)) == 2


def test_format_that_cannot_hold_the_task_is_refused_before_a_batch(tmp_path, folder):
    task = ClassificationTask("classifier_small", class_names=CLASSES)
    (folder / "a.png").write_bytes(b"no image")  # it would be the first error of the first batch
    with pytest.raises(ValueError, match=r"format='voc' holds objects.*pass format='csv'"):
        predict(tmp_path, folder, ClassificationDataModule, task, format="voc")


def test_predictions_of_scheduled_transforms_are_in_pixels_of_the_files(tmp_path, folder):
    extra = ScheduledTransform(v2.RGB(), epochs=[0, 1])
    transforms = {"size": {"points": {0: 32, 4: 64}, "step": 32}, "extra_after": [extra]}
    task = DetectionTask(lambda num_classes: Boxes(), class_names=CLASSES)
    make = partial(DetectionDataModule, predict_transforms=transforms)
    path, _ = predict(tmp_path, folder, make, task, format="coco")
    # The last size, 64, is twice as large as the files.
    assert {tuple(result["bbox"]) for result in json.loads(path.read_text())} == {(0.5, 1.0, 10.0, 10.0)}
