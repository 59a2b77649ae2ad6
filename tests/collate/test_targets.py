"""Padding of ragged target fields."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.collate import detection_collate


def make_batch(counts, **fields):
    return [
        (
            torch.zeros(3, 4, 4),
            {
                "boxes": tv_tensors.BoundingBoxes(torch.rand(n, 4), format="XYXY", canvas_size=(4, 4)),
                "labels": torch.arange(n),
                "image_id": i,
                "name": f"image {i}",
                **{name: make(n) for name, make in fields.items()},
            },
        )
        for i, n in enumerate(counts)
    ]


def test_padded_fields_come_with_a_mask_and_the_others_as_lists():
    batch = make_batch([2, 0, 3])
    _, targets = detection_collate(batch, pad_fields={"labels": -1, "boxes": 0})
    assert targets["labels"].tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, 2]]
    assert targets["labels"].dtype == torch.int64
    assert targets["labels_mask"].sum(dim=1).tolist() == [2, 0, 3]
    assert type(targets["boxes"]) is torch.Tensor
    assert targets["boxes"].shape == (3, 3, 4)
    for i, (_, target) in enumerate(batch):
        real = targets["boxes"][i][targets["boxes_mask"][i]]
        assert torch.equal(real, target["boxes"].as_subclass(torch.Tensor))
    assert (targets["boxes"][~targets["boxes_mask"]] == 0).all()
    assert targets["image_id"] == [0, 1, 2]
    assert targets["name"] == ["image 0", "image 1", "image 2"]


def test_fields_that_are_not_padded_stay_lists_of_tensors():
    _, targets = detection_collate(make_batch([2, 1]), pad_fields={"labels": 0})
    assert [type(boxes) for boxes in targets["boxes"]] == [tv_tensors.BoundingBoxes] * 2
    assert "boxes_mask" not in targets


def test_no_boxes_in_the_whole_batch_gives_columns_of_length_zero():
    _, targets = detection_collate(make_batch([0, 0]), pad_fields={"labels": -1, "boxes": 0})
    assert targets["labels"].shape == (2, 0)
    assert targets["boxes"].shape == (2, 0, 4)


def test_fields_pad_in_every_image_mode():
    for images in ("stack", "list", "pad"):
        targets = detection_collate(make_batch([2, 1]), images=images, pad_fields={"labels": -1})[1]
        assert targets["labels"].tolist() == [[0, 1], [0, -1]]


def test_a_per_image_vector_pads_by_its_own_length():
    batch = make_batch([1, 2], tags=lambda n: torch.ones(5 - n))
    targets = detection_collate(batch, pad_fields={"tags": 0, "labels": -1})[1]
    assert targets["tags_mask"].sum(dim=1).tolist() == [4, 3]
    assert targets["labels_mask"].sum(dim=1).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("fields", "pad_fields", "error", "message"),
    [
        ({}, {"poses": 0}, ValueError, "no field 'poses'"),
        ({}, {"name": 0}, TypeError, "'name'.*is a str"),
        ({"scale": torch.tensor}, {"scale": 0}, TypeError, "'scale'.*0-d"),
        ({"points": lambda n: torch.zeros(1, n)}, {"points": 0}, ValueError, "only the number of rows"),
        (
            {"labels_mask": torch.ones},
            {"labels": -1},
            ValueError,
            "a field 'labels_mask', which padding 'labels' would replace",
        ),
    ],
)
def test_fields_that_cannot_be_padded_are_refused(fields, pad_fields, error, message):
    with pytest.raises(error, match=message):
        detection_collate(make_batch([1, 2], **fields), pad_fields=pad_fields)


def test_targets_that_are_no_dicts_or_differ_are_refused():
    image = torch.zeros(3, 4, 4)
    with pytest.raises(TypeError, match="expected a dict"):
        detection_collate([(image, [[0, 0, 1, 1, 0]])], pad_fields={"labels": 0})
    labels = torch.zeros(1)
    different = [(image, {"labels": labels}), (image, {"labels": labels, "classes": labels})]
    with pytest.raises(ValueError, match="different fields"):
        detection_collate(different, pad_fields={"labels": 0})
