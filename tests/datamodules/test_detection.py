"""The detection data module: one factory, live settings, idempotent set-up, workers that end."""

from __future__ import annotations

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import SequentialSampler as TorchSequentialSampler
from torchvision import tv_tensors

from lit_loader import ClassBalancedSampler, DetectionDataModule, WeightedRandomSampler
from lit_loader.annotations import AnnotationTable
from lit_loader.collate import PaddedBatch
from lit_loader.datamodules import (
    ClassBalancedSamplerConfig,
    RandomSamplerConfig,
    WeightedSamplerConfig,
    WorkerSettings,
    expected_class_mix,
)
from lit_loader.datasets import VocSource
from lit_loader.samplers import SequentialSampler
from tests.support.toys import plain


def images_of(loader):
    with loader:
        return [plain(batch[0]) for batch in loader]


def test_batches_are_what_torchvisions_detectors_take(shapes):
    datamodule = DetectionDataModule(shapes, batch_size=4)
    images, targets = next(iter(datamodule.train_dataloader()))
    assert len(images) == len(targets) == 4
    assert all(image.dtype == torch.float32 and image.shape == (3, 48, 48) for image in images)
    for target in targets:
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert target["boxes"].dtype == torch.float32
        assert target["labels"].dtype == torch.int64
        assert target["labels"].min() >= 1
        assert {"boxes", "labels", "image_id", "area", "iscrowd"} <= set(target)


@pytest.mark.parametrize("images", ["stack", "pad"])
def test_images_may_be_stacked_or_padded(shapes, images):
    settings = {"images": images, "size_divisor": 32} if images == "pad" else {"images": images}
    batch = next(iter(DetectionDataModule(shapes, batch_size=4, **settings).val_dataloader()))
    assert batch[0].shape == ((4, 3, 64, 64) if images == "pad" else (4, 3, 48, 48))
    assert isinstance(batch, PaddedBatch) == (images == "pad")


def test_each_stage_has_its_own_batch_size_sampler_and_transforms(shapes):
    seen = []

    def transform(image, target):
        seen.append(int(target["image_id"]))
        return image, target

    datamodule = DetectionDataModule(
        shapes,
        batch_size=4,
        val_batch_size=5,
        test_batch_size=6,
        predict_batch_size=7,
        train_sampler=ClassBalancedSamplerConfig(num_samples=12),
        val_sampler=TorchSequentialSampler(range(3)),
        test_sampler=RandomSamplerConfig(),
        test_transforms=transform,
    )
    train = datamodule.train_dataloader()
    val = datamodule.val_dataloader()
    test = datamodule.test_dataloader()
    predict = datamodule.predict_dataloader()
    assert [loader.batch_size for loader in (train, val, test, predict)] == [4, 5, 6, 7]
    assert isinstance(train.sampler, ClassBalancedSampler)
    assert (len(train), len(val)) == (3, 1)
    list(test)
    assert sorted(seen) == list(range(24))
    assert seen != sorted(seen)


def test_evaluation_is_in_order_and_training_is_not(shapes):
    datamodule = DetectionDataModule(shapes, batch_size=5)

    def ids(loader):
        return [int(target["image_id"]) for _, targets in loader for target in targets]

    assert ids(datamodule.val_dataloader()) == list(range(20))
    train = datamodule.train_dataloader()
    first = ids(train)
    second = ids(train)
    assert sorted(first) == sorted(second) == list(range(60))
    assert len({tuple(first), tuple(second), tuple(range(60))}) == 3


def test_batch_size_is_live_for_lightnings_tuner(shapes):
    datamodule = DetectionDataModule(shapes, train_batch_size=4, batch_size=2)
    assert datamodule.batch_size == 4
    datamodule.batch_size = 10
    assert len(datamodule.train_dataloader()) == 6
    assert len(datamodule.val_dataloader()) == 2


# tests/datamodules/test_rows.py compares this data module in a spawned process.
SLOW = [pytest.param(method, marks=pytest.mark.soak) for method in ("spawn", "forkserver")]


@pytest.mark.parametrize("method", ["fork", *SLOW])
def test_start_methods_do_not_change_the_batches(shapes, method):
    settings = {"batch_size": 16, "train_sampler": WeightedSamplerConfig()}
    inline = DetectionDataModule(shapes, **settings).train_dataloader()
    workers = WorkerSettings(num_workers=2, multiprocessing_context=method)
    other = DetectionDataModule(shapes, **settings, workers=workers)
    with other.train_dataloader() as loader:
        assert [plain(batch) for batch in loader] == [plain(batch) for batch in inline]


