"""The landmark data set: one object a sample."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.datasets import LandmarkDataset, every_sample, labelled_samples, landmark_samples
from lit_loader.transforms import landmark_transforms
from tests.support.drawn_set import draw_set


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path)


def crops(size=32, **settings):
    return landmark_transforms(False, size=size, **settings)


def test_a_sample_is_one_object_with_points(table):
    dataset = LandmarkDataset(table, attributes="all")
    present = (table.visibility > 0).any(axis=1)
    assert len(dataset) == present.sum() == len(table.labels) - dataset.num_left_out
    samples = [target for _, target in dataset]
    assert all(len(target[name]) == 1 for target in samples for name in ("boxes", "keypoints", "finish"))
    assert [int(target["labels"]) for target in samples] == table.labels[present].tolist()
    assert [target["image_id"] for target in samples] == list(range(len(dataset)))


@pytest.mark.parametrize("min_points", [0, 1, 2, 3])
def test_objects_with_too_few_points_are_left_out_and_counted(table, min_points):
    dataset = LandmarkDataset(table, min_points=min_points)
    enough = (table.visibility > 0).sum(axis=1) >= min_points
    assert (len(dataset), dataset.num_left_out) == (enough.sum(), (~enough).sum())
    assert 0 < dataset.num_left_out < len(enough) or min_points == 0


def test_marks_lie_where_the_points_of_a_crop_say(table):
    checked = 0
    for image, target in LandmarkDataset(table, transforms=crops(size=64)):
        for (x, y), seen in zip(target["keypoints"][0].tolist(), target["visibility"][0].tolist(), strict=True):
            if seen:
                assert image[:, int(y), int(x)].min() > 0.9
                checked += 1
    assert checked > 10


def test_a_crop_is_told_in_pixels_of_the_image(table):
    dataset = LandmarkDataset(table, transforms=crops(margin=0.0))
    uncropped = LandmarkDataset(table)
    for (_, cut), (_, full) in zip(dataset, uncropped, strict=True):
        box = full["boxes"][0]
        crop = cut["crop"][0]
        assert (crop[:2] <= box[:2] + 0.5).all()
        assert (crop[2:] >= box[2:] - 0.5).all()


def test_samples_of_samples_are_the_same(table):
    samples, left_out = landmark_samples(table, min_points=3)
    assert left_out > 0
    samples_of_samples = landmark_samples(samples, min_points=3)
    assert samples_of_samples.table is samples
    assert samples_of_samples.num_left_out == 0


def test_whole_images_stay_with_all_their_objects(table):
    samples, left_out = landmark_samples(table, sample_unit="image", min_points=3)
    enough = (table.visibility > 0).sum(axis=1) >= 3
    image_rows = np.unique(table.image_of_object()[enough])
    assert samples.num_images == len(image_rows) == table.num_images - left_out
    assert samples.num_objects > enough.sum()
    assert landmark_samples(table, sample_unit="image", min_points=0).table is table


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_points": -1}, r"min_points=-1 must be in \[0, 3\]"),
        ({"min_points": 4}, r"min_points=4 must be in \[0, 3\]"),
        ({"sample_unit": "box"}, "sample_unit='box'"),
    ],
)
def test_wrong_settings_are_refused(table, settings, message):
    with pytest.raises(ValueError, match=message):
        landmark_samples(table, **settings)


def test_a_set_without_any_sample_is_refused(tmp_path):
    table = draw_set(tmp_path, num_images=2, objects=1, visibility=np.zeros((2, 3), dtype=np.uint8))
    for sample_unit in ("object", "image"):
        with pytest.raises(ValueError, match=r"no sample is left of AnnotationTable.*min_points=1"):
            landmark_samples(table, sample_unit=sample_unit)


def test_an_object_beside_its_image_cannot_be_cut_and_is_left_out(tmp_path):
    # the image is 64 x 48
    inside = [4, 4, 20, 20]
    beside = [70, 4, 90, 20]
    edge = [60, 40, 99, 99]
    turned = [4, 50, 20, 60]
    nothing = [9, 9, 9, 20]
    boxes = [inside, beside, edge, turned, nothing]
    columns = {"num_images": 5, "objects": 1, "boxes": boxes, "labels": [0] * 5, "visibility": [[2, 2, 2]] * 5}
    table = draw_set(tmp_path, **columns)
    samples, left_out = landmark_samples(table)
    assert (samples.boxes.tolist(), left_out) == ([inside, edge, turned], 2)
    assert labelled_samples(table, sample_unit="object").table.boxes.tolist() == [inside, edge, turned]
    assert landmark_samples(table, sample_unit="image").table.num_images == 5
    assert every_sample(table, sample_unit="object").table.num_images == 5
    unknown = draw_set(tmp_path, **columns, widths=[0] * 5, heights=[0] * 5)
    assert landmark_samples(unknown)[0].boxes.tolist() == [inside, beside, edge, turned]
