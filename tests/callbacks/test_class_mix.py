"""The class mix without arguments: shares in the data module, expected shares and counted shares."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from lit_loader import ClassAwareSamplerConfig, ClassificationDataModule, DetectionDataModule, MultiTaskDataModule
from lit_loader.callbacks import ClassMixMonitor, class_reports
from lit_loader.datamodules import DatasetsDataModule
from tests.support.drawn_set import CLASSES, FINISHES, DrawnSource, draw_set, drawn_source
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]


@pytest.fixture
def source(tmp_path):
    return drawn_source(tmp_path)


def test_counted_shares_of_classes_and_attributes_are_close_to_the_expected_shares(source, tmp_path):
    monitor = ClassMixMonitor()
    sampler = ClassAwareSamplerConfig(num_samples=240)
    datamodule = MultiTaskDataModule(source, train_sampler=sampler, train_transforms={"hflip": 0.0})
    trainer_of(tmp_path, monitor).fit(Tiny(), datamodule=datamodule)
    mix = monitor.mixes["class"]
    finish = monitor.mixes["finish"]
    assert (mix.class_names, finish.class_names) == (CLASSES, FINISHES)
    for summary in datamodule.summaries(["train"]):
        counted = monitor.mixes[summary.label]
        assert np.array_equal(counted.natural, summary.natural_mix)
        assert np.array_equal(counted.expected, summary.expected_mix)
        assert abs(counted.arrived - counted.expected).max() < 0.02
    assert abs(mix.expected - mix.natural).max() > 0.05


def test_loggers_get_the_shares_of_each_epoch(source, tmp_path):
    monitor = ClassMixMonitor()
    logger = CSVLogger(tmp_path / "log", name="", version="")
    datamodule = MultiTaskDataModule(source, train_transforms={"hflip": 0.0})
    trainer_of(tmp_path, monitor, logger=logger, max_epochs=2).fit(Tiny(), datamodule=datamodule)
    logger.save()
    with (tmp_path / "log" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["data/mix/common"]]
    assert len(rows) == 2
    for row in rows:  # every image once, so an epoch has the shares of the set
        for name, share in zip(CLASSES, monitor.mixes["class"].natural, strict=True):
            assert float(row[f"data/mix/{name}"]) == pytest.approx(share)
        for name, share in zip(FINISHES, monitor.mixes["finish"].natural, strict=True):
            assert float(row[f"data/mix/finish/{name}"]) == pytest.approx(share)
    assert monitor.mixes["class"].counts.sum() == 2 * source.given["train"].num_objects


def test_second_fit_continues_the_counts_unless_the_classes_differ(source, tmp_path):
    monitor = ClassMixMonitor()
    objects = source.given["train"].num_objects
    for count in (1, 2):
        trainer_of(tmp_path, monitor).fit(Tiny(), datamodule=DetectionDataModule(source))
        assert monitor.mixes["class"].counts.sum() == count * objects
    other = draw_set(tmp_path / "other", num_images=4, objects=1, class_names=("a", "b", "c"))
    trainer_of(tmp_path, monitor).fit(Tiny(), datamodule=DetectionDataModule(DrawnSource(train=other, val=other)))
    assert monitor.mixes["class"].class_names == ("a", "b", "c")
    assert monitor.mixes["class"].counts.sum() == 4


def test_first_label_is_the_data_modules(source, tmp_path):
    monitor = ClassMixMonitor()
    trainer_of(tmp_path, monitor).fit(Tiny(), datamodule=DetectionDataModule(source, first_label=0))
    assert np.array_equal(monitor.mixes["class"].counts, source.given["train"].class_counts())


def test_attribute_that_labels_samples_is_counted_by_name(source, tmp_path):
    monitor = ClassMixMonitor()
    datamodule = ClassificationDataModule(
        source, label_attribute="finish", sample_unit="object", train_transforms={"size": 16}
    )
    trainer_of(tmp_path, monitor).fit(Tiny(), datamodule=datamodule)
    assert list(monitor.mixes) == ["finish"]
    ids = source.given["train"].attributes["finish"].ids
    assert monitor.mixes["finish"].counts.tolist() == np.bincount(ids[ids >= 0]).tolist()


@pytest.mark.parametrize("has_datamodule", [False, True])
def test_class_names_are_required_without_a_data_module_of_tables(tmp_path, has_datamodule):
    dataset = TensorDataset(torch.ones(2))
    data = {"train_dataloaders": DataLoader(dataset), "val_dataloaders": DataLoader(dataset)}
    if has_datamodule:
        data = {"datamodule": DatasetsDataModule(train_dataset=dataset, val_dataset=dataset)}
    kind = "a DatasetsDataModule" if has_datamodule else "no data module"
    with pytest.raises(ValueError, match=f"got {kind}; give class_names"):
        trainer_of(tmp_path, ClassMixMonitor()).fit(Tiny(), **data)


def test_arguments_without_effect_are_refused():
    with pytest.raises(ValueError, match="label='finish' and first_label=1 have no effect without class_names"):
        ClassMixMonitor(label="finish")
    with pytest.raises(TypeError, match="class_names='cat' must be a list"):
        ClassMixMonitor("cat")


def test_metrics_are_assigned_to_the_classes_or_to_their_attribute():
    monitor = ClassMixMonitor(["cat", "dog"])
    mixes = {**monitor.mixes, **ClassMixMonitor(["cat", "dog"], label="kind").mixes}
    of_class = {"cat": 0.5, "dog": 0.1}
    of_kind = {"dog": 0.3, "cat": 0.2}
    sections = [("test", {"mAP": 1.0}), ("AP@50", of_class), ("kind: recall", of_kind), ("hue: recall", of_kind)]
    first, second = class_reports(mixes, sections)
    assert (first.label, first.metrics) == ("class", {"AP@50": of_class})
    assert (second.label, second.metrics) == ("kind", {"recall": of_kind})
    assert first.arrived is None
