"""Collation of boxes, classes, points and attributes in one batch."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.collate import MultiTaskBatch, MultiTaskCollate, batch_images, batch_labels, batch_targets


def sample(count, image_id=0, *, size=(6, 8), **fields):
    boxes = torch.arange(count * 4.0).reshape(count, 4)
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
        "labels": torch.arange(count) + 1,
        "keypoints": tv_tensors.KeyPoints(torch.ones(count, 2, 2) * 5, canvas_size=size),
        "visibility": torch.tensor([[2, 0]] * count, dtype=torch.uint8).reshape(count, 2),
        "finish": torch.arange(count) - 1,
        "iscrowd": torch.arange(count) % 2,
        "area": torch.zeros(count),
        "image_id": image_id,
        "is_duplicate": image_id == 2,
    }
    return tv_tensors.Image(torch.full((3, *size), 7, dtype=torch.uint8)), {**target, **fields}


def make(*counts, **settings):
    return MultiTaskCollate(attributes=["finish"], **settings)([sample(n, i) for i, n in enumerate(counts)])


def test_masks_separate_objects_from_padding():
    batch = make(2, 0, 3)
    assert isinstance(batch, MultiTaskBatch)
    assert batch.object_mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert batch.keypoint_mask[..., 0].tolist() == batch.object_mask.tolist()
    assert not batch.keypoint_mask[..., 1].any()
    assert batch.attributes["finish"].tolist() == [[-1, 0, -1], [-1, -1, -1], [-1, 0, 1]]
    assert batch.attribute_masks["finish"].tolist() == [[False, True, False], [False] * 3, [False, True, True]]
    assert batch.labels.tolist() == [[1, 2, 0], [0, 0, 0], [1, 2, 3]]
    for name in ("boxes", "keypoints", "visibility", "iscrowd"):
        assert (getattr(batch, name)[~batch.object_mask] == 0).all(), name
    assert batch.boxes[2, 2].tolist() == [8, 9, 10, 11]
    assert batch.image_ids.tolist() == [0, 1, 2]
    assert (batch.is_duplicate.tolist(), batch.is_duplicate.dtype) == ([False, False, True], torch.bool)
    shapes = [tuple(value.shape) for value in (batch.boxes, batch.keypoints, batch.visibility)]
    assert shapes == [(3, 3, 4), (3, 3, 2, 2), (3, 3, 2)]
    dtypes = [batch.boxes.dtype, batch.labels.dtype, batch.visibility.dtype, batch.iscrowd.dtype]
    assert dtypes == [torch.float32, torch.int64, torch.uint8, torch.int64]


def test_batch_without_objects_has_empty_fields():
    batch = make(0, 0)
    assert (batch.boxes.shape, batch.keypoints.shape) == ((2, 0, 4), (2, 0, 2, 2))
    assert (batch.object_mask.shape, batch.keypoint_mask.shape) == ((2, 0), (2, 0, 2))
    assert batch.attribute_masks["finish"].shape == (2, 0)
    assert [len(target["labels"]) for target in batch_targets(batch)] == [0, 0]
    assert batch_labels(batch).tolist() == []


def test_images_of_different_sizes_are_padded_and_come_back_without_padding():
    collate = MultiTaskCollate(size_divisor=16, pad_value=9)
    batch = collate([sample(1, size=(6, 8)), sample(1, size=(10, 4))])
    assert batch.images.shape == (2, 3, 16, 16)
    assert batch.sizes.tolist() == [[6, 8], [10, 4]]
    assert [image.shape for image in batch_images(batch)] == [(3, 6, 8), (3, 10, 4)]
    assert all((image == 7).all() for image in batch_images(batch))
    assert (batch.images[0, :, 6:] == 9).all()


def test_targets_come_back_without_padding():
    first, _, third = batch_targets(make(2, 0, 3))
    assert set(first) == set(sample(0)[1])
    assert first["labels"].tolist() == [1, 2]
    assert first["keypoints"].shape == (2, 2, 2)
    assert first["finish"].tolist() == [-1, 0]
    assert first["area"].tolist() == [4, 4]
    assert (type(third["image_id"]), third["image_id"]) == (int, 2)
    assert [first["is_duplicate"], third["is_duplicate"]] == [False, True]
    assert third["boxes"].tolist() == sample(3)[1]["boxes"].tolist()


def test_labels_are_counted_from_the_first_and_padding_is_left_out():
    batch = make(2, 0, 3)
    assert batch_labels(batch).tolist() == [0, 1, 0, 1, 2]
    assert batch_labels(batch, label="finish").tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="label 1, below first_label=2"):
        batch_labels(batch, first_label=2)
    with pytest.raises(ValueError, match="label='colour'"):
        batch_labels(batch, label="colour")


def test_batch_without_keypoints_has_zero_columns():
    image, target = sample(2)
    bare = {name: value for name, value in target.items() if name not in ("keypoints", "visibility")}
    batch = MultiTaskCollate(keypoints=False)([(image, bare)])
    assert (batch.keypoints.shape, batch.keypoint_mask.shape) == ((1, 2, 0, 2), (1, 2, 0))
    assert batch.attributes == batch.attribute_masks == {}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([sample(2, labels=torch.ones(1))], r"'labels' has \[1\] rows for \[2\] boxes.*SanitizeObjects"),
        ([sample(1), sample(1, keypoints=torch.zeros(1, 5, 2))], "rows of field 'keypoints' to have one shape"),
        ([(sample(1)[0], {"boxes": torch.zeros(1, 4)})], "with field"),
    ],
)
def test_invalid_samples_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        MultiTaskCollate(attributes=["finish"])(samples)


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match="size_divisor=0"):
        MultiTaskCollate(size_divisor=0)
    with pytest.raises(ValueError, match=r"pad_value=0\.5"):
        MultiTaskCollate(pad_value=0.5)([sample(1)])
