"""Predictions in files: the original image's pixels and ids, one entry an image, every task."""

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


def boxes_of(table):
    """Return x, y, width and height of all objects, with the numbers of the image and the category."""
    rows = table.image_of_object().tolist()
    corners = zip(rows, table.labels.tolist(), table.boxes.tolist(), strict=True)
    return [(IDS[i], NUMBERS["category_ids"][c], [x, y, r - x, b - y]) for i, c, (x, y, r, b) in corners]


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
@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes read"])
def test_boxes_are_in_pixels_of_the_files_whatever_the_model_saw(tmp_path, transforms, known):
    sizes = {} if known else {"widths": [0] * 7, "heights": [0] * 7}
    table = draw_set(tmp_path / "set", num_images=7, **NUMBERS, **sizes)
    datamodule = DetectionDataModule(
        DrawnSource(predict=table), batch_size=3, train_transforms={"min_box_size": 0.1, **transforms}
    )
    found = results(predict(tmp_path, datamodule))
    wanted = boxes_of(table)
    assert [(one["image_id"], one["category_id"]) for one in found] == [each[:2] for each in wanted]
    assert np.abs(np.array([one["bbox"] for one in found]) - [each[2] for each in wanted]).max() < 1e-3
    assert found[0]["score"] == 1.0


def test_a_cache_of_smaller_images_and_transforms_of_a_users_own_are_undone(tmp_path, table):
    for transforms, settings in (
        ({}, {"cache": True, "cache_size": 32}),
        (v2.Compose([v2.Pad([3, 5, 7, 9]), v2.Resize([50, 60]), v2.ToDtype(torch.float32, scale=True)]), {}),
    ):
        datamodule = DetectionDataModule(
            DrawnSource(predict=table), predict_transforms=transforms, cache_dir=tmp_path, **settings
        )
        found = results(predict(tmp_path, datamodule))
        assert np.abs(np.array([one["bbox"] for one in found]) - [each[2] for each in boxes_of(table)]).max() < 1e-3


def test_random_transforms_are_refused_since_they_cannot_be_undone(tmp_path, table):
    random = v2.Compose([v2.RandomResize(20, 300), v2.ToDtype(torch.float32, scale=True)])
    datamodule = DetectionDataModule(DrawnSource(predict=table), predict_transforms=random)
    with pytest.raises(ValueError, match=r"0\.png: predictions cannot be converted"):
        predict(tmp_path, datamodule)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("letterbox", [False, True])
def test_masks_are_brought_back_to_the_size_of_the_file(tmp_path, letterbox):
    plain = draw_set(tmp_path / "set", num_images=7, **NUMBERS)
    bitmaps = []
    for x, y, right, bottom in plain.boxes.astype(int).tolist():
        bitmap = np.zeros((SIZE[1], SIZE[0]), dtype=np.uint8)
        bitmap[y:bottom, x:right] = 1
        bitmaps.append(bitmap)
    table = draw_set(tmp_path / "set", num_images=7, masks=Masks.from_rows(map(run_lengths, bitmaps)), **NUMBERS)
    twice = {"size": [2 * SIZE[1], 2 * SIZE[0] + 20 * letterbox], "letterbox": letterbox}
    datamodule = DetectionDataModule(DrawnSource(predict=table), masks=True, train_transforms=twice)
    found = results(predict(tmp_path, datamodule))
    for one, bitmap in zip(found, bitmaps, strict=True):
        (height, width) = one["segmentation"]["size"]
        counts = decode_counts(one["segmentation"]["counts"])
        again = Masks.from_rows([RunLengths(counts, height, width)]).rasterize(0, height, width)
        assert np.array_equal(again, bitmap)
    for kind in ("voc", "csv"):
        with pytest.raises(ValueError, match=f"format='{kind}' cannot hold masks; pass format='coco'"):
            predict(tmp_path, datamodule, format=kind)


def test_points_and_attributes_of_whole_images_are_kept(tmp_path, table):
    datamodule = MultiTaskDataModule(DrawnSource(predict=table), train_transforms={"size": 31, "min_box_size": 0.1})
    found = results(predict(tmp_path, datamodule, min_score=0.4))
    held = [i for i in range(table.num_objects) if i - table.offsets[table.image_of_object()[i]] < 2]
    assert len(found) == len(held) < table.num_objects
    finish = table.attributes["finish"]
    for one, row in zip(found, held, strict=True):
        points = np.array(one["keypoints"]).reshape(-1, 3)
        assert np.abs(points[:, :2] - table.keypoints[row]).max() < 1e-3
        assert set(points[:, 2].tolist()) == {0.25}
        value = finish.ids[row]
        assert one.get("attributes", {}) == ({} if value < 0 else {"finish": finish.names[value]})


def of_crops(batch):
    return {"keypoints": batch.keypoints, "scores": torch.full(batch.keypoints.shape[:2], 0.5)}


@pytest.mark.parametrize("settings", [{}, {"cache": True, "cache_size": 32}], ids=["files", "small cache"])
def test_points_of_crops_stand_with_their_image_in_its_pixels(tmp_path, table, settings):
    datamodule = LandmarkDataModule(
        DrawnSource(predict=table), batch_size=4, train_transforms={"size": [48, 64]}, cache_dir=tmp_path, **settings
    )
    found = results(predict(tmp_path, datamodule, of_crops))
    wanted = boxes_of(table)
    assert [(one["image_id"], one["category_id"], one["bbox"]) for one in found] == wanted
    assert {one["score"] for one in found} == {0.5}
    for one, points, seen in zip(found, table.keypoints, table.visibility, strict=True):
        assert np.abs(np.array(one["keypoints"]).reshape(-1, 3)[:, :2] - points)[seen > 0].max(initial=0) < 1e-2


