"""Settings of the data module: each has an effect or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from lit_loader import DetectionDataModule
from lit_loader.collate import DetectionCollate
from lit_loader.datamodules import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    EffectiveNumberSamplerConfig,
    LandmarkDataModule,
    MultiTaskDataModule,
    RepeatFactorSamplerConfig,
    SequentialSamplerConfig,
    WeightedSamplerConfig,
)
from lit_loader.datasets import VocSource
from lit_loader.errors import ImageError
from tests.support.recording_model import stub_trainer

DETECTION = {"train_batch_size": 0, "val_batch_size": -1, "test_batch_size": 0, "predict_batch_size": 0}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        *((DetectionDataModule, {name: size}, f"{name}={size}") for name, size in DETECTION.items()),
        (DetectionDataModule, {"batch_size": 0}, "batch_size=0"),
        (DetectionDataModule, {"workers": {"multiprocessing_context": "nonsense"}}, "context='nonsense'"),
        (DetectionDataModule, {"num_workers": -1}, "num_workers=-1"),
        (DetectionDataModule, {"workers": {"timeout": -1.0}}, "timeout=-1.0"),
        (DetectionDataModule, {"workers": {"prefetch_factor": 0}}, "prefetch_factor=0"),
        (DetectionDataModule, {"images": "nonsense"}, "images='nonsense'"),
        (DetectionDataModule, {"size_divisor": 32}, "size_divisor=32"),
        (DetectionDataModule, {"images": "stack", "collate_fn": DetectionCollate()}, "images='stack' .* collate_fn"),
        (DetectionDataModule, {"size_divisor": 8, "collate_fn": DetectionCollate()}, "size_divisor=8"),
        (DetectionDataModule, {"extra_fields": ["colour"]}, "colour"),
        (DetectionDataModule, {"first_label": -1}, "first_label=-1"),
        (DetectionDataModule, {"reading": {"size_mismatch": "ignore"}}, "size_mismatch='ignore'"),
        (DetectionDataModule, {"reading": {"max_pixels": 0}}, "max_pixels=0"),
        (MultiTaskDataModule, {"size_divisor": 0}, "size_divisor=0"),
        (MultiTaskDataModule, {"first_label": -1}, "first_label=-1"),
        (MultiTaskDataModule, {"train_transforms": {"hflips": 1}}, "hflips"),
        (MultiTaskDataModule, {"multi_label": True}, "multi_label"),
        (LandmarkDataModule, {"sample_unit": "box"}, "sample_unit='box' is not one of"),
        (LandmarkDataModule, {"min_points": -1}, "min_points=-1"),
        (LandmarkDataModule, {"size_divisor": 8}, "size_divisor=8 has no effect with sample_unit='object'"),
        (LandmarkDataModule, {"sample_unit": "image", "size_divisor": 0}, "size_divisor=0"),
        (LandmarkDataModule, {"val_transforms": {"size": 0}}, "size=0"),
        (ClassificationDataModule, {"sample_unit": "boxes"}, "sample_unit='boxes'"),
        (ClassificationDataModule, {"sample_unit": "object", "multi_label": True}, "one object has one label"),
        (ClassificationDataModule, {"attributes": "all"}, "attributes"),
    ],
    ids=str,
)
def test_invalid_setting_is_refused_when_it_is_given(shapes, kind, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kind(shapes, **settings)


def test_a_batch_size_set_later_is_checked_too(shapes):
    datamodule = DetectionDataModule(shapes)
    with pytest.raises(ValueError, match="batch_size=0"):
        datamodule.batch_size = 0


@pytest.mark.parametrize("stage", ["train", "val", "test", "predict"])
def test_an_empty_transform_is_a_transform(shapes, stage):
    datamodule = DetectionDataModule(shapes, batch_size=2, **{f"{stage}_transforms": Nothing()})
    images, _ = next(iter(datamodule._make_loaders(stage)[0]))
    assert images[0].dtype == torch.uint8  # the default would make it float


class Nothing(nn.Sequential):
    """A falsy module, its length being 0, that takes an image and a target."""

    def forward(self, image, target):
        return image, target


class FalsyCollate(DetectionCollate):
    def __len__(self):
        return 0


def test_a_falsy_collate_function_and_batch_transform_are_used(shapes, monkeypatch):
    collate = FalsyCollate(images="stack")
    transform = nn.Sequential()
    datamodule = DetectionDataModule(shapes, batch_size=2, collate_fn=collate, batch_transforms=transform)
    assert next(iter(datamodule.train_dataloader()))[0].shape == (2, 3, 48, 48)
    called = []
    transform.register_forward_hook(lambda *_: called.append(1))
    datamodule.trainer = stub_trainer()
    datamodule.on_after_batch_transfer(torch.zeros(1), 0)
    assert called == [1]


def test_size_rules_reach_the_data_set(shapes):
    settings = {"size_mismatch": "raise", "exif_orientation": False, "max_pixels": 100}
    dataset = DetectionDataModule(shapes, reading=settings).val_dataloader().dataset
    assert {name: getattr(dataset.reading, name) for name in settings} == settings
    with pytest.raises(ImageError, match="max_pixels=100"):
        dataset[0]


def test_a_stage_that_does_not_exist_is_refused(shapes):
    with pytest.raises(ValueError, match=r"stage='nope' is not one of .*'fit', 'validate', 'test', 'predict'"):
        DetectionDataModule(shapes).setup("nope")


def test_a_custom_sampler_is_not_shared_by_several_sets(shapes):
    source = VocSource(root=shapes.tables("train")[0].root, val=["val", "train"], progress=False)
    custom = DetectionDataModule(source, val_sampler=TorchSequentialSampler(range(20)))
    with pytest.raises(ValueError, match=r"val_sampler=SequentialSampler would be shared by 2 sets.*SamplerConfig"):
        custom.val_dataloader()
    ours = DetectionDataModule(source, val_sampler=SequentialSamplerConfig())
    assert [len(loader.sampler) for loader in ours.val_dataloader()] == [20, 60]


@pytest.mark.parametrize(
    ("sampling", "settings", "message"),
    [
        (WeightedSamplerConfig, {"reduce": "median"}, "reduce='median'"),
        (WeightedSamplerConfig, {"exponent": 1.5}, "exponent=1.5"),
        (WeightedSamplerConfig, {"num_samples": 0}, "num_samples=0"),
        (ClassBalancedSamplerConfig, {"exponent": -0.1}, "exponent=-0.1"),
        (ClassBalancedSamplerConfig, {"empty_share": float("nan")}, "empty_share=nan"),
        (RepeatFactorSamplerConfig, {"repeat_thresh": 0.0}, "repeat_thresh=0.0"),
        (EffectiveNumberSamplerConfig, {"beta": 1.0}, "beta=1.0"),
    ],
)
def test_a_sampling_refuses_values_before_there_is_a_table(sampling, settings, message):
    with pytest.raises(ValueError, match=message):
        sampling(**settings)


@pytest.mark.parametrize("images", ["list", "stack", "pad"])
def test_a_batch_of_every_mode_is_drawn(shapes, images):
    settings = {"size_divisor": 32} if images == "pad" else {}
    figure = DetectionDataModule(shapes, batch_size=3, images=images, **settings).plot_batch("val")
    assert len(figure.axes) == 3
    assert [axis.images[0].get_array().shape for axis in figure.axes] == [(432, 432, 3)] * 3  # enlarged


def test_columns_and_stages_without_a_batch_cannot_be_plotted(shapes):
    with pytest.raises(TypeError, match="one dict per image"):
        DetectionDataModule(shapes, collate_fn=lambda batch: ([], {"boxes": [], "labels": []})).plot_batch()
    with pytest.raises(ValueError, match=r"60 samples with batch_size=61.*drop_last=True; lower batch_size"):
        DetectionDataModule(shapes, batch_size=61, drop_last=True).plot_batch()
    source = VocSource(root=shapes.tables("train")[0].root, test=None, progress=False)
    with pytest.raises(ValueError, match="stage='test' gives no batch"):
        DetectionDataModule(source).plot_batch("test")
