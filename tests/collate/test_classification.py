"""Collation of images with labels."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.collate import ClassificationBatch, ClassificationCollate, batch_images, batch_labels, batch_targets


def sample(label, image_id=0, *, size=(4, 5), mark=False):
    return tv_tensors.Image(torch.ones(3, *size)), label, image_id, mark


def test_class_ids_are_collated_to_int64():
    batch = ClassificationCollate()([sample(2, 7), sample(torch.tensor(0), 9, mark=True)])
    assert isinstance(batch, ClassificationBatch)
    assert type(batch.images) is torch.Tensor
    assert batch.images.shape == (2, 3, 4, 5)
    assert (batch.labels.tolist(), batch.labels.dtype) == ([2, 0], torch.int64)
    assert (batch.image_ids.tolist(), batch.image_ids.dtype) == ([7, 9], torch.int64)
    assert (batch.is_duplicate.tolist(), batch.is_duplicate.dtype) == ([False, True], torch.bool)
    assert batch_labels(batch).tolist() == [2, 0]
    assert len(batch_images(batch)) == 2


def test_multi_hot_labels_are_collated_to_float32():
    rows = [torch.tensor([0.0, 1, 1]), torch.zeros(3)]
    batch = ClassificationCollate(multi_label=True)([sample(row) for row in rows])
    assert (batch.labels.tolist(), batch.labels.dtype) == ([[0, 1, 1], [0, 0, 0]], torch.float32)
    assert batch_labels(batch).tolist() == [1, 2]


def test_batch_has_one_kind_of_label_and_no_targets():
    batch = ClassificationCollate()([sample(1)])
    with pytest.raises(TypeError, match="label='finish': a ClassificationBatch has one kind of label"):
        batch_labels(batch, label="finish")
    with pytest.raises(TypeError, match="ClassificationBatch has no target"):
        batch_targets(batch)


@pytest.mark.parametrize(
    ("samples", "multi_label", "error", "message"),
    [
        ([sample(1), sample(1, size=(4, 6))], False, ValueError, r"\(4, 6\).*classification_transforms\(size="),
        ([sample(0.5)], False, TypeError, r"float32 of shape \(\)"),
        ([sample(torch.zeros(3))], False, TypeError, r"expected a label to be one integer .* shape \(3,\)"),
        ([sample(1)], True, TypeError, "a vector of 0 and 1"),
        ([sample(torch.zeros(3)), sample(torch.zeros(2))], True, RuntimeError, "equal size"),
        ([sample(1, mark=1)], False, TypeError, r"expected .* the bool of .* got is_duplicate=1 \(int\)"),
        (
            [(torch.zeros(3, 2, 2), 1)],
            False,
            ValueError,
            r"samples \(image, label, image_id, is_duplicate\), got 2 elements; return all",
        ),
    ],
)
def test_invalid_samples_are_refused(samples, multi_label, error, message):
    with pytest.raises(error, match=message):
        ClassificationCollate(multi_label=multi_label)(samples)
