"""Collation of object crops with points."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.collate import (
    ClassificationCollate,
    LandmarkBatch,
    LandmarkCollate,
    MultiTaskCollate,
    batch_images,
    batch_labels,
    batch_targets,
)


def sample(i, *, size=(8, 8), **fields):
    box = torch.tensor([[1.0, 2.0, 5.0, 6.0]]) + i
    target = {
        "boxes": tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=size),
        "labels": torch.tensor([i % 2]),
        "keypoints": tv_tensors.KeyPoints(torch.full((1, 3, 2), float(i)), canvas_size=size),
        "visibility": torch.tensor([[0, 1, 2]], dtype=torch.uint8),
        "crop": torch.tensor([[0.0, 0.0, 10.0, 10.0 + i]]),
        "finish": torch.tensor([-1 if i == 0 else i]),
        "image_id": i,
        "is_duplicate": i == 3,
    }
    return tv_tensors.Image(torch.full((3, *size), float(i))), {**target, **fields}


def without(name):
    image, target = sample(0)
    return image, {key: value for key, value in target.items() if key != name}


def test_batch_has_one_row_per_sample_in_plain_tensors():
    batch = LandmarkCollate(attributes=["finish"])([sample(0), sample(3)])
    assert isinstance(batch, LandmarkBatch)
    shapes = {name: tuple(value.shape) for name, value in batch._asdict().items() if name != "attributes"}
    assert shapes == {
        "images": (2, 3, 8, 8),
        "keypoints": (2, 3, 2),
        "visibility": (2, 3),
        "mask": (2, 3),
        "boxes": (2, 4),
        "labels": (2,),
        "crops": (2, 4),
        "image_ids": (2,),
        "is_duplicate": (2,),
    }
    assert batch.mask.tolist() == [[False, True, True]] * 2
    assert batch.keypoints[1].tolist() == [[3, 3]] * 3
    assert batch.boxes[1].tolist() == [4, 5, 8, 9]
    assert batch.labels.tolist() == [0, 1]
    assert batch.attributes["finish"].tolist() == [-1, 3]
    assert batch.crops[1].tolist() == [0, 0, 10, 13]
    assert batch.image_ids.tolist() == [0, 3]
    assert (batch.is_duplicate.tolist(), batch.is_duplicate.dtype) == ([False, True], torch.bool)
    dtypes = [batch.keypoints.dtype, batch.visibility.dtype, batch.mask.dtype, batch.labels.dtype]
    assert dtypes == [torch.float32, torch.uint8, torch.bool, torch.int64]
    assert all(type(value) is torch.Tensor for value in batch if not isinstance(value, dict))


def test_attributes_are_collated_only_on_request():
    assert LandmarkCollate()([sample(0)]).attributes == {}


@pytest.mark.parametrize(
    "collate",
    [
        ClassificationCollate(multi_label=True),
        LandmarkCollate(attributes=["finish"]),
        MultiTaskCollate(attributes=["finish"], size_divisor=4),
    ],
)
def test_collate_functions_pickle_and_compare(collate):
    assert pickle.loads(pickle.dumps(collate)) == collate == copy.deepcopy(collate)


def test_accessors_read_landmark_batches():
    batch = LandmarkCollate(attributes=["finish"])([sample(0), sample(1)])
    assert [image.shape for image in batch_images(batch)] == [(3, 8, 8)] * 2
    assert batch_labels(batch, first_label=7).tolist() == [0, 1]
    assert batch_labels(batch, label="finish").tolist() == [1]
    with pytest.raises(TypeError, match="LandmarkBatch has no target per image; read its fields"):
        batch_targets(batch)
    with pytest.raises(ValueError, match=r"label='colour' should be an attribute .*\['finish'\]"):
        batch_labels(batch, label="colour")


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ([sample(0), sample(1, size=(8, 9))], ValueError, r"\(8, 9\).*landmark_transforms\(size="),
        ([without("crop")], ValueError, "'crop'.*CropToObjects"),
        ([without("is_duplicate")], ValueError, r"'is_duplicate'.*lit_loader\.is_duplicate\(\)"),
        ([without("keypoints")], ValueError, r"with field 'keypoints'.*keypoints=True"),
        (
            [sample(0, boxes=torch.zeros(2, 4))],
            ValueError,
            r"'boxes' to have one row per sample.*got shapes \[\(2, 4\)\].*one object per sample",
        ),
        ([sample(0, boxes=torch.zeros(0, 4))], ValueError, r"\[\(0, 4\)\]"),
        ([sample(0, labels=torch.zeros(2))], ValueError, r"'labels' .* got shapes \[\(2,\)\]"),
        ([sample(0), sample(0, keypoints=torch.zeros(1, 4, 2))], ValueError, "'keypoints' .* got shapes"),
        ([sample(0, labels=3)], TypeError, "'labels' of a target .* got a int"),
        ([sample(0, labels=torch.tensor(3))], TypeError, "a 0-d tensor"),
        ([(torch.zeros(3, 8, 8), [1])], TypeError, "dict of fields, got a list"),
        (
            [(torch.zeros(3, 8, 8), {}, 1)],
            ValueError,
            r"samples \(image, target\), got 3 elements; return only these, or collate with Detect",
        ),
        ([torch.zeros(3, 8, 8)], TypeError, "got a Tensor"),
    ],
)
def test_invalid_samples_are_refused_with_a_remedy(samples, error, message):
    with pytest.raises(error, match=message):
        LandmarkCollate()(samples)


def test_names_of_attributes_are_checked():
    with pytest.raises(TypeError, match="attributes="):
        LandmarkCollate(attributes="finish")


def test_batch_without_keypoints_has_zero_columns():
    batch = LandmarkCollate(keypoints=False)([without("keypoints"), without("visibility")])
    shapes = [tuple(field.shape) for field in (batch.keypoints, batch.visibility, batch.mask, batch.boxes)]
    assert shapes == [(2, 0, 2), (2, 0), (2, 0), (2, 4)]
    dtypes = [batch.keypoints.dtype, batch.visibility.dtype, batch.mask.dtype]
    assert dtypes == [torch.float32, torch.uint8, torch.bool]
