"""Balance that changes over a run: configs, summaries, data records and training of data modules."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from lit_loader import DetectionDataModule, MixedSource, MultiTaskDataModule, ShapesSource
from lit_loader.callbacks import ClassMixMonitor, ReweightClasses
from lit_loader.datamodules import (
    AspectRatioBatching,
    ClassBalancedSamplerConfig,
    RandomSamplerConfig,
    WeightedSamplerConfig,
    WorkerSettings,
    expected_class_mix,
)
from lit_loader.datamodules.data_fingerprint import changed_sets
from lit_loader.errors import SettingError
from lit_loader.schedules import BatchChoice, EpochRange, FunctionSchedule, LinearSchedule
from tests.support.drawn_set import drawn_source
from tests.support.lightning_ranks import trainer
from tests.support.lightning_resuming import Learner, Save, assert_same, fitted
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]

POINTS = {"points": {0: 0.0, 2: 1.0}}
CONFIGS = pytest.mark.parametrize("config", [ClassBalancedSamplerConfig, WeightedSamplerConfig])


def halves(epoch):
    return epoch / 2


# -- configs -----------------------------------------------------------------------------------------------


@CONFIGS
@pytest.mark.parametrize("schedule", [POINTS, LinearSchedule({0: 0.0, 2: 1.0}), FunctionSchedule(halves)], ids=str)
def test_config_makes_the_sampler_of_each_epoch(shapes, config, schedule):
    (table,) = shapes.tables("train")
    sampler = config(exponent=schedule, balance_by="finish").make_sampler(table)
    for epoch in range(3):
        constant = config(exponent=epoch / 2, balance_by="finish").make_sampler(table)
        np.testing.assert_allclose(sampler.expected_visits(epoch), constant.expected_visits())
        if config is WeightedSamplerConfig:
            expected = constant.order(seed=1, epoch=epoch)[:]
            assert sampler.order(seed=1, epoch=epoch)[:].tolist() == expected.tolist()


def test_config_converts_mappings_and_stays_comparable():
    config = ClassBalancedSamplerConfig(exponent=POINTS, empty_share={"epochs": [0, 3], "value": 0.1})
    assert config.exponent == LinearSchedule({0: 0.0, 2: 1.0})
    assert config.empty_share == EpochRange([0, 3], 0.1)
    assert config == ClassBalancedSamplerConfig(exponent=config.exponent, empty_share=config.empty_share)
    assert hash(config) == hash(ClassBalancedSamplerConfig(exponent=POINTS, empty_share=config.empty_share))
    assert config != ClassBalancedSamplerConfig(exponent=POINTS)


@CONFIGS
@pytest.mark.parametrize(
    ("exponent", "error", "message"),
    [
        ({"choices": [0.0, 1.0]}, SettingError, "exponent=.* is drawn for every batch.*give a schedule of epochs"),
        (BatchChoice([0.0, 1.0]), SettingError, "exponent=.* is drawn for every batch.*give a schedule of epochs"),
        ({"points": {0: 0.0, 5: 2.0}}, ValueError, r"`exponent` must be in \[0, 1\].*in epoch 5"),
        ({"points": {-1: 0.0}}, SettingError, "points=.*has the epoch -1"),
        ({"point": {0: 0.0}}, SettingError, "exponent=.* describes no schedule"),
        ("hot", TypeError, "`exponent` must be a number"),
    ],
)
def test_wrong_schedule_is_refused_before_there_is_data(config, exponent, error, message):
    with pytest.raises(error, match=message):
        config(exponent=exponent)


def test_random_order_refuses_a_schedule_with_the_sampler_that_takes_it():
    with pytest.raises(SettingError, match=r"empty_share=.*length.*must not change; give it to ClassBalancedSamplerC"):
        RandomSamplerConfig(empty_share=POINTS)


def test_config_of_a_cli_takes_the_mapping_of_a_yaml_file():
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DetectionDataModule, "data")
    sampler = {
        "class_path": "lit_loader.datamodules.ClassBalancedSamplerConfig",
        "init_args": {"exponent": {"points": {0: 0.0, 2: 1.0}}},
    }
    source = {"class_path": "lit_loader.datasets.ShapesSource", "init_args": {"image_size": 48}}
    parsed = parser.parse_object({"data": {"source": source, "train_sampler": sampler}})
    datamodule = parser.instantiate(parsed).data
    assert datamodule.schedules() == {"train_sampler.exponent": LinearSchedule({0: 0.0, 2: 1.0})}


# -- summaries, records and monitors -----------------------------------------------------------------------


def test_summary_shows_the_mix_at_the_breakpoints(shapes):
    datamodule = DetectionDataModule(shapes, train_sampler=ClassBalancedSamplerConfig(exponent=POINTS))
    summary = datamodule.summaries()[0]
    assert list(summary.mix_by_epoch) == [0, 2]
    for epoch, mix in summary.mix_by_epoch.items():
        constant = DetectionDataModule(shapes, train_sampler=ClassBalancedSamplerConfig(exponent=epoch / 2))
        np.testing.assert_allclose(mix, constant.summaries()[0].expected_mix)
    np.testing.assert_array_equal(summary.expected_mix, summary.mix_by_epoch[0])
    text = datamodule.summary()
    assert "epochs 0 → 2" in text
    assert f"{summary.mix_by_epoch[0][-1]:.1%} → {summary.mix_by_epoch[2][-1]:.1%}" in text
    constant = DetectionDataModule(shapes, train_sampler=ClassBalancedSamplerConfig())
    assert "→" not in constant.summary()


def test_summary_of_many_breakpoints_shows_four(shapes):
    points = {"points": {epoch: epoch / 20 for epoch in range(0, 21, 2)}}
    datamodule = DetectionDataModule(shapes, train_sampler=WeightedSamplerConfig(exponent=points))
    assert list(datamodule.summaries()[0].mix_by_epoch) == [0, 6, 14, 20]


def test_record_tells_schedules_apart(shapes):
    def record(exponent):
        datamodule = DetectionDataModule(shapes, train_sampler=ClassBalancedSamplerConfig(exponent=exponent))
        datamodule.tables("train")
        return datamodule.state_dict()["data"]["sets"]

    old = record({"points": {0: 0.0, 5: 0.25, 20: 1.0}})
    assert changed_sets(old, record({"points": {0: 0.0, 5: 0.25, 20: 1.0}}), ["train"]) == []
    for other in ({"points": {0: 0.0, 5: 0.25, 21: 1.0}}, FunctionSchedule(halves)):
        (line,) = changed_sets(old, record(other), ["train"])
        assert re.search("train: other sampler", line)


@CONFIGS
def test_monitor_expects_the_mix_of_the_epochs_that_ended(tmp_path, config):
    monitor = ClassMixMonitor()
    sampler = config(exponent=POINTS, num_samples=480)
    datamodule = MultiTaskDataModule(drawn_source(tmp_path), train_sampler=sampler, train_transforms={"hflip": 0.0})
    trainer_of(tmp_path, monitor, max_epochs=3).fit(Tiny(), datamodule=datamodule)
    (table,) = datamodule.tables("train")
    order = sampler.make_sampler(table)
    mixes = [expected_class_mix([table], order, epoch=epoch) for epoch in range(3)]
    mix = monitor.mixes["class"]
    assert abs(mix.expected - np.mean(mixes, axis=0)).max() < 0.002
    assert abs(mix.expected - mixes[0]).max() > 0.01
    assert abs(mix.arrived - mix.expected).max() < 0.02


def test_reweighting_refuses_a_schedule(shapes, tmp_path):
    datamodule = DetectionDataModule(shapes, train_sampler=WeightedSamplerConfig(exponent=POINTS))
    callback = ReweightClasses(lambda trainer, module: None)
    with pytest.raises(ValueError, match=r"would replace the schedule.*sampler\.exponent=1\.0"):
        trainer_of(tmp_path, callback).fit(Tiny(), datamodule=datamodule)


# -- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [None, AspectRatioBatching(num_buckets=2)], ids=["plain", "groups"])
@CONFIGS
def test_run_resumes_in_the_middle_of_epoch_1(shapes, tmp_path, config, batching):
    def make(**workers):
        sampler = config(exponent=POINTS, num_samples=24)
        return DetectionDataModule(
            shapes, batch_size=8, seed=5, train_sampler=sampler, train_batching=batching, **workers
        )

    save = Save(tmp_path, "on_train_batch_end")
    expected = fitted(Learner(), datamodule=make(), callbacks=[save])
    for num_seen, path in save.saved[3:5]:
        torch.load(path, weights_only=True)
        workers = WorkerSettings(num_workers=2, persistent_workers=True)
        assert_same(fitted(Learner(), datamodule=make(workers=workers), ckpt_path=path), expected, num_seen)


def test_checkpoint_of_another_schedule_is_refused(shapes, tmp_path):
    def make(last_epoch):
        sampler = ClassBalancedSamplerConfig(exponent={"points": {0: 0.0, last_epoch: 1.0}}, num_samples=24)
        return DetectionDataModule(shapes, batch_size=8, seed=5, train_sampler=sampler)

    path = tmp_path / "run.ckpt"
    runner = trainer(max_steps=2, limit_val_batches=0)
    runner.fit(Learner(), datamodule=make(2))
    runner.save_checkpoint(path)
    with pytest.raises(ValueError, match="fingerprint="):
        trainer(max_epochs=2, limit_val_batches=0).fit(Learner(), datamodule=make(3), ckpt_path=path)


# -- several sources ---------------------------------------------------------------------------------------


def mixed(tmp_path, **settings):
    shapes = {"num_images": {"train": 12, "val": 4}, "image_size": 48, "cache_dir": str(tmp_path), "progress": False}
    sources = {"real": ShapesSource(**shapes), "drawn": ShapesSource(**shapes, seed=1)}
    return MixedSource(sources, **settings)


RATIO = {"real": 1, "drawn": {"points": {0: 3, 2: 0}}}


def test_ratio_by_epoch_leaves_a_source_out_in_the_end(tmp_path):
    datamodule = DetectionDataModule(mixed(tmp_path, ratio=RATIO, num_samples=16), batch_size=4, seed=0)
    datamodule.setup("fit")
    ((_, sampler),) = datamodule.stage_data("train")
    assert [sampler.quotas_of(epoch).tolist() for epoch in range(4)] == [[4, 12], [6, 10], [16, 0], [16, 0]]
    with datamodule.train_dataloader() as loader:
        for expected in ([4, 12], [6, 10], [16, 0]):
            image_ids = [int(target["image_id"]) for _, targets in loader for target in targets]
            assert len(image_ids) == sum(expected)
    text = datamodule.summary()
    assert re.search(r"epochs 0 → 2, share .* 75.0% → 0.0% ", text)
    drawn = next(summary for summary in datamodule.summaries() if summary.name == "train/drawn")
    assert (drawn.share, drawn.share_by_epoch) == (0.75, {0: 0.75, 2: 0.0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio_per": "batch"}, r"ratio_per='batch' fixes .*ratio has a schedule; pass ratio_per='epoch'"),
        ({"num_samples": None}, r"num_samples=None leaves the length of an epoch open.*pass num_samples=\.\.\."),
        ({"ratio": {"real": 1, "drawn": {"choices": [1, 2]}}}, r"ratio.drawn=.* is drawn for every batch"),
        ({"ratio": {"real": 1, "drawn": {"points": {0: 1, 4: -1}}}}, r"ratio\['drawn'\]=-1.0 .*not negative .*epoch 4"),
        ({"ratio": {"real": 0, "drawn": EpochRange([0, 4])}}, r"ratio\['real'\]=0 must be positive"),
        ({"ratio": {"real": 1, "drawn": {"0": 3}}}, "ratio.drawn=.* describes no schedule"),
    ],
)
def test_ratio_that_cannot_be_scheduled_is_refused_at_once(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        mixed(tmp_path, **{"ratio": RATIO, "num_samples": 16, **settings})


def test_balance_by_epoch_within_sources_that_come_in_full(tmp_path):
    sampler = ClassBalancedSamplerConfig(exponent=POINTS)
    in_full = DetectionDataModule(mixed(tmp_path), batch_size=4, train_sampler=sampler)
    assert list(in_full.summaries()[0].mix_by_epoch) == [0, 2]
    by_ratio = DetectionDataModule(mixed(tmp_path, ratio={"real": 3, "drawn": 1}), batch_size=4, train_sampler=sampler)
    with pytest.raises(ValueError, match=r"sources\[0\]: ClassBalancedSampler has a setting that changes by epoch"):
        by_ratio.setup("fit")
