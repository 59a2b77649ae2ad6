"""Pictures of batches: the batches of training, for every task."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lit_loader.datamodules import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.inspection import show_batches
from lit_loader.transforms import Mosaic
from tests.support.drawn_set import drawn_source
from tests.support.mixed_sets import make_folders, mixed_source
from tests.support.recording_model import stub_trainer
from tests.support.toys import plain

RANDOM = {"train_transforms": {"photometric": 0.5, "iou_crop": 0.5}, "mixing": Mosaic(p=0.5)}
TASKS = {
    "detection": (DetectionDataModule, {**RANDOM, "train_sampler": ClassBalancedSamplerConfig()}),
    "landmarks": (LandmarkDataModule, {"attributes": "all", "train_transforms": {"size": 24, "rotation": 20}}),
    "classification": (ClassificationDataModule, {"sample_unit": "object", "train_transforms": {"size": 24}}),
    "multi-task": (MultiTaskDataModule, {"train_transforms": {"rotation": 10, "photometric": 0.5}}),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


def make(source, task="detection", **settings):
    kind, task_settings = TASKS[task]
    return kind(source, **{"batch_size": 4, "seed": 3, "num_workers": 0, **task_settings, **settings})


@pytest.mark.parametrize("task", TASKS)
def test_batches_are_those_of_the_training_loader(source, task):
    datamodule = make(source, task)
    batches = datamodule.batches("train", epoch=2, start=1, num_batches=2)
    with make(source, task).train_dataloader() as loader:
        loader.set_epoch(2)
        trained = list(islice(loader, 1, 3))
    assert plain(batches) == plain(trained)
    assert plain(batches[0]) != plain(datamodule.first_batch("train", epoch=2))


def test_batches_do_not_change_the_epoch_of_training(source):
    datamodule = make(source)
    loader = datamodule.train_dataloader()
    datamodule.batches("train", epoch=5, num_batches=2)
    assert plain(next(iter(loader))) == plain(make(source).first_batch("train"))


def test_batch_transforms_have_the_draws_of_training(source):
    flip = v2.RandomHorizontalFlip(0.5)
    datamodule = make(source, "landmarks", batch_transforms=flip)
    batches = datamodule.batches("train", epoch=1, num_batches=4)
    untransformed = make(source, "landmarks").batches("train", epoch=1, num_batches=4)
    for number, batch in enumerate(untransformed):
        datamodule.trainer = stub_trainer(epoch=1, batch=number)
        assert plain(batches[number]) == plain(datamodule.on_after_batch_transfer(batch, 0))
    assert 0 < sum(not torch.equal(a.images, b.images) for a, b in zip(batches, untransformed, strict=True)) < 4


def test_evaluation_batches_use_their_own_batch_transform(source):
    datamodule = make(source, "landmarks", batch_transforms=lambda batch: None, eval_batch_transforms=lambda batch: 7)
    assert datamodule.batches("val") == [7]
    assert datamodule.batches("train") == [None]


def test_batches_beyond_the_end_are_left_out(source):
    datamodule = make(source)
    num_batches = len(datamodule.train_dataloader())
    assert len(datamodule.batches("train", start=num_batches - 1, num_batches=3)) == 1
    assert len(show_batches(datamodule, start=num_batches)) == 0


@pytest.mark.parametrize("settings", [{"start": -1}, {"num_batches": 0}, {"epoch": -1}])
def test_numbers_out_of_range_are_refused(source, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        make(source).batches("train", **settings)


@pytest.mark.parametrize("task", TASKS)
def test_each_batch_of_every_task_is_a_picture_with_its_paths(source, task):
    datamodule = make(source, task, drop_last=True)
    gallery = show_batches(datamodule, epoch=1, start=1, num_batches=2, max_images=3)
    assert len(gallery) == 2
    assert len({data for data, _ in gallery.pictures}) == 2
    batch = datamodule.batches("train", epoch=1, start=1)[0]
    ids = batch.image_ids.tolist() if task != "detection" else [target["image_id"] for target in batch[1]]
    # Without numbers in the annotations, ids are rows of the samples, which may be objects.
    (samples,) = datamodule.tables("train")
    paths = ", ".join(samples.image_paths[row] for row in ids[:3])
    assert gallery.pictures[0][1] == f"train batch 1 of epoch 1: {paths}"
    assert gallery.title == "train batches of epoch 1"


def test_paths_are_looked_up_by_the_numbers_of_the_annotations(source):
    table = source.tables("train")[0]
    numbered = type(source)(train=replace(table, source_ids=np.arange(table.num_images)[::-1] + 100))
    datamodule = make(numbered, "multi-task")
    ids = datamodule.first_batch("train").image_ids.tolist()
    (picture,) = show_batches(datamodule, num_batches=1).pictures
    assert picture[1].partition(": ")[2] == ", ".join(f"{123 - number}.png" for number in ids)


def test_batches_of_joined_sets_have_no_paths(source):
    table = source.tables("train")[0]
    joined = type(source)(train=[table, table], val=[table])
    gallery = show_batches(DetectionDataModule(joined, batch_size=4, num_workers=0), num_batches=1)
    assert gallery.pictures[0][1] == "train batch 0 of epoch 0"


def test_each_set_of_validation_is_a_section(source):
    (val,) = source.tables("val")
    several = type(source)(train=val, val=[val, val.select(np.arange(8)[::-1])])
    gallery = show_batches(make(several), "val", num_batches=1, max_images=1)
    assert [section.heading for section in gallery.sections] == ["val set 0", "val set 1"]
    captions = [caption for _, caption in gallery.pictures]
    assert captions == ["val set 0 batch 0 of epoch 0: 0.png", "val set 1 batch 0 of epoch 0: 7.png"]
    with make(several).val_dataloader()[1] as loader:
        assert plain(make(several).batches("val", dataloader_idx=1)[0]) == plain(next(iter(loader)))


def test_batches_of_tiles_name_the_images_of_the_tiles(source):
    datamodule = make(source, tiling={"size": 32, "overlap": 0.0})
    (picture,) = show_batches(datamodule, num_batches=1, max_images=4).pictures
    (tiles,) = datamodule.tables("train")
    ids = [target["image_id"] for target in datamodule.first_batch("train")[1]]
    assert tiles.num_images > 24
    assert picture[1].partition(": ")[2] == ", ".join(tiles.image_paths[tile] for tile in ids)


def test_batches_of_mixed_sources_are_pictures(tmp_path):
    make_folders(tmp_path)
    datamodule = DetectionDataModule(mixed_source(tmp_path), batch_size=4, num_workers=0)
    captions = [caption for _, caption in show_batches(datamodule, num_batches=1, max_images=1).pictures]
    assert captions == ["train batch 0 of epoch 0"]
    sections = show_batches(datamodule, "val", num_batches=1, max_images=1).sections
    assert [(section.heading, len(section.pictures)) for section in sections] == [
        (f"val set {index}", 1) for index in range(3)
    ]
