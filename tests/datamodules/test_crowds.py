"""Regions marked as crowds: in no training sample and no count of a training set, in evaluation with `iscrowd`."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.collate import batch_labels, batch_targets
from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from tests.support.drawn_set import DrawnSource, draw_set

TASKS = {
    "detection": (DetectionDataModule, {}),
    "multi-task": (MultiTaskDataModule, {}),
    "landmarks of images": (LandmarkDataModule, {"sample_unit": "image", "min_points": 0}),
    "landmarks": (LandmarkDataModule, {"min_points": 0}),
    "objects": (ClassificationDataModule, {"sample_unit": "object"}),
    "images": (ClassificationDataModule, {"multi_label": True}),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Eight images with 0, 1, 2, 3, 0, 1, 2, 3 objects; all of class "rare" and all of the second image are crowds."""
    drawn = draw_set(tmp_path_factory.mktemp("crowds"), num_images=8)
    crowd = (drawn.labels == 1) | (drawn.image_of_object() == 1)
    return draw_set(drawn.root, num_images=8, crowd=crowd)


@pytest.mark.parametrize("task", TASKS)
def test_they_reach_no_training_batch_and_no_count(table, task):
    kind, settings = TASKS[task]
    datamodule = kind(DrawnSource(train=table, val=table), batch_size=32, **settings)
    assert 1 not in batch_labels(datamodule.first_batch("train")).tolist()
    (train,) = datamodule.tables("train")
    assert train.num_objects == table.num_objects - table.crowd.sum()
    assert str(table.image_path(1)) not in map(str, map(train.image_path, range(train.num_images)))
    summary = datamodule.summaries()[0]
    assert (summary.class_counts[1], summary.num_crowd) == (0, table.crowd.sum())
    assert f"{table.crowd.sum()} crowd regions left out" in datamodule.summary()


@pytest.mark.parametrize("task", ["detection", "multi-task", "landmarks of images"])
def test_evaluation_of_images_keeps_them_marked(table, task):
    kind, settings = TASKS[task]
    datamodule = kind(DrawnSource(train=table, val=table), batch_size=32, **settings)
    targets = batch_targets(datamodule.first_batch("val"))
    assert np.concatenate([target["iscrowd"] for target in targets]).tolist() == table.crowd.tolist()


def test_a_set_without_them_is_the_same_table(table, tmp_path):
    plain = draw_set(tmp_path, num_images=4)
    assert plain.without_crowds() is plain
