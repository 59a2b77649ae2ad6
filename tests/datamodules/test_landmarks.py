"""The landmark data module: object crops, or whole images, with points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_loader.collate import LandmarkBatch, MultiTaskBatch
from lit_loader.datamodules import LandmarkDataModule
from lit_loader.recipes import LandmarkTask
from tests.support.drawn_set import CLASSES, FINISHES, POINTS, DrawnSource, draw_set, drawn_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


def test_a_batch_holds_one_object_a_sample(source):
    datamodule = LandmarkDataModule(source, batch_size=6, attributes="all", train_transforms={"size": 40})
    batch = datamodule.first_batch("train")
    assert isinstance(batch, LandmarkBatch)
    assert batch.images.shape == (6, 3, 40, 40)
    assert (batch.images.dtype, batch.labels.min() >= 0) == (torch.float32, True)
    assert batch.mask.any(dim=1).all()
    assert list(batch.attributes) == ["finish"]
    assert datamodule.class_names == CLASSES
    assert datamodule.keypoint_schema.names == POINTS
    assert datamodule.attributes == {"finish": FINISHES}


def test_marks_lie_where_the_points_say_after_augmentation(source):
    settings = {"size": 64, "rotation": 20, "shift": 0.1, "scale": [0.9, 1.1], "hflip": 0.5, "to_float": True}
    datamodule = LandmarkDataModule(source, batch_size=8, train_transforms=settings)
    checked = bright = 0
    with datamodule.train_dataloader() as loader:
        for batch in loader:
            for i, k in batch.mask.nonzero().tolist():
                x, y = batch.keypoints[i, k].int().clamp(0, 63).tolist()
                bright += int(batch.images[i, :, y, x].min() > 0.75)
                checked += 1
    assert checked > 40
    assert bright > 0.97 * checked  # a point at the very rim may round to a pixel beside its mark


def test_whole_images_come_as_a_batch_of_several_tasks(source):
    datamodule = LandmarkDataModule(source, sample_unit="image", batch_size=5, size_divisor=32)
    batch = datamodule.first_batch("val")
    assert isinstance(batch, MultiTaskBatch)
    assert batch.images.shape == (5, 3, 64, 64)
    assert batch.sizes.tolist() == [[48, 64]] * 5
    assert batch.keypoint_mask.flatten(1).any(dim=1).all()
    assert batch.labels[batch.object_mask].min() == 1


@pytest.mark.parametrize(("sample_unit", "min_points"), [("object", 0), ("object", 1), ("object", 3), ("image", 3)])
def test_samples_with_too_few_points_are_left_out_and_reported(source, sample_unit, min_points):
    datamodule = LandmarkDataModule(source, sample_unit=sample_unit, min_points=min_points)
    train = datamodule.summaries()[0]
    (annotations,) = source.tables("train")
    (table,) = datamodule.tables("train")
    enough = (annotations.visibility > 0).sum(axis=1) >= min_points
    images = np.unique(annotations.image_of_object()[enough])
    num_expected, total = (
        (enough.sum(), len(enough)) if sample_unit == "object" else (len(images), annotations.num_images)
    )
    assert (train.num_images, train.num_left_out) == (table.num_images, total - num_expected)
    assert train.num_images == num_expected
    is_reported = f"{train.num_left_out} left out" in datamodule.summary()
    assert is_reported == (train.num_left_out > 0)


def test_the_table_gives_the_flip_pairs(source):
    def flipped(**settings):
        keywords = {"size": 64, "hflip": 1.0, **settings}
        datamodule = LandmarkDataModule(source, batch_size=8, train_transforms=keywords, val_transforms=keywords)
        return datamodule.train_dataloader().dataset

    mirrored = flipped()
    straight = LandmarkDataModule(source, train_transforms={"size": 64, "hflip": 0}).train_dataloader().dataset
    unswapped = flipped(flip_pairs=[])  # the user's keywords override the table's
    for i in range(4):
        _, target = mirrored[i]
        _, plain = straight[i]
        _, wrong = unswapped[i]
        points = plain["keypoints"][0].as_subclass(torch.Tensor)
        expected = torch.stack([64 - points[:, 0], points[:, 1]], dim=1)
        assert torch.allclose(target["keypoints"][0, :2], expected[[1, 0]], atol=1e-4)
        assert torch.allclose(wrong["keypoints"][0, :2], expected[:2], atol=1e-4)


def test_missing_points_and_attributes_are_refused(source, tmp_path):
    with pytest.raises(ValueError, match=r"min_points=4 must be in \[0, 3\]"):
        LandmarkDataModule(source, min_points=4).train_dataloader()
    with pytest.raises(ValueError, match="'colour'"):
        LandmarkDataModule(source, attributes=["colour"]).train_dataloader()
    bare = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    with pytest.raises(ValueError, match="no object of AnnotationTable"):
        LandmarkDataModule(DrawnSource(train=draw_set(tmp_path, **bare))).train_dataloader()


@pytest.mark.parametrize("sample_unit", ["object", "image"])
def test_a_picture_of_a_batch_is_saved(source, tmp_path, sample_unit):
    datamodule = LandmarkDataModule(source, sample_unit=sample_unit, batch_size=4, attributes="all")
    figure = datamodule.plot_batch("val", path=tmp_path / "batch.png")
    assert (tmp_path / "batch.png").stat().st_size > 5000
    assert all(axis.images for axis in figure.axes)
    titles = [axis.get_title() for axis in figure.axes]
    assert any(", plain" in text for text in titles) is (sample_unit == "object")


@pytest.mark.parametrize(
    ("around", "sentence"),
    [
        ("box", "around annotated boxes, not around a detector's boxes"),
        ("points", "around the true points"),
        ("image", "show whole images"),
    ],
)
def test_the_summary_says_what_evaluation_crops_around(source, around, sentence):
    datamodule = LandmarkDataModule(source, train_transforms={"size": 32, "around": around, "margin": 0})
    assert sentence in datamodule.summary()


def test_around_image_shows_whole_images_that_the_landmark_task_learns(source):
    datamodule = LandmarkDataModule(
        source, batch_size=4, train_transforms={"size": 64, "around": "image", "margin": 0, "hflip": 0}
    )
    batch = datamodule.first_batch("val")
    table = datamodule.tables("val")[0]
    sides = np.maximum(table.widths[:4], table.heights[:4]).astype(np.float32)
    assert torch.allclose(batch.crops[:, 2] - batch.crops[:, 0], torch.from_numpy(sides))
    task = LandmarkTask("heatmaps_small", keypoint_names=POINTS)
    task.log_dict = lambda *_, **__: None
    assert torch.isfinite(task.training_step(batch, 0))


def test_whole_images_with_all_objects_are_refused_by_the_landmark_task_with_the_remedy(source):
    batch = LandmarkDataModule(source, sample_unit="image", batch_size=2).first_batch("val")
    with pytest.raises(TypeError, match=r"got a MultiTaskBatch; .* sample_unit='object', .* MultiTask"):
        LandmarkTask("heatmaps_small", keypoint_names=POINTS).training_step(batch, 0)
