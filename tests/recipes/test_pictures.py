"""Pictures of predictions: what a task found, beside what is true, for every kind of batch."""

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


class Saying(LightningModule):
    """A model that finds what it was told to."""

    def __init__(self, found):
        super().__init__()
        self.found, self.inference, self.was_training = found, False, True

    def predict_step(self, batch, batch_idx):
        self.inference, self.was_training = torch.is_inference_mode_enabled(), self.training
        return self.found


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


def test_predicted_points_are_joined_to_the_true_ones_that_are_there(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, train_transforms={"size": 96})
    found = {"keypoints": batch.keypoints + 2}
    model = Saying(found)
    figure = draw_predictions(model, datamodule, batch, max_images=4)
    assert (model.inference, model.was_training) == (True, False)
    assert len(titles(figure)) == 4
    for i, axis in enumerate(figure.axes[:4]):
        inside = [point for point in found["keypoints"][i] if 0 <= point.min() <= point.max() < 94]
        assert inside
        assert {colour_at(axis, point) for point in inside} == {(255, 0, 0)}
    assert titles(figure) == [""] * 4


def test_a_wrong_class_of_a_crop_is_red_with_the_true_one_behind_it(table):
    datamodule, batch = batch_of(LandmarkDataModule, table, train_transforms={"size": 96})
    logits = torch.zeros(len(batch.labels), 3)
    logits[:, 0] = 1
    figure = draw_predictions(Saying({"keypoints": batch.keypoints, "class_logits": logits}), datamodule, batch)
    assert titles(figure) == ["common", "common", "common (true: rare)", "common", "common"]
    colours = [axis.title.get_color() for axis in figure.axes[:5]]
    assert [colour == RED for colour in colours] == [False, False, True, False, False]


def test_a_wrong_label_is_red_and_an_unknown_one_is_not_wrong(table):
    for stage, last in (("val", 5), ("predict", 6)):
        datamodule, batch = batch_of(ClassificationDataModule, table, stage, label_attribute="finish")
        assert len(batch.labels) == last
        figure = draw_predictions(Saying(torch.eye(3)[[0] * last]), datamodule, batch)
        wanted = ["plain" if label <= 0 else "plain (true: dotted)" for label in batch.labels.tolist()]
        assert titles(figure) == wanted
        assert [axis.title.get_color() == RED for axis in figure.axes[:last]] == [
            label > 0 for label in batch.labels.tolist()
        ]
    assert (batch.labels == -1).any()
    assert (batch.labels > 0).any()


def test_several_labels_are_those_above_a_half(table):
    datamodule, batch = batch_of(ClassificationDataModule, table, multi_label=True)
    found = torch.tensor([[0.9, 0.6, 0.4]]).expand(6, -1)
    texts = titles(draw_predictions(Saying(found), datamodule, batch))
    assert texts[:3] == [f"common, rare (true: {name})" for name in ("common", "common", "rare")]


def test_boxes_are_the_predicted_ones_above_the_score(table, monkeypatch):
    drawn = []
    draw = pictures.draw_texts

    def noted(canvas, boxes, texts, colours):
        drawn.append(texts)
        return draw(canvas, boxes, texts, colours)

    monkeypatch.setattr(pictures, "draw_texts", noted)
    datamodule, batch = batch_of(MultiTaskDataModule, table)
    one = {
        "boxes": torch.tensor([[1.0, 1, 9, 9], [2, 2, 8, 8]]),
        "labels": torch.tensor([2, 1]),
        "scores": torch.tensor([0.9, 0.3]),
        "keypoints": torch.ones(2, 3, 2),
        "finish": torch.tensor([2, 0]),
    }
    draw_predictions(Saying([one] * 6), datamodule, batch)
    assert drawn[-1] == ["rare, hollow 0.90"]
    draw_predictions(Saying([one] * 6), datamodule, batch, min_score=0.0)
    assert len(drawn[-1]) == 2
    without = {name: value for name, value in one.items() if name not in ("finish", "keypoints")}
    draw_predictions(Saying([without] * 6), datamodule, batch)  # a detector on a set of several tasks
    assert drawn[-1] == ["rare 0.90"]


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=["masks", "masks with a channel"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_detections_above_the_score_are_drawn(table, shape, dtype):
    datamodule, batch = batch_of(DetectionDataModule, table)
    masks = torch.zeros(*shape, 48, 64)
    masks[0, ..., 2:8, 30:36] = 0.9 if dtype == torch.float32 else 1
    masks[0, ..., 12:18, 30:36] = 0.4 if dtype == torch.float32 else 0
    masks[1] = 1
    one = {
        "boxes": torch.tensor([[20.0, 40, 30, 47], [0, 0, 3, 3]]),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.9, 0.3]),
    }
    pictures = [
        draw_predictions(Saying([found] * 6), datamodule, batch).axes[0].images[0].get_array()
        for found in (one, one | {"masks": masks.to(dtype)})
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
        (ClassificationDataModule, {"sample_unit": "object"}, ClassificationTask, "classifier_small"),
        (ClassificationDataModule, {"multi_label": True}, ClassificationTask, "classifier_small"),
        (MultiTaskDataModule, {}, MultiTask, "fcos_small"),
    ],
)
@pytest.mark.parametrize("stage", ["val", "predict"])
def test_every_task_is_drawn_on_its_own_data_labelled_or_not(table, tmp_path, kind, settings, task, name, stage):
    names = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    bare = draw_set(tmp_path / "bare", num_images=6, objects=1, attributes={}, **names)
    datamodule = kind(DrawnSource(train=table, val=table, predict=bare), batch_size=6, **settings)
    model = task(name, **model_kwargs_from_datamodule(datamodule))
    figure = draw_predictions(model, datamodule, datamodule.first_batch(stage), max_images=3, min_score=0.0)
    assert len(titles(figure)) == 3


def test_points_found_where_none_are_known_are_drawn_alone(tmp_path):
    names = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    bare = draw_set(tmp_path / "bare", num_images=2, objects=1, **names)
    datamodule = LandmarkDataModule(DrawnSource(predict=bare), train_transforms={"size": 96})
    figure = draw_predictions(Saying({"keypoints": torch.ones(2, 5, 2)}), datamodule, datamodule.first_batch("predict"))
    for axis in figure.axes[:2]:
        pixels = axis.images[0].get_array().reshape(-1, 3)
        assert colour_at(axis, torch.ones(2)) == (255, 0, 0)
        assert not ((pixels == (0, 255, 0)).all(axis=1)).any()
