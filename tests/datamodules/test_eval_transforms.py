"""Evaluation keeps the training settings of the user, and warns of a size left at its default."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from lit_loader import ClassificationDataModule, DetectionDataModule


class Resized(nn.Module):
    """A user's own transform."""

    def forward(self, image, target=None):
        small = v2.functional.to_dtype(v2.functional.resize(image, [24, 24]), torch.float32, scale=True)
        return small if target is None else (small, target)


def classifier_data(shapes, **settings):
    return ClassificationDataModule(shapes, sample_unit="object", batch_size=2, **settings)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_a_callable_for_training_alone_warns_of_the_size_of_evaluation(shapes, stage):
    datamodule = classifier_data(shapes, train_transforms=Resized())
    with pytest.warns(UserWarning, match=rf"{stage} 24x24 .* make it 224x224; give {stage}_transforms"):
        assert datamodule.first_batch(stage).images.shape[-2:] == (224, 224)


@pytest.mark.parametrize(
    "settings",
    [
        {"train_transforms": Resized(), "val_transforms": {"size": 32}},
        {"train_transforms": v2.Compose([Resized(), v2.Resize([224, 224])])},
        {"train_transforms": {"size": 24}},
    ],
    ids=["own keywords", "the same size", "keywords for both"],
)
def test_a_size_that_the_user_chose_is_not_warned_of(shapes, settings):
    datamodule = classifier_data(shapes, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datamodule.first_batch("val")


def test_the_comparison_of_sizes_draws_nothing(shapes):
    datamodule = classifier_data(shapes, train_transforms=v2.RandomResizedCrop(20))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="20x20"):
        datamodule.stage_data("val")
    assert torch.equal(torch.rand(3), expected)


def test_eval_keywords_are_merged_into_training_keywords(shapes):
    datamodule = DetectionDataModule(
        shapes,
        batch_size=2,
        train_transforms={"size": [24, 32], "to_float": False},
        val_transforms={"hflip": 0},
        test_transforms={"size": [40, 40]},
    )
    sizes = {"train": (24, 32), "val": (24, 32), "test": (40, 40)}
    for stage, size in sizes.items():
        images, _ = datamodule.first_batch(stage)
        assert (images[0].shape[1:], images[0].dtype) == (size, torch.uint8), stage
