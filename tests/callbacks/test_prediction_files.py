"""Files of predictions: read again by the readers of their formats, complete or not there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lit_loader import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    read_annotations,
)
from lit_loader.callbacks import PredictionWriter, prediction_files
from lit_loader.errors import UnsafePathError
from lit_loader.recipes import ClassificationTask, DetectionTask, LandmarkTask, MultiTask, model_kwargs_from_datamodule
from tests.support.drawn_set import FINISHES, POINTS, DrawnSource, draw_set
from tests.support.predicting import predict
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
BOX = ("xmin", "ymin", "xmax", "ymax")


@pytest.fixture
def table(tmp_path):
    """Seven images, two of them without objects, that a VOC set would hold below JPEGImages."""
    folder = tmp_path / "out" / "set"
    draw_set(folder / "images", num_images=7)
    return draw_set(folder, num_images=7, class_names=("common one", "rare", "pointless"))


def texts_of(table, name):
    attribute = table.attributes[name]
    return [attribute.names[i] if i >= 0 else None for i in attribute.ids.tolist()]


def by_name(table):
    """Return each object's image, class, finish and score with its box and points, of images in their order."""
    order = np.argsort([table.image_paths[i] for i in table.image_of_object()], kind="stable").tolist()
    images = table.image_of_object().tolist()
    names = [
        (
            table.image_paths[images[row]].rpartition("/")[2],
            table.class_names[table.labels[row]],
            texts_of(table, "finish")[row],
            texts_of(table, "score")[row] if "score" in table.attributes else None,
        )
        for row in order
    ]
    return names, table.boxes[order], table.keypoints[order]


def check_read_again(table, found):
    names, boxes, points = by_name(found)
    wanted, true_boxes, true_points = by_name(table)
    assert [each[:3] for each in names] == [each[:3] for each in wanted]
    assert {float(each[3]) for each in names} <= {1.0, 0.5, 0.33333334}
    assert np.array_equal(boxes, true_boxes)
    assert np.array_equal(points, true_points)
    assert found.keypoint_names == POINTS
    assert (found.visibility == 2).all()


