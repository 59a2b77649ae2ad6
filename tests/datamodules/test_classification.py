"""The classification data module: images or object crops, labelled by class or by an attribute."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from lit_loader.collate import ClassificationBatch
from lit_loader.datamodules import ClassBalancedSamplerConfig, ClassificationDataModule, WeightedSamplerConfig
from lit_loader.datasets import FormatSource
from tests.support.drawn_set import CLASSES, FINISHES, DrawnSource, draw_set, drawn_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    root = tmp_path_factory.mktemp("single")
    return DrawnSource(train=draw_set(root, num_images=20, objects=1))


def test_a_batch_holds_images_and_ids(single):
    datamodule = ClassificationDataModule(single, batch_size=6, train_transforms={"size": [32, 40]})
    batch = datamodule.first_batch("train")
    assert isinstance(batch, ClassificationBatch)
    assert (batch.images.shape, batch.images.dtype) == ((6, 3, 32, 40), torch.float32)
    assert (batch.labels.shape, batch.labels.dtype) == ((6,), torch.int64)
    assert datamodule.class_names == CLASSES
    assert ClassificationDataModule(single).first_batch("train").images.shape[2:] == (224, 224)


def test_object_crops_of_a_detection_set(source):
    datamodule = ClassificationDataModule(
        source, sample_unit="object", batch_size=8, train_transforms={"size": 16, "resize": "stretch", "hflip": 0.5}
    )
    (table,) = source.tables("train")
    with datamodule.train_dataloader() as loader:
        batches = list(loader)
    labels = torch.cat([batch.labels for batch in batches])
    assert sorted(labels.tolist()) == sorted(table.labels.tolist())
    assert {batch.images.shape[1:] for batch in batches} == {(3, 16, 16)}


def test_an_attribute_labels(source):
    datamodule = ClassificationDataModule(source, label_attribute="finish", sample_unit="object", batch_size=8)
    (table,) = source.tables("train")
    ids = table.attributes["finish"].ids
    assert datamodule.class_names == FINISHES
    assert len(datamodule.train_dataloader().dataset) == (ids >= 0).sum()
    train = datamodule.summaries()[0]
    assert (train.label, train.class_names, train.num_left_out) == ("finish", FINISHES, (ids < 0).sum())
    assert f"{(ids < 0).sum()} left out" in datamodule.summary()


def test_several_labels_an_image(source):
    datamodule = ClassificationDataModule(source, multi_label=True, batch_size=24)
    batch = datamodule.first_batch("train")
    (table,) = source.tables("train")
    for row, image_id in zip(batch.labels, batch.image_ids.tolist(), strict=True):
        classes = set(table.labels[table.objects(image_id)].tolist())
        assert set(row.nonzero().flatten().tolist()) == classes
    train = datamodule.summaries()[0]
    assert train.class_counts.tolist() == batch.labels.sum(dim=0).int().tolist()
    assert train.num_empty == 6


def test_the_summary_is_that_of_the_label_and_of_what_is_balanced(source):
    datamodule = ClassificationDataModule(
        source,
        sample_unit="object",
        train_sampler=ClassBalancedSamplerConfig(balance_by="finish"),
        val_sampler=WeightedSamplerConfig(),
    )
    labels = [(summary.name, summary.label) for summary in datamodule.summaries()]
    assert labels[:4] == [("train", "class"), ("train", "finish"), ("val", "class"), ("val", "finish")]


def test_missing_attributes_and_several_labels_are_refused(source):
    with pytest.raises(ValueError, match="got by='colour'"):
        ClassificationDataModule(source, label_attribute="colour", sample_unit="object").train_dataloader()
    with pytest.raises(ValueError, match="pass multi_label=True or sample_unit='object'"):
        ClassificationDataModule(source).train_dataloader()


@pytest.mark.parametrize("settings", [{"sample_unit": "object"}, {"multi_label": True}], ids=str)
def test_a_picture_of_a_batch_is_saved(source, tmp_path, settings):
    datamodule = ClassificationDataModule(source, batch_size=4, **settings)
    figure = datamodule.plot_batch("val", path=tmp_path / "batch.png", max_images=3)
    assert (tmp_path / "batch.png").stat().st_size > 2000
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 3
    assert set(titles) <= {*CLASSES, "none", "common, rare", "common, pointless", "rare, pointless"}
    assert titles[0]


def test_the_summary_names_copies_of_training_images_in_other_sets(tmp_path):
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            size = (4, 4) if name == "a" else (5 + len(split), 5)
            Image.new("RGB", size).save(tmp_path / split / name / "0.png")
    source = FormatSource("image_folder", tmp_path, train="train", val="val", progress=False, cache_dir=str(tmp_path))
    summary = ClassificationDataModule(source).summary()
    sentence = "1 images of val are byte-identical copies of images of train, such as 'val/a/0.png' of 'train/a/0.png'"
    assert sentence in summary
