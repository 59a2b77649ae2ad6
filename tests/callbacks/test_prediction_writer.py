"""Predictions in files: pixels and ids of the original images, one entry an image, for every task."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lit_loader import ClassificationDataModule, DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
from lit_loader.annotations.masks import Masks, RunLengths, decode_counts, run_lengths
from lit_loader.callbacks import PredictionWriter
from tests.support.drawn_set import CLASSES, SIZE, DrawnSource, draw_set
from tests.support.predicting import echo, predict
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
IDS = [70, 10, 30, 20, 50, 40, 90]
NUMBERS = {"source_ids": IDS, "category_ids": [5, 3, 9]}


def results(paths):
    return json.loads(paths[0].read_text())


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set", num_images=7, **NUMBERS)


def check_boxes(predictions, table):
    """Check image number, category number and box (x, y, width, height) of all objects of a table."""
    image_ids = np.array(IDS)[table.image_of_object()]
    category_ids = np.array(NUMBERS["category_ids"])[table.labels]
    assert [prediction["image_id"] for prediction in predictions] == image_ids.tolist()
    assert [prediction["category_id"] for prediction in predictions] == category_ids.tolist()
    boxes = np.concatenate([table.boxes[:, :2], table.boxes[:, 2:] - table.boxes[:, :2]], axis=1)
    assert np.abs([prediction["bbox"] for prediction in predictions] - boxes).max() < 1e-3


@pytest.mark.parametrize(
    "transforms",
    [
        {},
        {"size": 31},
        {"size": [96, 41]},
        {"size": [96, 41], "letterbox": True},
        {"size": [40, 96], "letterbox": True},
        {"max_size": 33},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_sizes", [True, False], ids=["sizes in the table", "sizes read from files"])
def test_boxes_are_in_pixels_of_the_files_for_every_transform(tmp_path, transforms, has_sizes):
    sizes = {} if has_sizes else {"widths": [0] * 7, "heights": [0] * 7}
    table = draw_set(tmp_path / "set", num_images=7, **NUMBERS, **sizes)
    transforms = {"min_box_size": 0.1, **transforms}
    datamodule = DetectionDataModule(DrawnSource(predict=table), batch_size=3, train_transforms=transforms)
    predictions = results(predict(tmp_path, datamodule))
    check_boxes(predictions, table)
    assert predictions[0]["score"] == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": True, "cache_size": 32},
        {
            "predict_transforms": v2.Compose(
                [v2.Pad([3, 5, 7, 9]), v2.Resize([50, 60]), v2.ToDtype(torch.float32, scale=True)]
            )
        },
    ],
    ids=["cache of smaller images", "transforms of torchvision"],
)
def test_boxes_are_converted_from_smaller_caches_and_other_transforms(tmp_path, table, settings):
    datamodule = DetectionDataModule(DrawnSource(predict=table), cache_dir=tmp_path, **settings)
    check_boxes(results(predict(tmp_path, datamodule)), table)


def test_random_transforms_are_refused(tmp_path, table):
    random = v2.Compose([v2.RandomResize(20, 300), v2.ToDtype(torch.float32, scale=True)])
    datamodule = DetectionDataModule(DrawnSource(predict=table), predict_transforms=random)
    with pytest.raises(ValueError, match=r"predictions cannot be converted .* are not random"):
        predict(tmp_path, datamodule)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "extra",
    [
        v2.RandomAffine(0, (0.2, 0.2)),
        v2.RandomRotation((90, 90)),
        v2.RandomRotation((-9, 9)),
        v2.RandomHorizontalFlip(p=1),
        v2.RandomHorizontalFlip(p=0.5),
        v2.RandomCrop((40, 50)),
    ],
    ids=lambda extra: type(extra).__name__,
)
def test_transforms_that_no_scale_and_offset_describe_are_refused(tmp_path, table, extra):
    """The result of each has the expected size, so the size alone would not show the wrong boxes."""
    # Without a seed, the probes of some runs draw no flip at all.
    torch.manual_seed(0)
    datamodule = DetectionDataModule(DrawnSource(predict=table), predict_transforms={"extra_after": [extra]})
    with pytest.raises(ValueError, match=r"place boxes of blank 64x48 images differently; .*not random, do not rotate"):
        predict(tmp_path, datamodule)
    assert not (tmp_path / "out").exists()


def test_extra_transforms_that_scale_move_or_recolour_are_undone(tmp_path, table):
    extras = {"extra_before": [v2.Pad([3, 5, 7, 9]), v2.ColorJitter(0.3)], "extra_after": [v2.Resize([50, 60])]}
    datamodule = DetectionDataModule(DrawnSource(predict=table), predict_transforms=extras)
    check_boxes(results(predict(tmp_path, datamodule)), table)


def test_landmark_crops_refuse_extra_transforms_of_prediction_that_may_move_pixels(table):
    source = DrawnSource(predict=table)
    for extra in (v2.RandomAffine(5), v2.RandomApply([v2.Pad(3)])):
        with pytest.raises(ValueError, match="may move pixels, so predicted points could not be converted"):
            LandmarkDataModule(source, predict_transforms={"extra_before": [extra]})
    LandmarkDataModule(source, predict_transforms={"extra_after": [v2.ColorJitter(0.2)]})
    LandmarkDataModule(source, train_transforms={"extra_after": [v2.RandomAffine(5)]})


@pytest.mark.parametrize("letterbox", [False, True])
def test_masks_have_the_size_of_the_file(tmp_path, letterbox):
    plain = draw_set(tmp_path / "set", num_images=7, **NUMBERS)
    bitmaps = []
    for x, y, right, bottom in plain.boxes.astype(int).tolist():
        bitmap = np.zeros((SIZE[1], SIZE[0]), dtype=np.uint8)
        bitmap[y:bottom, x:right] = 1
        bitmaps.append(bitmap)
    table = draw_set(tmp_path / "set", num_images=7, masks=Masks.from_rows(map(run_lengths, bitmaps)), **NUMBERS)
    twice = {"size": [2 * SIZE[1], 2 * SIZE[0] + 20 * letterbox], "letterbox": letterbox}
    datamodule = DetectionDataModule(DrawnSource(predict=table), masks=True, train_transforms=twice)
    for prediction, bitmap in zip(results(predict(tmp_path, datamodule)), bitmaps, strict=True):
        height, width = prediction["segmentation"]["size"]
        counts = decode_counts(prediction["segmentation"]["counts"])
        mask = Masks.from_rows([RunLengths(counts, height, width)]).rasterize(0, height, width)
        assert np.array_equal(mask, bitmap)
    for kind in ("voc", "csv"):
        with pytest.raises(ValueError, match=f"format='{kind}' cannot hold masks; pass format='coco'"):
            predict(tmp_path, datamodule, format=kind)


def test_points_and_attributes_of_whole_images_are_written(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), train_transforms={"size": 31, "min_box_size": 0.1})
    predictions = results(predict(tmp_path, datamodule, min_score=0.4))
    # The first two objects of an image have scores of 1 and 0.5.
    rows = [i for i in range(table.num_objects) if i - table.offsets[table.image_of_object()[i]] < 2]
    assert len(predictions) == len(rows) < table.num_objects
    finish = table.attributes["finish"]
    for prediction, row in zip(predictions, rows, strict=True):
        points = np.array(prediction["keypoints"]).reshape(-1, 3)
        assert np.abs(points[:, :2] - table.keypoints[row]).max() < 1e-3
        assert set(points[:, 2].tolist()) == {0.25}
        value = finish.ids[row]
        assert prediction.get("attributes", {}) == ({} if value < 0 else {"finish": finish.names[value]})


def true_points(batch):
    return {"keypoints": batch.keypoints, "scores": torch.full(batch.keypoints.shape[:2], 0.5)}


@pytest.mark.parametrize("settings", [{}, {"cache": True, "cache_size": 32}], ids=["files", "small cache"])
def test_points_of_crops_are_in_pixels_of_their_image(tmp_path, table, settings):
    settings |= {"batch_size": 4, "train_transforms": {"size": [48, 64]}, "cache_dir": tmp_path}
    predictions = results(predict(tmp_path, LandmarkDataModule(DrawnSource(predict=table), **settings), true_points))
    check_boxes(predictions, table)
    assert {prediction["score"] for prediction in predictions} == {0.5}
    points = np.array([prediction["keypoints"] for prediction in predictions]).reshape(len(predictions), -1, 3)
    assert np.abs(points[..., :2] - table.keypoints)[table.visibility > 0].max() < 1e-2


def test_float64_is_used_only_on_the_cpu(tmp_path, table, monkeypatch):
    # MPS has no float64.
    double = torch.Tensor.double
    on_device = []
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)

    def checked(tensor):
        assert all(tensor is not field for field in on_device), "float64 on the device"
        return double(tensor)

    def predict_batch(batch):
        prediction = true_points(batch)
        on_device.extend([batch.crops, *prediction.values()])
        return prediction

    monkeypatch.setattr(torch.Tensor, "double", checked)
    datamodule = LandmarkDataModule(DrawnSource(predict=table), train_transforms={"size": 32})
    assert results(predict(tmp_path, datamodule, predict_batch))


def test_class_of_a_crop_is_the_predicted_class(tmp_path, table):
    datamodule = LandmarkDataModule(DrawnSource(predict=table), train_transforms={"size": 32})
    logits = torch.tensor([0.0, 0.0, 1.0])
    find = lambda batch: {**true_points(batch), "class_logits": logits.expand(len(batch.labels), 3)}  # noqa: E731
    assert {prediction["category_id"] for prediction in results(predict(tmp_path, datamodule, find))} == {9}


def regressed(batch):
    """Return points without scores, and the true finish, plain where it is unknown."""
    logits = torch.eye(3)[batch.attributes["finish"].clamp(min=0)]
    return {"keypoints": batch.keypoints, "attribute_logits": {"finish": logits}}


def attribute_module(table):
    return LandmarkDataModule(DrawnSource(predict=table), train_transforms={"size": 32}, attributes=["finish"])


def test_regressed_points_are_written_without_scores_and_with_attributes(tmp_path, table):
    settings = {"format": "csv", "min_score": 0.9, "num_pictures": 1, "min_picture_score": 0.9}
    rows = rows_of(predict(tmp_path, attribute_module(table), regressed, **settings))
    assert len(rows) == table.num_objects
    finish = table.attributes["finish"]
    assert [row["finish"] for row in rows] == [finish.names[max(0, value)] for value in finish.ids.tolist()]
    assert {row[name] for row in rows for name in ("score", "left_score")} == {""}
    assert abs(float(rows[0]["left_x"]) - table.keypoints[0, 0, 0]) < 1e-2


def test_regressed_points_have_the_scores_that_a_coco_evaluation_needs(tmp_path, table):
    predictions = results(predict(tmp_path, attribute_module(table), regressed, format="coco"))
    assert {prediction["score"] for prediction in predictions} == {1.0}
    assert {score for prediction in predictions for score in prediction["keypoints"][2::3]} == {1.0}
    assert predictions[0]["attributes"] == {"finish": "plain"}


@pytest.mark.parametrize("format", ["voc", "keypoints_txt"])
def test_regressed_points_have_no_attribute_of_scores(tmp_path, table, format):
    (path, *_) = predict(tmp_path, attribute_module(table), regressed, format=format)
    files = path.rglob("*.xml") if path.is_dir() else [path]
    assert not any("score" in file.read_text() or "nan" in file.read_text() for file in files)


def rows_of(paths):
    with paths[0].open() as file:
        return list(csv.DictReader(file))


def test_labels_of_images_are_rows_with_a_probability(tmp_path):
    table = draw_set(tmp_path / "set", num_images=3, objects=1)
    datamodule = ClassificationDataModule(DrawnSource(predict=table), train_transforms={"size": 16})
    find = lambda batch: torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.4, 0.5, 0.1]])  # noqa: E731
    rows = rows_of(predict(tmp_path, datamodule, find, format="csv"))
    assert [tuple(row.values()) for row in rows] == [
        ("0.png", "common", "0.7"),
        ("1.png", "pointless", "0.8"),
        ("2.png", "rare", "0.5"),
    ]
    multi_label = ClassificationDataModule(DrawnSource(predict=table), multi_label=True, train_transforms={"size": 16})
    rows = rows_of(predict(tmp_path, multi_label, lambda batch: find(batch) + 0.3, format="csv"))
    assert [row["label"] for row in rows] == ["common", "rare", "pointless", "common", "rare"]
    assert [row["path"] for row in rows] == ["0.png", "0.png", "1.png", "2.png", "2.png"]
    with pytest.raises(ValueError, match=r"format='coco' holds objects with boxes.*pass format='csv'"):
        predict(tmp_path, datamodule, find, format="coco")
    (path,) = predict(tmp_path, datamodule, find)
    assert path.suffix == ".csv"


def test_labels_of_object_crops_have_the_objects_boxes(tmp_path, table):
    datamodule = ClassificationDataModule(
        DrawnSource(predict=table), label_attribute="finish", sample_unit="object", train_transforms={"size": 16}
    )
    find = lambda batch: torch.eye(3)[[1] * len(batch.labels)]  # noqa: E731
    rows = rows_of(predict(tmp_path, datamodule, find, format="csv"))
    assert {row["label"] for row in rows} == {"dotted"}
    boxes = [[float(row[name]) for name in ("xmin", "ymin", "xmax", "ymax")] for row in rows]
    assert boxes == table.boxes.tolist()
    assert [row["path"] for row in rows] == [f"{i}.png" for i in table.image_of_object()]


def test_class_names_are_the_models(tmp_path, table):
    datamodule = DetectionDataModule(DrawnSource(predict=table))
    detection = {"boxes": torch.ones(1, 4), "labels": torch.tensor([1]), "scores": torch.ones(1)}
    find = lambda batch: [detection] * len(batch[0])  # noqa: E731
    (path,) = predict(tmp_path, datamodule, find, module={"class_names": ("rare", "new")}, format="csv")
    assert {row["label"] for row in rows_of([path])} == {"rare"}
    empty = {"class_names": (), "attributes": {}, "keypoints": None, "visibility": None}
    bare = draw_set(tmp_path / "bare", num_images=2, objects=0, keypoint_names=(), flip_pairs=(), **empty)
    paths = predict(tmp_path, DetectionDataModule(DrawnSource(predict=bare)), find, module={"class_names": CLASSES})
    assert [(entry["image_id"], entry["category_id"]) for entry in results(paths)] == [(1, 1), (2, 1)]


def test_every_set_has_a_file(tmp_path, table):
    other = draw_set(tmp_path / "set", num_images=2, objects=1)
    datamodule = DetectionDataModule(DrawnSource(predict=[table, other]))
    paths = predict(tmp_path, datamodule, name="results")
    assert [path.name for path in paths] == ["results-0.json", "results-1.json"]
    assert [len(json.loads(path.read_text())) for path in paths] == [table.num_objects, 2]


def test_names_of_sets_do_not_lead_out_of_the_folder(tmp_path, table):
    class Named(DrawnSource):
        def set_names(self, stage):
            return ["night/rain", "../up"] if stage == "predict" else []

    class Custom(DetectionDataModule):
        def set_names(self, stage):
            return ["night/rain", "../up"]

    for number, datamodule in enumerate(kind(Named(predict=[table, table])) for kind in (DetectionDataModule, Custom)):
        paths = predict(tmp_path / str(number), datamodule)
        assert [path.name for path in paths] == ["predictions-night_rain.json", "predictions-_up.json"]
        assert len({path.parent for path in paths}) == 1


@pytest.mark.parametrize("kind", [DetectionDataModule, LandmarkDataModule])
def test_two_ranks_write_each_image_once(tmp_path, table, kind):
    size = {} if kind is DetectionDataModule else {"size": 32}
    datamodule = kind(DrawnSource(predict=table), batch_size=2, train_transforms=size)
    find = echo if kind is DetectionDataModule else true_points
    expected = results(predict(tmp_path, datamodule, find))
    writer = PredictionWriter(folder=tmp_path / "ranks")
    trainer = trainer_of(tmp_path, writer, devices=2, strategy="ddp_fork")
    trainer.predict(Tiny(find), datamodule=datamodule, return_predictions=False)
    assert len(expected) == table.num_objects
    assert results([tmp_path / "ranks" / "predictions.json"]) == expected
