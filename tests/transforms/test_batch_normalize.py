"""Normalisation of whole uint8 batches: the formula, every type of batch, and refused inputs."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.collate import ClassificationBatch, PaddedBatch
from lit_loader.transforms import NormalizeBatch
from tests.support.no_sync import META, NoSync

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def images(*shape):
    return torch.randint(0, 256, shape or (2, 3, 4, 5), dtype=torch.uint8)


def reference(image):
    return v2.functional.normalize(v2.functional.to_dtype(image, torch.float32, scale=True), MEAN, STD)


def close(result, image):
    assert result.dtype == torch.float32
    assert type(result) is torch.Tensor
    torch.testing.assert_close(result, reference(image.as_subclass(torch.Tensor)), atol=2e-6, rtol=1e-6)


class Own(NamedTuple):
    labels: Any
    images: Any


def test_normalisation_matches_torchvision_and_does_not_modify_the_batch():
    batch = images()
    original = batch.clone()
    close(NormalizeBatch(MEAN, STD)(batch), batch)
    assert torch.equal(batch, original)


@pytest.mark.parametrize(
    "make",
    [
        lambda pixels: (pixels, ["targets"]),
        lambda pixels: [pixels, ["targets"], 3],
        lambda pixels: ClassificationBatch(pixels, torch.ones(2), torch.ones(2), torch.zeros(2)),
        lambda pixels: PaddedBatch(pixels, [{}], torch.ones(2, 4, 5, dtype=torch.bool), torch.ones(2, 2)),
        lambda pixels: Own(torch.ones(2), pixels),
        lambda pixels: {"images": pixels, "labels": [1]},
    ],
)
@pytest.mark.parametrize("form", ["stacked", "list"])
def test_images_are_found_in_every_form_of_batch_and_the_rest_is_passed_on(make, form):
    pixels = images() if form == "stacked" else [images(3, 4, 5), tv_tensors.Image(images(3, 2, 9))]
    batch = make(pixels)
    result = NormalizeBatch(MEAN, STD)(batch)
    assert type(result) is type(batch)
    if isinstance(batch, ClassificationBatch):
        result = vars(result)
        batch = vars(batch)
    if isinstance(batch, dict):
        place = "images"
        other_places = [key for key in batch if key != "images"]
    else:
        place = getattr(batch, "_fields", ("images",)).index("images")
        other_places = [number for number in range(len(batch)) if number != place]
    assert all(result[name] is batch[name] for name in other_places)
    assert len(result) == len(batch)
    for normalized, original in zip(result[place], pixels, strict=True):
        close(normalized, original)


def test_images_alone_are_a_batch_too():
    pixels = [images(3, 2, 2), images(3, 3, 3)]
    for normalized, original in zip(NormalizeBatch(MEAN, STD)(pixels), pixels, strict=True):
        close(normalized, original)


def test_without_arguments_images_are_in_zero_to_one():
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    torch.testing.assert_close(NormalizeBatch()((pixels, 0))[0].flatten(), torch.tensor([0.0, 0.2, 1.0]))


def test_one_number_serves_all_channels():
    pixels = images()
    assert torch.equal(NormalizeBatch(0.5, [0.25])(pixels), NormalizeBatch([0.5] * 3, [0.25] * 3)(pixels))


def test_images_that_are_channels_last_become_contiguous():
    pixels = images(2, 3, 8, 8)
    result = NormalizeBatch(MEAN, STD)(pixels.contiguous(memory_format=torch.channels_last))
    assert result.is_contiguous()
    assert torch.equal(result, NormalizeBatch(MEAN, STD)(pixels))


def test_copies_and_pickles_normalize_alike_and_repr_shows_the_arguments():
    normalize = NormalizeBatch(MEAN, STD)
    pixels = images()
    result = normalize(pixels)
    for other in (copy.deepcopy(normalize), pickle.loads(pickle.dumps(normalize))):
        assert torch.equal(other(pixels), result)
    assert "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)" in repr(normalize)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (torch.ones(2, 3, 4, 4), TypeError, r"torch\.float32.*to_float=False"),
        (images(2, 1, 4, 4), ValueError, "do not fit 3 channels"),
        (images(4, 4), ValueError, r"shape \(4, 4\)"),
        (("text", 1), TypeError, "got a str"),
        ({"pixels": images()}, TypeError, "expected a batch .* got a dict"),
        ((), TypeError, "expected a batch .* got a tuple"),
        (None, TypeError, "expected a batch .* got a NoneType"),
        ((images(3, 4, 4).float(), 1), TypeError, r"torch\.float32"),
    ],
)
def test_batches_without_uint8_images_are_refused(batch, error, message):
    with pytest.raises(error, match=message):
        NormalizeBatch(MEAN, STD)(batch)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.5], [0.0], "std above 0"),
        (0.0, -1.0, "std above 0"),
        (float("nan"), 1.0, "finite"),
        ([0.5, float("inf")], [1.0, 1.0], "finite"),
        ([], 1.0, "finite numbers"),
        ([0.5, 0.5], [1.0, 1.0, 1.0], "mean=.* and std=.* have different lengths"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_at_once(mean, std, message):
    with pytest.raises(ValueError, match=message):
        NormalizeBatch(mean, std)


def test_constants_are_copied_once_to_a_device_also_inside_a_compose():
    transform = v2.Compose([NormalizeBatch(MEAN, STD)])
    batch = ([image.to(META) for image in images()], [{}, {}])
    transform(batch)
    with NoSync():
        transform(batch)
    batch_on_cpu = images()
    close(copy.deepcopy(transform)(batch_on_cpu), batch_on_cpu)
