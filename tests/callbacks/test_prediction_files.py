"""Files of predictions: read by the readers of their formats, and written completely or not at all."""

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
    """Seven images, two of them without objects, as a VOC set has them in JPEGImages."""
    folder = tmp_path / "out" / "set"
    draw_set(folder / "images", num_images=7)
    return draw_set(folder, num_images=7, class_names=("common one", "rare", "pointless"))


def texts_of(table, name):
    attribute = table.attributes[name]
    return [attribute.names[i] if i >= 0 else None for i in attribute.ids.tolist()]


def objects_by_path(table):
    """Return file name, class and finish of each object, its box and its points, in the order of the images' paths."""
    image_rows = table.image_of_object().tolist()
    order = np.argsort([table.image_paths[row] for row in image_rows], kind="stable").tolist()
    files = [table.image_paths[row].rpartition("/")[2] for row in image_rows]
    classes = [table.class_names[label] for label in table.labels]
    texts = list(zip(files, classes, texts_of(table, "finish"), strict=True))
    return [texts[row] for row in order], table.boxes[order], table.keypoints[order]


def check_equal(table, expected):
    for values, expected_values in zip(objects_by_path(table), objects_by_path(expected), strict=True):
        assert np.array_equal(values, expected_values)
    assert set(map(float, texts_of(table, "score"))) <= {1.0, 0.5, 0.33333334}
    assert table.keypoint_names == POINTS
    assert (table.visibility == 2).all()


def read_table(format, path, folder, **options):
    if format != "voc":
        options = {"schema": {"names": list(POINTS)}, "image_dir": "set", **options}
    return read_annotations(format, folder, path, cache_dir=None, progress=False, **options)


def test_xml_files_are_read_with_scores_as_an_attribute(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (folder,) = predict(tmp_path, datamodule, format="voc")
    assert sorted(path.name for path in folder.glob("Annotations/*.xml")) == [f"{i}.xml" for i in range(7)]
    (folder / "JPEGImages").symlink_to(table.root)
    predicted = read_table("voc", ".", folder)
    check_equal(predicted, table)
    assert predicted.attributes["finish"].names == FINISHES  # in the order of the ids, not sorted
    assert predicted.num_images == 7
    assert predicted.class_names == table.class_names
    assert predicted.flip_pairs == table.flip_pairs
    assert predicted.widths.tolist() == table.widths.tolist()


def test_text_list_is_read_by_the_documented_columns(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (path,) = predict(tmp_path, datamodule, format="keypoints_txt")
    columns = ["path", "class", "box", "attribute:score", "attribute:finish", "points"]
    check_equal(read_table("keypoints_txt", path.name, tmp_path / "out", columns=columns, separator="\t"), table)


def test_csv_file_is_read_by_its_header(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), batch_size=3)
    (path,) = predict(tmp_path, datamodule, format="csv")
    points = [f"{name}_{axis}" for name in POINTS for axis in ("x", "y", "score")]
    assert path.read_text().splitlines()[0].split(",") == ["path", "label", "score", *BOX, "finish", *points]
    options = {"class_column": "label", "box_columns": BOX, "attribute_columns": ["score", "finish"]}
    options["point_columns"] = [name for name in points if not name.endswith("score")]
    check_equal(read_table("keypoints_csv", path.name, tmp_path / "out", ignore_columns="rest", **options), table)


@pytest.mark.parametrize("kind", ["coco", "voc", "keypoints_txt", "csv"])
def test_failed_write_leaves_no_file_and_empty_predictions_are_written(tmp_path, table, kind, monkeypatch):
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
    "regressed landmarks": (LandmarkTask, LandmarkDataModule, "regression_small", {"size": 32}),
    "classification": (ClassificationTask, ClassificationDataModule, "classifier_small", {"size": 32}),
    "several tasks": (MultiTask, MultiTaskDataModule, "fcos_small", {}),
}


@pytest.mark.parametrize("task", TASKS)
def test_predictions_of_every_task_are_written_in_every_format_for_it(tmp_path, task):
    kind, data, model, transforms = TASKS[task]
    table = draw_set(tmp_path / "set", num_images=4, objects=1)
    datamodule = data(DrawnSource(predict=table), train_transforms=transforms)
    torch.manual_seed(0)  # random weights whose detections pass the model's own threshold of the score
    module = kind(model, **model_kwargs_from_datamodule(datamodule))
    for format in ("csv",) if task == "classification" else ("coco", "voc", "keypoints_txt", "csv"):
        writer = PredictionWriter(folder=tmp_path / "out", format=format)
        trainer_of(tmp_path, writer).predict(module, datamodule=datamodule, return_predictions=False)
        (path,) = writer.paths
        assert path.exists()
        if format == "csv":
            assert len(path.read_text().splitlines()) > 4


def test_files_that_cannot_be_written_are_refused_at_the_start(tmp_path, table):
    def refused(error, message, table, **settings):
        with pytest.raises(error, match=message):
            predict(
                tmp_path,
                DetectionDataModule(DrawnSource(predict=table)),
                lambda batch: pytest.fail("predicted"),
                **settings,
            )

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
def test_predictions_of_another_type_are_refused(tmp_path, kind):
    table = draw_set(tmp_path / "set", num_images=2, objects=1)
    size = {} if kind is DetectionDataModule else {"size": 32}
    datamodule = kind(DrawnSource(predict=table), train_transforms=size)
    with pytest.raises(TypeError, match=r"PredictionWriter expected predict_step to return .*, got a int"):
        predict(tmp_path, datamodule, lambda batch: 7)


def test_writer_pickles_for_spawned_ranks(tmp_path, table):
    writer = PredictionWriter(folder=tmp_path / "out")
    predict(tmp_path, DetectionDataModule(DrawnSource(predict=table)), writer=writer)
    assert pickle.loads(pickle.dumps(writer)).paths == writer.paths
