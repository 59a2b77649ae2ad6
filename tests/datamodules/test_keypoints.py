"""Batches of the keypoint data module: points as the model gets them, mirrored pairs, and objects without points."""

from __future__ import annotations

import logging
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from lit_loader import DetectionDataModule, KeypointDataModule
from lit_loader.datasets import keypoint_samples
from lit_loader.recipes import (
    DetectionTask,
    KeypointTask,
    check_model_fits,
    draw_predictions,
    keypointrcnn_small,
    model_kwargs_from_datamodule,
    task_of,
)
from tests.recipes.test_keypoints import NET
from tests.support.drawn_set import CLASSES, POINTS, SIZE, DrawnSource, draw_set

STILL = {"hflip": 0.0, "photometric": 0.0}


def batch_of(table, **settings):
    keywords = {"batch_size": 12, "num_workers": 0, "train_sampler": None, "seed": 0}
    return KeypointDataModule(DrawnSource(train=table), **keywords | settings)


def targets_by_id(datamodule):
    return {target["image_id"]: target for target in datamodule.first_batch("train")[1]}


def test_model_gets_the_points_of_the_table_with_their_visibility(tmp_path):
    table = draw_set(tmp_path)
    datamodule = batch_of(table, train_transforms=STILL)
    kwargs = model_kwargs_from_datamodule(datamodule)
    model = KeypointTask("keypointrcnn_small", **kwargs)
    images, targets = datamodule.first_batch("train")
    read = model.read_targets((images, targets))
    assert sum(len(target["keypoints"]) for target in read) == table.num_objects
    for target, fields in zip(read, targets, strict=True):
        rows = table.objects(fields["image_id"])
        present = np.where(table.visibility[rows][..., None] > 0, table.keypoints[rows], 0)
        assert target["keypoints"].dtype == torch.float32
        np.testing.assert_array_equal(target["keypoints"][..., :2], present)
        np.testing.assert_array_equal(target["keypoints"][..., 2], table.visibility[rows])


def test_flip_exchanges_mirror_pairs_in_the_targets_of_the_model(tmp_path):
    table = draw_set(tmp_path)
    plain = targets_by_id(batch_of(table, train_transforms=STILL))
    flipped = targets_by_id(batch_of(table, train_transforms=STILL | {"hflip": 1.0}))
    num_points = 0
    for number, target in plain.items():
        order = [1, 0, 2]
        visibility = target["visibility"][:, order]
        assert torch.equal(flipped[number]["visibility"], visibility)
        expected = target["keypoints"].as_subclass(torch.Tensor)[:, order].clone()
        expected[..., 0] = SIZE[0] - expected[..., 0]
        is_present = visibility > 0
        points = flipped[number]["keypoints"].as_subclass(torch.Tensor)
        torch.testing.assert_close(points[is_present], expected[is_present])
        num_points += int(is_present.sum())
    assert num_points > 10


def test_images_are_not_flipped_without_known_mirror_pairs(tmp_path):
    table = draw_set(tmp_path, flip_pairs=[])
    still, default = (targets_by_id(batch_of(table, train_transforms=k)) for k in (STILL, {"hflip": None}))
    assert all(torch.equal(default[n]["boxes"], target["boxes"]) for n, target in still.items())


def test_a_flip_without_the_pair_of_a_side_warns_before_training_only(tmp_path):
    table = draw_set(tmp_path, num_images=4, flip_pairs=[(0, 2)])
    with pytest.warns(UserWarning, match=r"do not exchange left and right of the points 'right', so"):
        batch_of(table).first_batch("train")
    with warnings.catch_warnings(action="error"):
        batch_of(table, train_transforms=STILL).first_batch("train")
        # The check leaves pairs alone that the user passes, complete or not.
        batch_of(table, train_transforms={"flip_pairs": [(0, 1)]}).first_batch("train")
        KeypointDataModule(DrawnSource(val=table), num_workers=0).first_batch("val")
        batch_of(draw_set(tmp_path, num_images=4)).first_batch("train")


def test_mirror_pairs_are_those_that_training_exchanges(tmp_path):
    table = draw_set(tmp_path, num_images=4)

    def pairs_of(table=table, kind=KeypointDataModule, **keywords):
        return kind(DrawnSource(train=table), train_transforms=keywords).mirror_pairs(table)

    assert pairs_of() == pairs_of(hflip=None) == pairs_of(hflip=0.1) == ((0, 1),)
    assert pairs_of(flip_pairs=[[1, 2]]) == ((1, 2),)
    assert pairs_of(hflip=0.0) == pairs_of(flip_pairs=[]) == ()
    assert pairs_of(kind=DetectionDataModule) == ()
    without = draw_set(tmp_path, num_images=4, flip_pairs=[])
    assert pairs_of(without) == ()
    assert pairs_of(without, flip_pairs=[(0, 1)]) == ((0, 1),)
    custom = KeypointDataModule(DrawnSource(train=table), train_transforms=lambda image, target: (image, target))
    assert custom.mirror_pairs(table) == ()