def test_float64_is_made_on_the_cpu_alone(tmp_path, table, monkeypatch):
    """MPS has no float64."""
    double = torch.Tensor.double
    on_device = []
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)

    def checked(tensor):
        assert all(tensor is not field for field in on_device), "float64 on the device"
        return double(tensor)

    def predict_batch(batch):
        prediction = of_crops(batch)
        on_device.extend([batch.crops, *prediction.values()])
        return prediction

    monkeypatch.setattr(torch.Tensor, "double", checked)
    datamodule = LandmarkDataModule(DrawnSource(predict=table), train_transforms={"size": 32})
    assert results(predict(tmp_path, datamodule, predict_batch))


def test_the_class_that_a_head_finds_is_that_of_a_crop(tmp_path, table):
    datamodule = LandmarkDataModule(DrawnSource(predict=table), train_transforms={"size": 32})
    logits = torch.tensor([0.0, 0.0, 1.0])
    found = predict(
        tmp_path, datamodule, lambda batch: {**of_crops(batch), "class_logits": logits.expand(len(batch.labels), 3)}
    )
    assert {one["category_id"] for one in results(found)} == {9}


def rows_of(paths):
    with paths[0].open() as file:
        return list(csv.DictReader(file))


def test_labels_of_images_are_rows_with_a_probability(tmp_path):
    table = draw_set(tmp_path / "set", num_images=3, objects=1)
    datamodule = ClassificationDataModule(DrawnSource(predict=table), train_transforms={"size": 16})
    find = lambda batch: torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.4, 0.5, 0.1]])  # noqa: E731
    rows = rows_of(predict(tmp_path, datamodule, find, format="csv"))
    assert rows == [
        {"path": "0.png", "label": "common", "score": "0.7"},
        {"path": "1.png", "label": "pointless", "score": "0.8"},
        {"path": "2.png", "label": "rare", "score": "0.5"},
    ]
    several = ClassificationDataModule(DrawnSource(predict=table), multi_label=True, train_transforms={"size": 16})
    rows = rows_of(predict(tmp_path, several, lambda batch: find(batch) + 0.3, format="csv"))
    assert [(row["path"], row["label"]) for row in rows] == [
        ("0.png", "common"),
        ("0.png", "rare"),
        ("1.png", "pointless"),
        ("2.png", "common"),
        ("2.png", "rare"),
    ]
    with pytest.raises(ValueError, match=r"format='coco' holds objects with boxes.*pass format='csv'"):
        predict(tmp_path, datamodule, find, format="coco")
    (path,) = predict(tmp_path, datamodule, find)
    assert path.suffix == ".csv"


def test_labels_of_objects_cut_out_have_their_boxes(tmp_path, table):
    datamodule = ClassificationDataModule(
        DrawnSource(predict=table), label_attribute="finish", sample_unit="object", train_transforms={"size": 16}
    )
    find = lambda batch: torch.eye(3)[[1] * len(batch.labels)]  # noqa: E731
    rows = rows_of(predict(tmp_path, datamodule, find, format="csv"))
    assert {row["label"] for row in rows} == {"dotted"}
    found = [[float(row[name]) for name in ("xmin", "ymin", "xmax", "ymax")] for row in rows]
    assert found == table.boxes.tolist()
    assert [row["path"] for row in rows] == [f"{i}.png" for i in table.image_of_object()]


def test_labels_mean_what_the_model_says_and_not_the_data(tmp_path, table):
    datamodule = DetectionDataModule(DrawnSource(predict=table))
    one = {"boxes": torch.ones(1, 4), "labels": torch.tensor([1]), "scores": torch.ones(1)}
    find = lambda batch: [one] * len(batch[0])  # noqa: E731
    (path,) = predict(tmp_path, datamodule, find, module={"class_names": ("rare", "new")}, format="csv")
    assert {row["label"] for row in rows_of([path])} == {"rare"}
    bare = draw_set(
        tmp_path / "bare",
        num_images=2,
        objects=0,
        class_names=(),
        attributes={},
        keypoints=None,
        visibility=None,
        keypoint_names=(),
        flip_pairs=(),
    )
    found = predict(tmp_path, DetectionDataModule(DrawnSource(predict=bare)), find, module={"class_names": CLASSES})
    assert [(each["image_id"], each["category_id"]) for each in results(found)] == [(1, 1), (2, 1)]


def test_every_set_has_its_file(tmp_path, table):
    other = draw_set(tmp_path / "set", num_images=2, objects=1)
    datamodule = DetectionDataModule(DrawnSource(predict=[table, other]))
    paths = predict(tmp_path, datamodule, name="found")
    assert [path.name for path in paths] == ["found-0.json", "found-1.json"]
    assert [len(json.loads(path.read_text())) for path in paths] == [table.num_objects, 2]


@pytest.mark.parametrize("kind", [DetectionDataModule, LandmarkDataModule])
def test_two_ranks_write_each_image_once(tmp_path, table, kind):
    size = {} if kind is DetectionDataModule else {"size": 32}
    datamodule = kind(DrawnSource(predict=table), batch_size=2, train_transforms=size)
    find = echo if kind is DetectionDataModule else of_crops
    alone = results(predict(tmp_path, datamodule, find))
    writer = PredictionWriter(folder=tmp_path / "ranks")
    trainer = trainer_of(tmp_path, writer, devices=2, strategy="ddp_fork")
    trainer.predict(Tiny(find), datamodule=datamodule, return_predictions=False)
    assert len(alone) == table.num_objects
    assert results([tmp_path / "ranks" / "predictions.json"]) == alone
