"""Pictures of predictions next to the ground truth, for every kind of batch."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule

from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    pictures,
)
from lit_loader.recipes import (
    ClassificationTask,
    DetectionTask,
    LandmarkTask,
    MultiTask,
    draw_predictions,
    model_kwargs_from_datamodule,
)
from tests.support.drawn_set import DrawnSource, draw_set

RED = "#e6194b"


NO_POINTS = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}


class Constant(LightningModule):
    """A model that returns the same prediction for every batch."""

    def __init__(self, prediction):
        super().__init__()
        self.prediction = prediction
        self.modes = []

    def predict_step(self, batch, batch_idx):
        self.modes.append((torch.is_inference_mode_enabled(), self.training))
        return self.prediction


@pytest.fixture
def table(tmp_path):
    """Six images of one object each: classes common, common, rare, common, pointless, common."""
    return draw_set(tmp_path / "set", num_images=6, objects=1)


def batch_of(kind, table, stage="val", **settings):
    datamodule = kind(DrawnSource(train=table, **{stage: table}), batch_size=6, **settings)
    return datamodule, datamodule.first_batch(stage)


def colour_at(axis, point):
    """Return the colour at a point of a crop of 96 pixels, which is drawn four times as large."""
    x, y = (min(int(value * 4), 383) for value in point.tolist())
    return tuple(axis.images[0].get_array()[y, x].tolist())


def titles(figure):
    return [axis.get_title() for axis in figure.axes if axis.images]


def test_predicted_points_are_drawn_next_to_the_true_points(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, train_transforms={"size": 96})
    points = batch.keypoints + 2
    model = Constant({"keypoints": points})
    figure = draw_predictions(model, datamodule, batch, max_images=4)
    assert model.modes == [(True, False)]
    for i, axis in enumerate(figure.axes[:4]):
        inside = [point for point in points[i] if 0 <= point.min() <= point.max() < 94]
        assert inside
        assert {colour_at(axis, point) for point in inside} == {(255, 0, 0)}
    assert titles(figure) == [""] * 4


def test_wrong_class_of_a_crop_is_red_with_the_true_class_after_it(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, train_transforms={"size": 96})
    logits = torch.zeros(len(batch.labels), 3)
    logits[:, 0] = 1
    figure = draw_predictions(Constant({"keypoints": batch.keypoints, "class_logits": logits}), datamodule, batch)
    assert titles(figure) == ["common", "common", "common (true: rare)", "common", "common"]
    colours = [axis.title.get_color() for axis in figure.axes[:5]]
    assert [colour == RED for colour in colours] == [False, False, True, False, False]


def test_wrong_label_is_red_unless_the_true_label_is_unknown(table):
    for stage, last in (("val", 5), ("predict", 6)):
        datamodule, batch = batch_of(ClassificationDataModule, table, stage, label_attribute="finish")
        assert len(batch.labels) == last
        figure = draw_predictions(Constant(torch.eye(3)[[0] * last]), datamodule, batch)
        assert titles(figure) == ["plain" if label <= 0 else "plain (true: dotted)" for label in batch.labels.tolist()]
        assert [axis.title.get_color() == RED for axis in figure.axes[:last]] == [
            label > 0 for label in batch.labels.tolist()
        ]
    assert (batch.labels == -1).any()
    assert (batch.labels > 0).any()


def test_multiple_labels_have_a_probability_above_one_half(table):
    datamodule, batch = batch_of(ClassificationDataModule, table, multi_label=True)
    probabilities = torch.tensor([[0.9, 0.6, 0.4]]).expand(6, -1)
    texts = titles(draw_predictions(Constant(probabilities), datamodule, batch))
    assert texts[:3] == [f"common, rare (true: {name})" for name in ("common", "common", "rare")]


def test_only_boxes_above_the_score_are_drawn(table, monkeypatch):
    drawn = []
    draw = pictures.draw_texts

    def record(canvas, boxes, texts, colours):
        drawn.append(texts)
        return draw(canvas, boxes, texts, colours)

    monkeypatch.setattr(pictures, "draw_texts", record)
    datamodule, batch = batch_of(MultiTaskDataModule, table)
    detection = {
        "boxes": torch.tensor([[1.0, 1, 9, 9], [2, 2, 8, 8]]),
        "labels": torch.tensor([2, 1]),
        "scores": torch.tensor([0.9, 0.3]),
        "keypoints": torch.ones(2, 3, 2),
        "finish": torch.tensor([2, 0]),
    }
    draw_predictions(Constant([detection] * 6), datamodule, batch)
    # The last two canvases are a prediction and its ground truth.
    assert drawn[-2] == ["rare, hollow 0.90"]
    draw_predictions(Constant([detection] * 6), datamodule, batch, min_score=0.0)
    assert len(drawn[-2]) == 2
    boxes_only = {name: value for name, value in detection.items() if name not in ("finish", "keypoints")}
    draw_predictions(Constant([boxes_only] * 6), datamodule, batch)  # a detector on a set of several tasks
    assert drawn[-2] == ["rare 0.90"]


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=["masks", "masks with a channel"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_detections_above_the_score_are_drawn(table, shape, dtype):
    datamodule, batch = batch_of(DetectionDataModule, table)
    masks = torch.zeros(*shape, 48, 64)
    masks[0, ..., 2:8, 30:36] = 0.9 if dtype == torch.float32 else 1
    masks[0, ..., 12:18, 30:36] = 0.4 if dtype == torch.float32 else 0
    masks[1] = 1
    detection = {
        "boxes": torch.tensor([[20.0, 40, 30, 47], [0, 0, 3, 3]]),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.9, 0.3]),
    }
    pictures = [
        draw_predictions(Constant([fields] * 6), datamodule, batch).axes[0].images[0].get_array()
        for fields in (detection, detection | {"masks": masks.to(dtype)})
    ]
    zoom = pictures[0].shape[0] // 48
    predicted = [picture[:, -64 * zoom :] for picture in pictures]  # to the right of the true ones
    changed = (predicted[0] != predicted[1]).any(axis=2)[zoom // 2 :: zoom, zoom // 2 :: zoom]
    assert changed[2:8, 30:36].all()
    assert changed.sum() == 36


@pytest.mark.parametrize(
    ("kind", "settings", "task", "name"),
    [
        (DetectionDataModule, {}, DetectionTask, "fcos_small"),
        (LandmarkDataModule, {}, LandmarkTask, "heatmaps_small"),
        (LandmarkDataModule, {"attributes": ["finish"]}, LandmarkTask, "regression_small"),
        (ClassificationDataModule, {"sample_unit": "object"}, ClassificationTask, "classifier_small"),
        (ClassificationDataModule, {"multi_label": True}, ClassificationTask, "classifier_small"),
        (MultiTaskDataModule, {}, MultiTask, "fcos_small"),
    ],
)
@pytest.mark.parametrize("stage", ["val", "predict"])
def test_every_task_is_drawn_on_labelled_and_unlabelled_data(table, tmp_path, kind, settings, task, name, stage):
    bare = draw_set(tmp_path / "bare", num_images=6, objects=1, attributes={}, **NO_POINTS)
    datamodule = kind(DrawnSource(train=table, val=table, predict=bare), batch_size=6, **settings)
    model = task(name, **model_kwargs_from_datamodule(datamodule))
    figure = draw_predictions(model, datamodule, datamodule.first_batch(stage), max_images=3, min_score=0.0)
    assert len(titles(figure)) == 3


def test_wrong_attribute_of_a_crop_is_drawn_with_the_true_one(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, attributes=["finish"])
    batch.attributes["finish"][0] = -1
    logits = torch.tensor([1.0, 0.0, 0.0]).expand(len(batch.labels), 3)
    prediction = {"keypoints": batch.keypoints, "attribute_logits": {"finish": logits, "unknown to the data": logits}}
    names = datamodule.attributes["finish"]
    expected = []
    for label, finish in zip(batch.labels.tolist(), batch.attributes["finish"].tolist(), strict=True):
        text = f"{datamodule.class_names[label]}, plain"
        # An unknown finish is not wrong.
        is_wrong = finish > 0
        expected.append(f"{text} (true: {datamodule.class_names[label]}, {names[finish]})" if is_wrong else text)
    assert titles(draw_predictions(Constant(prediction), datamodule, batch)) == expected
    assert {-1, 0, 1} <= set(batch.attributes["finish"].tolist())


def test_wrong_class_is_drawn_where_an_attribute_is_unknown_and_the_other_way_round(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, attributes=["finish"])
    logits = torch.eye(3)[[0] * len(batch.labels)]
    # Predicted are class 0, common, and finish 0, plain.
    batch.labels[:4] = torch.tensor([1, 0, -1, -1])
    batch.attributes["finish"][:4] = torch.tensor([-1, -1, 1, 0])
    prediction = {"keypoints": batch.keypoints, "class_logits": logits, "attribute_logits": {"finish": logits}}
    expected = ["common, plain (true: rare)", "common, plain", "common, plain (true: unknown, dotted)", "common, plain"]
    assert titles(draw_predictions(Constant(prediction), datamodule, batch))[:4] == expected


def test_predicted_points_of_unlabelled_crops_are_drawn_alone(tmp_path):
    bare = draw_set(tmp_path / "bare", num_images=2, objects=1, **NO_POINTS)
    datamodule = LandmarkDataModule(DrawnSource(predict=bare), train_transforms={"size": 96})
    figure = draw_predictions(
        Constant({"keypoints": torch.ones(2, 5, 2)}), datamodule, datamodule.first_batch("predict")
    )
    for axis in figure.axes[:2]:
        pixels = axis.images[0].get_array().reshape(-1, 3)
        assert colour_at(axis, torch.ones(2)) == (255, 0, 0)
        assert not ((pixels == (0, 255, 0)).all(axis=1)).any()
