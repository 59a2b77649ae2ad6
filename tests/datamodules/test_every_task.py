"""Guarantees of every task's data module: same bits, Lightning's loops, devices, settings by name."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest
import torch
from lightning.fabric.utilities import move_data_to_device
from torch.utils._pytree import tree_flatten
from torch.utils.data._utils.pin_memory import pin_memory

from lit_loader.callbacks import ClassMixMonitor
from lit_loader.collate import ClassificationBatch, batch_images
from lit_loader.datamodules import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    WeightedSamplerConfig,
    WorkerSettings,
)
from lit_loader.datasets import ShapesSource
from tests.support.drawn_set import drawn_source
from tests.support.extras import needs
from tests.support.lightning_ranks import trainer
from tests.support.recording_model import RecordingModel
from tests.support.toys import plain

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

CROPS = {"size": 24, "rotation": 20, "shift": 0.1, "hflip": 0.5, "photometric": 0.5}
TASKS = {
    "detection": (DetectionDataModule, {"train_transforms": {"photometric": 0.5, "iou_crop": 0.5}}),
    "landmarks": (LandmarkDataModule, {"attributes": "all", "train_transforms": CROPS}),
    "landmarks of images": (LandmarkDataModule, {"sample_unit": "image", "attributes": ["finish"]}),
    "classification": (ClassificationDataModule, {"sample_unit": "object", "train_transforms": CROPS}),
    "classification by": (ClassificationDataModule, {"sample_unit": "object", "label_attribute": "finish"}),
    "classification of images": (ClassificationDataModule, {"multi_label": True}),
    "multi-task": (MultiTaskDataModule, {"train_transforms": {"rotation": 10, "photometric": 0.5}}),
}
every_task = pytest.mark.parametrize("task", TASKS)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


def make(source, task, **settings):
    kind, task_settings = TASKS[task]
    return kind(source, **{"batch_size": 4, "seed": 3, **task_settings, **settings})


def epochs(datamodule, count=2):
    with datamodule.train_dataloader() as loader:
        return [plain(batch) for _ in range(count) for batch in loader]


@pytest.mark.parametrize(
    ("task", "method"),
    [*((task, "fork") for task in TASKS), pytest.param("multi-task", "spawn", marks=pytest.mark.soak)],
)
def test_workers_do_not_change_the_batches(source, task, method):
    sampling = WeightedSamplerConfig(balance_by="finish")
    inline = epochs(make(source, task, train_sampler=sampling))
    workers = WorkerSettings(num_workers=2, multiprocessing_context=method)
    assert epochs(make(source, task, train_sampler=sampling, workers=workers)) == inline
    half = len(inline) // 2
    assert inline[:half] != inline[half:]


def ten_times(batch):
    if isinstance(batch, ClassificationBatch):
        return dataclasses.replace(batch, images=batch.images * 10)
    if hasattr(batch, "_replace"):
        return batch._replace(images=batch.images * 10)
    return ([image * 10 for image in batch[0]], *batch[1:])


@every_task
def test_lightning_fits_tests_and_predicts(source, task):
    datamodule = make(source, task, num_workers=1, batch_transforms=ten_times)
    model = RecordingModel(lambda batch: (len(batch_images(batch)), float(batch_images(batch)[0].max())))
    monitor = ClassMixMonitor()
    runner = trainer(max_epochs=2, num_sanity_val_steps=0, log_every_n_steps=1, callbacks=[monitor])
    runner.fit(model, datamodule=datamodule)
    runner.test(model, datamodule=datamodule, verbose=False)
    runner.predict(model, datamodule=datamodule)
    sizes = {stage: datamodule.tables(stage)[0].num_images for stage in ("train", "val", "test", "predict")}
    num_seen = {stage: sum(count for count, _ in records) for stage, records in model.seen.items()}
    assert num_seen == {**sizes, "train": 2 * sizes["train"], "val": 2 * sizes["val"]}
    assert max(largest for _, largest in model.seen["train"]) > 2  # batch_transforms ran on training batches
    labelled, *attribute_mixes = monitor.mixes.values()
    assert labelled.class_names == datamodule.class_names
    assert {mix.label for mix in attribute_mixes} == datamodule.attributes.keys()
    assert all(mix.counts.sum() > 0 for mix in monitor.mixes.values())
    assert datamodule._loaders == []


@every_task
def test_a_batch_moves_to_a_device_as_a_whole(source, task):
    with make(source, task).val_dataloader() as loader:
        batch = next(iter(loader))
    moved = move_data_to_device(batch, torch.device("meta"))
    assert type(moved) is type(batch)
    tensors, _ = tree_flatten(moved)
    devices = {value.device.type for value in tensors if isinstance(value, torch.Tensor)}
    assert devices == {"meta"}


@every_task
def test_a_batch_is_page_locked_as_a_whole(source, task, monkeypatch):
    with make(source, task).val_dataloader() as loader:
        batch = next(iter(loader))
    locked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: locked.append(tensor) or tensor)
    pinned = pin_memory(batch, "cuda")
    tensors = [value for value in tree_flatten(batch)[0] if isinstance(value, torch.Tensor)]
    assert type(pinned) is type(batch)
    assert {id(tensor) for tensor in locked} == {id(tensor) for tensor in tensors}


@every_task
def test_data_modules_can_be_copied_and_pickled(source, task):
    datamodule = make(source, task)
    batches = epochs(datamodule, 1)
    for clone in (copy.deepcopy(datamodule), pickle.loads(pickle.dumps(datamodule))):
        assert epochs(clone, 1) == batches


@every_task
def test_the_summary_and_every_stage_are_there(source, task):
    datamodule = make(source, task)
    assert {summary.name for summary in datamodule.summaries()} == {"train", "val", "test"}
    for name in datamodule.class_names:
        assert name in datamodule.summary()
    for stage in ("train", "val", "test", "predict"):
        assert len(datamodule.plot_batch(stage, max_images=2).axes) == 2
    assert len(datamodule.val_dataloader().dataset) == datamodule.tables("val")[0].num_images


@needs("dev")
@pytest.mark.parametrize("kind", sorted({kind for kind, _ in TASKS.values()}, key=lambda kind: kind.__name__))
def test_a_command_line_reads_every_setting_from_the_signatures(kind):
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "data")
    named = set()
    for owner in kind.__mro__:
        if "lit_loader" in owner.__module__ and "__init__" in vars(owner):
            named |= set(inspect.signature(owner).parameters) - {"self", "preset", "settings", "unknown"}
    options = {action.dest.removeprefix("data.") for action in parser._actions}
    assert named <= options
    assert "preset" not in options
    config = {
        "source": {"class_path": "lit_loader.datasets.ShapesSource", "init_args": {"image_size": 48}},
        "batch_size": 4,
        "workers": {"num_workers": 0, "timeout": 9.0},
        "train_transforms": {"hflip": 0.0},
        "train_sampler": {
            "class_path": "lit_loader.datamodules.ClassBalancedSamplerConfig",
            "init_args": {"balance_by": "finish"},
        },
    }
    datamodule = parser.instantiate(parser.parse_object({"data": config})).data
    assert (type(datamodule.source), datamodule.source.image_size) == (ShapesSource, 48)
    assert datamodule.batch_size == 4
    assert datamodule.workers == WorkerSettings(timeout=9.0)
    assert datamodule._samplers["train"] == ClassBalancedSamplerConfig(balance_by="finish")
    assert datamodule._transforms["train"] == {"hflip": 0.0}