def test_xml_is_read_again_with_scores_as_an_attribute(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (folder,) = predict(tmp_path, datamodule, format="voc")
    assert sorted(path.name for path in folder.glob("Annotations/*.xml")) == [f"{i}.xml" for i in range(7)]
    (folder / "JPEGImages").symlink_to(table.root)
    found = read_annotations("voc", folder, ".", cache_dir=None, progress=False)
    check_read_again(table, found)
    assert found.attributes["finish"].names == FINISHES  # in the order of the ids, not sorted
    assert found.num_images == 7
    assert found.class_names == table.class_names
    assert found.flip_pairs == table.flip_pairs
    assert found.widths.tolist() == table.widths.tolist()


def test_a_list_is_read_again_by_the_columns_that_are_documented(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (path,) = predict(tmp_path, datamodule, format="keypoints_txt")
    options = {"columns": ["path", "class", "box", "attribute:score", "attribute:finish", "points"], "separator": "\t"}
    found = read_annotations(
        "keypoints_txt",
        tmp_path / "out",
        path.name,
        schema={"names": list(POINTS)},
        image_dir="set",
        cache_dir=None,
        progress=False,
        **options,
    )
    check_read_again(table, found)


def test_a_table_is_read_again_by_its_header(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (path,) = predict(tmp_path, datamodule, format="csv")
    head = path.read_text().splitlines()[0].split(",")
    points = [f"{name}_{axis}" for name in POINTS for axis in ("x", "y", "score")]
    assert head == ["path", "label", "score", *BOX, "finish", *points]
    found = read_annotations(
        "keypoints_csv",
        tmp_path / "out",
        path.name,
        schema={"names": list(POINTS)},
        class_column="label",
        box_columns=BOX,
        attribute_columns=["score", "finish"],
        point_columns=[name for name in points if not name.endswith("score")],
        ignore_columns="rest",
        image_dir="set",
        cache_dir=None,
        progress=False,
    )
    check_read_again(table, found)


@pytest.mark.parametrize("kind", ["coco", "voc", "keypoints_txt", "csv"])
def test_empty_predictions_and_failed_writes(tmp_path, table, kind, monkeypatch):
    datamodule = DetectionDataModule(DrawnSource(predict=table))

    def fail(*_, **__):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        for name in ("coco_results", "voc_image_paths", "_csv_line"):
            patch.setattr(prediction_files, name, fail)
        patch.setattr(prediction_files.KeypointsTxtWriter, "_lines", fail)
        patch.setattr(prediction_files, "check_can_be_written", lambda *_, **__: None)
        patch.setattr("lit_loader.callbacks.prediction_writer.check_can_be_written", lambda *_, **__: None)
        with pytest.raises(OSError, match="disk full"):
            predict(tmp_path, datamodule, format=kind)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["set"]
    (path,) = predict(tmp_path, datamodule, None, format=kind)
    if kind == "voc":
        assert len(list(path.glob("Annotations/*.xml"))) == 7
    else:
        assert path.read_text() in ("[\n]\n", "", "path,label,score,finish\n", "path,label,score,xmin,ymin,xmax,ymax\n")


TASKS = {
    "detection": (DetectionTask, DetectionDataModule, "fcos_small", {}),
    "landmarks": (LandmarkTask, LandmarkDataModule, "heatmaps_small", {"size": 32}),
    "classification": (ClassificationTask, ClassificationDataModule, "classifier_small", {"size": 32}),
    "several tasks": (MultiTask, MultiTaskDataModule, "fcos_small", {}),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_predictions_of_every_task_are_written_in_every_format_that_holds_them(tmp_path, task):
    kind, data, model, transforms = TASKS[task]
    table = draw_set(tmp_path / "set", num_images=4, objects=1)
    datamodule = data(DrawnSource(predict=table), train_transforms=transforms)
    torch.manual_seed(0)  # random weights whose detections pass the model's own threshold of the score
    module = kind(model, **model_kwargs_from_datamodule(datamodule))
    for wanted in ("csv",) if task == "classification" else ("coco", "voc", "keypoints_txt", "csv"):
        writer = PredictionWriter(folder=tmp_path / "out", format=wanted)
        trainer_of(tmp_path, writer).predict(module, datamodule=datamodule, return_predictions=False)
        (path,) = writer.paths
        assert path.exists()
        if wanted == "csv":
            assert len(path.read_text().splitlines()) > 4


def test_files_that_cannot_be_written_are_refused_at_the_start(tmp_path, table):
    def never(batch):
        raise AssertionError("predicted")

    def refused(error, message, table, **settings):
        with pytest.raises(error, match=message):
            predict(tmp_path, DetectionDataModule(DrawnSource(predict=table)), never, **settings)

    (tmp_path / "out" / "predictions").mkdir(parents=True)
    refused(FileExistsError, "exists, and XML files of other images", table, format="voc")
    odd = draw_set(tmp_path / "odd", num_images=2, class_names=("a", "b\tc", "score"))
    refused(ValueError, "in a tab-separated list; pass", odd, format="keypoints_txt")
    for kind, name in (("voc", "score"), ("keypoints_txt", "score"), ("csv", "xmin")):
        module = {"attributes": {name: ("a", "b")}}
        message = f"format='{kind}' has a column '{name}' of its own"
        refused(ValueError, message, table, format=kind, name="other", module=module)
    with pytest.raises(ValueError, match="got no data module"):
        trainer_of(tmp_path, PredictionWriter()).predict(Tiny(), DataLoader([0]))
    for settings in ({"format": "xml"}, {"min_score": 2}):
        with pytest.raises(ValueError, match=str(next(iter(settings)))):
            PredictionWriter(**settings)
    with pytest.raises(UnsafePathError):
        PredictionWriter(name="../x")


@pytest.mark.parametrize("kind", [DetectionDataModule, LandmarkDataModule, ClassificationDataModule])
def test_predictions_of_another_kind_are_named(tmp_path, kind):
    table = draw_set(tmp_path / "set", num_images=2, objects=1)
    size = {} if kind is DetectionDataModule else {"size": 32}
    datamodule = kind(DrawnSource(predict=table), train_transforms=size)
    with pytest.raises(TypeError, match=r"PredictionWriter expected predict_step to return .*, got a int"):
        predict(tmp_path, datamodule, lambda batch: 7)


def test_writer_pickles_for_spawned_ranks(tmp_path, table):
    writer = PredictionWriter(folder=tmp_path / "out")
    predict(tmp_path, DetectionDataModule(DrawnSource(predict=table)), writer=writer)
    assert pickle.loads(pickle.dumps(writer)).paths == writer.paths