def test_the_seed_decides_and_stages_do_not_share_it(shapes, monkeypatch):
    def first(**settings):
        return images_of(DetectionDataModule(shapes, batch_size=60, **settings).train_dataloader())

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # set once so that the end of the test unsets them
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    assert first() == first(seed=0) != first(seed=1)
    lightning.seed_everything(1, verbose=False)
    assert first() == first(seed=1)
    datamodule = DetectionDataModule(shapes)
    assert datamodule.train_dataloader().seed != datamodule.val_dataloader().seed


def test_setup_is_idempotent_and_opens_only_its_stage(shapes, monkeypatch):
    opened = []
    datamodule = DetectionDataModule(shapes)
    original = datamodule.stage_data
    monkeypatch.setattr(datamodule, "stage_data", lambda stage: opened.append(stage) or original(stage))
    for _ in range(2):
        datamodule.setup(TrainerFn.FITTING)
    assert opened == ["train", "val"]
    datamodule.setup("validate")
    datamodule.setup(TrainerFn.TESTING)
    assert opened == ["train", "val", "test"]
    datamodule.setup(None)
    assert opened == ["train", "val", "test", "predict"]


def test_several_validation_and_test_sets_come_as_lists(shapes):
    root = shapes.tables("train")[0].root
    source = VocSource(root=root, val=["val", "train"], test=["val", "test"], predict=[], progress=False)
    datamodule = DetectionDataModule(source, batch_size=10)
    assert [len(loader) for loader in datamodule.val_dataloader()] == [2, 6]
    assert [len(loader) for loader in datamodule.test_dataloader()] == [2, 3]
    assert datamodule.predict_dataloader() == []
    assert [summary.name for summary in datamodule.summaries()] == ["train", "val/0", "val/1", "test/0", "test/1"]


def test_training_without_a_set_is_an_error(shapes):
    source = VocSource(root=shapes.tables("train")[0].root, train=None, progress=False)
    with pytest.raises(ValueError, match="needs one data set, and DetectionDataModule has 0"):
        DetectionDataModule(source).train_dataloader()


def test_further_fields_and_the_first_label_are_passed_on(shapes):
    datamodule = DetectionDataModule(shapes, extra_fields=["difficult"], first_label=0)
    _, targets = next(iter(datamodule.train_dataloader()))
    assert min(int(target["labels"].min()) for target in targets) == 0
    assert all(len(target["difficult"]) == len(target["boxes"]) for target in targets)


def test_str_makes_no_loaders(shapes, monkeypatch):
    datamodule = DetectionDataModule(shapes, batch_size=3)
    datamodule.setup("fit")
    monkeypatch.setattr(datamodule, "_make_loaders", None)
    assert str(datamodule) == "DetectionDataModule(batch_size=3, num_workers=0, train: [60], val: [20])"


def test_sampler_configs_pass_their_settings(shapes):
    (table,) = shapes.tables("train")
    weighted = WeightedSamplerConfig(exponent=0.5, reduce="max", num_samples=7, replacement=False).make_sampler(table)
    assert isinstance(weighted, WeightedRandomSampler)
    assert (len(weighted), weighted.replacement) == (7, False)
    default = WeightedSamplerConfig().make_sampler(table)
    for settings in ({"exponent": 0.5}, {"reduce": "max"}, {"reduce": "sum"}):
        other = WeightedSamplerConfig(**settings).make_sampler(table)
        assert not np.allclose(other.expected_visits(), default.expected_visits())
    balanced = ClassBalancedSamplerConfig(exponent=0.5, num_samples=40, empty_share=0.0).make_sampler(table)
    assert (balanced.exponent, len(balanced), balanced.empty_share) == (0.5, 40, 0.0)


def test_the_summary_tells_counts_imbalance_and_the_expected_mix(shapes):
    datamodule = DetectionDataModule(shapes, train_sampler=ClassBalancedSamplerConfig())
    train, _, _ = datamodule.summaries()
    (table,) = datamodule.tables("train")
    assert train.num_images == 60
    assert train.class_counts.tolist() == table.class_counts().tolist()
    assert train.imbalance == train.class_counts.max() / train.class_counts.min()
    assert train.expected_mix.sum() == pytest.approx(1)
    assert train.expected_mix[-1] > 1.2 * train.natural_mix[-1]
    text = datamodule.summary()
    for part in (*datamodule.class_names, "ClassBalancedSampler", f"{train.expected_mix[-1]:.1%}"):
        assert part in text
    no_form = DetectionDataModule(shapes, train_sampler=WeightedSamplerConfig(num_samples=9, replacement=False))
    assert no_form.summaries()[0].expected_mix is None
    assert "n/a" in no_form.summary()


def test_a_set_without_objects_has_a_mix_of_zeros():
    table = AnnotationTable(
        root="/nowhere", image_paths=["0.png", "1.png"], class_names=("a", "b"), offsets=[0, 0, 0], boxes=[], labels=[]
    )
    assert expected_class_mix([table], SequentialSampler(2)).tolist() == [0, 0]
