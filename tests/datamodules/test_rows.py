"""Rows in data modules: every task trains on them, in every backend, and predictions of them are written."""

from __future__ import annotations

import csv
import json
import pickle
import warnings

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from lit_loader import (
    ClassificationDataModule,
    DataLoader,
    DetectionDataModule,
    DetectionDataset,
    ImageReading,
    LandmarkDataModule,
    MultiTaskDataModule,
    RowsSource,
    WorkerSettings,
    detection_transforms,
)
from lit_loader.callbacks import BadSampleReport, PredictionWriter
from lit_loader.errors import ImageError
from lit_loader.recipes import ClassificationTask, DetectionTask, LandmarkTask
from tests.support.predicting import predict
from tests.support.row_data import DETECTION, NAMES, POINTS, detection_rows, encoded, pixels_of, point_rows
from tests.support.small_tasks import small_builder
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
KEYPOINTS = {**DETECTION, "box_format": "xyxy", "keypoints": "objects.points", "schema": POINTS}
BACKENDS = [
    pytest.param(WorkerSettings(num_workers=0), id="main process"),
    pytest.param(WorkerSettings(num_workers=2), id="fork"),
    # It takes seconds to start; test_extra_transforms.py starts one.
    pytest.param(WorkerSettings(num_workers=1, multiprocessing_context="spawn"), id="spawn", marks=pytest.mark.soak),
    pytest.param(WorkerSettings(num_workers=2, worker_method="thread"), id="threads"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def source_of(rows, **settings):
    return RowsSource(rows, **{**DETECTION, **settings})


def images_of(datamodule):
    """Return the images and the labels of one epoch, by image id."""
    datamodule.setup("fit")
    images = {}
    with datamodule.train_dataloader() as loader:
        for batch in loader:
            for image, target in zip(*batch, strict=True):
                images[int(target["image_id"])] = image, target["labels"]
    return images


def test_a_detector_trains_on_rows(tmp_path):
    datamodule = DetectionDataModule(
        source_of({"train": detection_rows(), "validation": detection_rows(4)}), batch_size=2
    )
    task = DetectionTask(small_builder("detection"), class_names=NAMES)
    trainer_of(tmp_path, limit_train_batches=1, limit_val_batches=1).fit(task, datamodule=datamodule)
    assert datamodule.class_names == tuple(NAMES)


def test_a_classifier_trains_on_rows(tmp_path):
    rows = [{"image": pixels_of(number), "label": number % 3} for number in range(6)]
    source = source_of({"train": rows, "validation": rows[:2]}, boxes=None, labels="label")
    datamodule = ClassificationDataModule(source, batch_size=2)
    task = ClassificationTask(small_builder("classification"), class_names=NAMES)
    trainer_of(tmp_path, limit_train_batches=1, limit_val_batches=1).fit(task, datamodule=datamodule)
    batch = datamodule.first_batch("val")
    assert batch.labels.tolist() == [0, 1]


def test_a_landmark_net_trains_on_rows(tmp_path):
    source = RowsSource({"train": point_rows(), "validation": point_rows(2)}, **KEYPOINTS)
    datamodule = LandmarkDataModule(source, batch_size=2)
    task = LandmarkTask(small_builder("landmarks"), keypoint_names=POINTS["names"])
    trainer_of(tmp_path, limit_train_batches=1, limit_val_batches=1).fit(task, datamodule=datamodule)
    assert datamodule.keypoint_schema.flip_pairs == ((0, 1),)


def test_all_tasks_at_once_get_the_points_of_rows():
    datamodule = MultiTaskDataModule(RowsSource(point_rows(), **KEYPOINTS), batch_size=2)
    batch = datamodule.first_batch("train")
    assert batch.keypoints.shape == (2, 1, 3, 2)


@pytest.mark.parametrize("workers", BACKENDS)
def test_every_backend_gives_the_same_images(workers):
    def epoch_of(workers):
        datamodule = DetectionDataModule(source_of(detection_rows(8)), batch_size=2, workers=workers, seed=5)
        return images_of(datamodule)

    expected = epoch_of(WorkerSettings(num_workers=0))
    images = epoch_of(workers)
    assert images.keys() == expected.keys()
    for number, (image, labels) in images.items():
        assert torch.equal(image, expected[number][0])
        assert torch.equal(labels, expected[number][1])


def test_fast_decoding_of_encoded_rows_follows_that_of_files(tmp_path):
    rows = [{"image": encoded(i, "JPEG", size=(200, 160)), "label": 0} for i in range(3)]
    source = source_of(rows, boxes=None, labels="label")
    files = []
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.jpg").write_bytes(row["image"])
        files.append({"image": f"{number}.jpg", "label": 0})
    file_source = source_of(files, boxes=None, labels="label", root=tmp_path)
    reading = ImageReading(decode="fast")
    transforms = detection_transforms(False, size=[40, 50])
    datasets = [
        DetectionDataset(source.tables("train")[0], reading=source.image_reading(reading), transforms=transforms)
        for source in (source, file_source)
    ]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(*datasets, strict=True))


@pytest.mark.parametrize("size", [None, 32])
def test_cached_pixels_are_those_of_the_rows(tmp_path, size):
    settings = {"cache": True, "cache_dir": str(tmp_path / "pixels"), "cache_size": size, "batch_size": 2}
    transforms = {"hflip": 0.0}
    rows = detection_rows()
    cached = images_of(DetectionDataModule(source_of(rows), train_transforms=transforms, **settings))
    if size is None:
        plain = images_of(DetectionDataModule(source_of(rows), train_transforms=transforms, batch_size=2))
        assert all(torch.equal(cached[number][0], plain[number][0]) for number in plain)
    files = list((tmp_path / "pixels/decoded").glob("*.pixels"))
    assert len(files) == 1
    # Other images under the same names have another cache.
    rows[1]["image"] = {"bytes": encoded(77, "JPEG"), "path": None}
    changed = images_of(DetectionDataModule(source_of(rows), train_transforms=transforms, **settings))
    assert not torch.equal(changed[1][0], cached[1][0])
    assert torch.equal(changed[2][0], cached[2][0])


def test_copies_across_sets_of_rows_are_reported():
    rows = detection_rows()
    datamodule = DetectionDataModule(source_of({"train": rows, "validation": [rows[2], detection_rows(9)[7]]}))
    assert "1 images of val are byte-identical copies of images of train, such as 'val/000000' of 'train/000002'" in (
        datamodule.summary()
    )


def test_a_damaged_row_is_named_raised_and_skipped(tmp_path):
    rows = detection_rows()
    rows[2]["image"]["bytes"] = rows[2]["image"]["bytes"][:-60]
    datamodule = DetectionDataModule(source_of(rows), batch_size=3)
    with pytest.raises(ImageError, match=r"row 2 of train, column 'image': cannot be decoded"):
        images_of(datamodule)
    report = BadSampleReport()
    datamodule = DetectionDataModule(source_of(rows), batch_size=3, on_bad_sample="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer_of(tmp_path, report).fit(Tiny(), datamodule=datamodule)
    (record,) = report.records["train"]
    assert "row 2 of train" in record.message
    assert record.file.endswith("train/000002")


@pytest.mark.parametrize("transforms", [{}, {"size": [30, 70]}], ids=["unchanged", "resized"])
@pytest.mark.parametrize("format", ["coco", "csv", "voc", "keypoints_txt"])
def test_predictions_are_written_in_pixels_of_the_rows_and_drawn(tmp_path, format, transforms):
    rows = detection_rows(4)
    source = source_of({"train": rows, "test": rows})
    datamodule = DetectionDataModule(source, batch_size=2, predict_transforms=transforms)
    paths = predict(tmp_path, datamodule, format=format, num_pictures=2)
    drawn = sorted(str(path.relative_to(paths[1])) for path in paths[1].rglob("*.jpg"))
    # Rows of several stages have the name of the first.
    assert drawn == ["train/000000.jpg", "train/000001.jpg"]
    if format == "coco":
        boxes = [result["bbox"] for result in json.loads(paths[0].read_text())]
        expected = [item["bbox"] for row in rows for item in row["objects"]]
        assert np.abs(np.array(boxes) - expected).max() < 1e-3
    if format == "csv":
        with paths[0].open() as file:
            assert {line["path"] for line in csv.DictReader(file)} == {"train/000001", "train/000002"}


def test_points_of_crops_are_written_in_pixels_of_the_rows(tmp_path):
    source = RowsSource({"train": point_rows(), "test": point_rows()}, **KEYPOINTS)
    datamodule = LandmarkDataModule(source, batch_size=2)
    task = LandmarkTask(small_builder("landmarks"), keypoint_names=POINTS["names"])
    writer = PredictionWriter(folder=tmp_path / "out", num_pictures=1)
    trainer_of(tmp_path, writer).predict(task, datamodule=datamodule, return_predictions=False)
    results = json.loads(writer.paths[0].read_text())
    assert len(results) == 4
    assert len(list(writer.paths[1].rglob("*.jpg"))) == 1


def test_a_data_set_is_pickled_without_the_images_of_other_stages():
    rows = detection_rows()
    big_rows = [{"image": np.zeros((999, 999), dtype=np.uint8), "objects": []}]
    source = source_of({"train": rows, "test": big_rows})
    datamodule = DetectionDataModule(source, batch_size=2)
    (table,) = datamodule.tables("train")
    dataset = datamodule.make_dataset(table, None)
    data = pickle.dumps(dataset)
    assert len(data) < 100_000
    assert torch.equal(pickle.loads(data)[1][0], dataset[1][0])


def test_a_plain_loader_reads_rows_without_a_data_module():
    source = source_of(detection_rows())
    dataset = DetectionDataset(source.tables("train")[0], reading=source.image_reading(ImageReading()))
    with DataLoader(dataset, batch_size=3, collate_fn=list) as loader:
        (image, target) = next(iter(loader))[2]
    assert np.array_equal(image.permute(1, 2, 0), pixels_of(2))
    assert target["labels"].tolist() == [3, 1]


def test_a_config_gives_data_sets_to_the_source(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.utils.tqdm, "monitor_interval", 0)
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(detection_rows()).save_to_disk(tmp_path / "set")
    config = {
        "_target_": "lit_loader.DetectionDataModule",
        "source": {
            "_target_": "lit_loader.datasets.RowsSource",
            "train": {"_target_": "datasets.load_from_disk", "dataset_path": str(tmp_path / "set")},
            "val": {"_target_": "datasets.load_from_disk", "dataset_path": str(tmp_path / "set")},
            **DETECTION,
        },
        "batch_size": 2,
    }
    datamodule = instantiate(config)
    assert datamodule.class_names == tuple(NAMES)
    assert len(images_of(datamodule)) == 6
    assert [len(table) for table in datamodule.tables("val")] == [6]