@pytest.mark.parametrize("min_points", [0, 1, 3])
def test_objects_with_too_few_points_are_left_out(tmp_path, min_points):
    table = draw_set(tmp_path)
    datamodule = batch_of(table, min_points=min_points, train_transforms=STILL)
    counts = [(target["visibility"] > 0).sum(dim=1) for target in datamodule.first_batch("train")[1]]
    expected = (table.visibility > 0).sum(axis=1)
    assert sorted(torch.cat(counts).tolist()) == sorted(expected[expected >= min_points].tolist())
    assert keypoint_samples(table, min_points=min_points).num_left_out == (expected < min_points).sum()


def test_message_counts_left_out_objects_and_images(tmp_path, caplog):
    table = draw_set(tmp_path, num_images=4, objects=1, labels=[2, 0, 0, 0], visibility=[[0] * 3, *[[2] * 3] * 3])
    with caplog.at_level(logging.INFO):
        batch_of(table, min_points=1).first_batch("train")
    assert "train: 1 image and 1 object left out, 3 samples stay" in caplog.messages


def test_images_without_any_object_stay_and_images_of_left_out_objects_go(tmp_path):
    labels = [2, 0, 0, 0]
    table = draw_set(tmp_path, num_images=4, objects=1, labels=labels, visibility=[[0] * 3, *[[2] * 3] * 3])
    assert keypoint_samples(table, min_points=1).table.num_images == 3
    table = draw_set(tmp_path, num_images=4)
    assert keypoint_samples(table, min_points=1).table.num_images >= 1
    assert 0 in np.diff(keypoint_samples(table, min_points=1).table.offsets)


def test_wrong_settings_and_data_without_points_are_refused(tmp_path):
    bare = draw_set(tmp_path, keypoints=None, visibility=None, keypoint_names=(), flip_pairs=())
    with pytest.raises(ValueError, match=r"no object of .* has points"):
        batch_of(bare).first_batch("train")
    with pytest.raises(ValueError, match="no points; read it with a keypoint schema"):
        model_kwargs_from_datamodule(KeypointDataModule(DrawnSource(predict=bare)))
    table = draw_set(tmp_path)
    with pytest.raises(ValueError, match="masks=True has no effect on points"):
        batch_of(table, masks=True)
    with pytest.raises(ValueError, match="oriented='rotated' has no effect on points"):
        batch_of(table, oriented="rotated")
    with pytest.raises(ValueError, match="min_points=-1 must be at least 0"):
        batch_of(table, min_points=-1)
    with pytest.raises(ValueError, match=r"min_points=9 must be in \[0, 3\]"):
        batch_of(table, min_points=9).first_batch("train")


def test_prediction_gets_images_without_points(tmp_path):
    bare = draw_set(tmp_path, keypoints=None, visibility=None, keypoint_names=(), flip_pairs=())
    datamodule = KeypointDataModule(DrawnSource(predict=bare), num_workers=0, min_points=1)
    _, targets = datamodule.first_batch("predict")
    assert all("keypoints" not in target for target in targets)


def test_arguments_of_the_task_follow_from_the_data_and_the_pair_fits(tmp_path):
    table = draw_set(tmp_path, keypoint_sigmas=(0.1, 0.2, 0.3), normalization_pair=(0, 1))
    kwargs = model_kwargs_from_datamodule(KeypointDataModule(DrawnSource(train=table)))
    assert kwargs == {
        "class_names": list(CLASSES),
        "keypoint_names": list(POINTS),
        "normalization_pair": [0, 1],
        "sigmas": [0.1, 0.2, 0.3],
    }
    assert task_of(KeypointDataModule) is KeypointTask
    check_model_fits(KeypointDataModule, KeypointTask)
    with pytest.raises(ValueError, match="batches for a KeypointTask, and the model is a DetectionTask"):
        check_model_fits(KeypointDataModule, DetectionTask)
    with pytest.raises(ValueError, match="batches for a DetectionTask, and the model is a KeypointTask"):
        check_model_fits(KeypointDataModule.__base__, KeypointTask)


def test_batch_and_predictions_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    datamodule = batch_of(draw_set(tmp_path), batch_size=2, train_transforms=STILL)
    datamodule.plot_batch(max_images=2)
    model = KeypointTask(partial(keypointrcnn_small, **NET), **model_kwargs_from_datamodule(datamodule))
    assert draw_predictions(model, datamodule, datamodule.first_batch("train"), min_score=0.0).axes
