"""Worker settings of a data module: "auto" is decided and logged once, the others reach the loader."""

from __future__ import annotations

import logging

import pytest
import torch
from lightning.pytorch import Trainer

from lit_loader import DetectionDataModule
from lit_loader.datamodules import WorkerSettings
from lit_loader.foundation.host import Resources
from tests.support.extras import needs

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture
def host(monkeypatch):
    """Simulate a host with 12 cores and return the arguments of each look at it."""
    requests = []

    def read(**arguments):
        requests.append(arguments)
        arguments["ranks_on_host"] = arguments["ranks_on_host"] or 1
        return Resources(num_cores=12, **arguments)

    monkeypatch.setattr("lit_loader.datamodules.workers.read_resources", read)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    return requests


def decisions(caplog):
    return [record.getMessage() for record in caplog.records if "num_workers='auto'" in record.getMessage()]


def test_auto_is_decided_and_logged_once(shapes, host, caplog):
    datamodule = DetectionDataModule(shapes, num_workers="auto")
    assert host == []  # nothing is read before a loader is made
    with caplog.at_level(logging.INFO):
        loaders = [datamodule.train_dataloader(), datamodule.val_dataloader(), datamodule.test_dataloader()]
    assert [loader.num_workers for loader in loaders] == [11, 11, 11]
    assert decisions(caplog) == ["num_workers='auto' is 11: 12 cores, of which the training step keeps one"]
    assert datamodule.num_workers == "auto"
    assert datamodule.num_workers_of_loaders == 11
    assert len(host) == 1
    assert "num_workers=auto" in str(datamodule)


@pytest.mark.parametrize(("devices", "number"), [(1, 11), (2, 5), (3, 3)])
def test_a_trainers_ranks_share_the_host(shapes, host, devices, number):
    datamodule = DetectionDataModule(shapes, num_workers="auto")
    datamodule.trainer = Trainer(accelerator="cpu", devices=devices, strategy="ddp", **QUIET)
    assert datamodule.num_workers_of_loaders == number
    assert host == [{"ranks_on_host": devices, "has_accelerator": False}]


def test_auto_is_decided_again_for_the_ranks_of_a_trainer(shapes, host, caplog):
    datamodule = DetectionDataModule(shapes, num_workers="auto")
    with caplog.at_level(logging.INFO):
        assert datamodule.num_workers_of_loaders == 11
        datamodule.trainer = Trainer(accelerator="cpu", devices=4, strategy="ddp", **QUIET)
        assert [datamodule.num_workers_of_loaders for _ in range(3)] == [2, 2, 2]
    assert len(decisions(caplog)) == 2


def test_an_accelerator_leaves_all_cores_to_the_workers(shapes, host, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    workers = WorkerSettings(num_workers="auto", pin_memory=False)
    assert DetectionDataModule(shapes, workers=workers).num_workers_of_loaders == 12
    # a trainer on the CPU beside an accelerator that it does not use
    datamodule = DetectionDataModule(shapes, workers=workers)
    datamodule.trainer = Trainer(accelerator="cpu", devices=1, **QUIET)
    assert datamodule.num_workers_of_loaders == 11


def test_threads_take_less_memory_than_processes(shapes, monkeypatch):
    monkeypatch.setattr(
        "lit_loader.datamodules.workers.read_resources", lambda **_: Resources(num_cores=12, available_bytes=2 << 30)
    )
    assert DetectionDataModule(shapes, num_workers="auto").num_workers_of_loaders == 2
    threads = DetectionDataModule(shapes, num_workers="auto", workers=WorkerSettings(worker_method="thread"))
    assert threads.num_workers_of_loaders == 8


def test_auto_may_decide_on_no_workers(shapes, monkeypatch):
    monkeypatch.setattr("lit_loader.datamodules.workers.read_resources", lambda **_: Resources(num_cores=1))
    workers = WorkerSettings(num_workers="auto", prefetch_factor=4, timeout=5.0, multiprocessing_context="spawn")
    loader = DetectionDataModule(shapes, workers=workers).train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.timeout) == (0, None, 0)
    assert loader.persistent_workers is False
    assert next(iter(loader))


@pytest.mark.parametrize("persistent", [None, True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_persist_unless_it_is_forbidden_or_there_are_none(shapes, num_workers, persistent):
    datamodule = DetectionDataModule(
        shapes, workers=WorkerSettings(num_workers=num_workers, persistent_workers=persistent)
    )
    assert datamodule.train_dataloader().persistent_workers is (num_workers > 0 and persistent is not False)


@pytest.mark.parametrize(
    "settings",
    [
        {"worker_method": "thread", "prefetch_factor": 3},
        {"worker_method": "multiprocessing", "multiprocessing_context": "spawn"},
        {"hang_timeout_s": 60.0, "timeout": 7.0},
    ],
    ids=str,
)
def test_settings_reach_the_loader(shapes, settings):
    loader = DetectionDataModule(shapes, workers=WorkerSettings(num_workers=2, **settings)).train_dataloader()
    for name, value in settings.items():
        actual = getattr(loader, name)
        assert (actual.get_start_method() if name == "multiprocessing_context" else actual) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": "many"}, "num_workers='many' of type str should be int or 'auto'"),
        ({"worker_method": "threads"}, "worker_method='threads' of type str should be 'multiprocessing' or 'thread'"),
        (
            {"worker_method": "thread", "multiprocessing_context": "fork"},
            "multiprocessing_context='fork' needs worker processes, and worker_method='thread' has none",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        WorkerSettings(**settings)


def batches(datamodule):
    with datamodule.train_dataloader() as loader:
        return [(torch.stack(images), [target["boxes"].tolist() for target in targets]) for images, targets in loader]


@pytest.mark.parametrize("settings", [{"num_workers": 2, "worker_method": "thread"}, {"num_workers": 2}], ids=str)
def test_batches_do_not_depend_on_the_worker_method(shapes, settings):
    transforms = {"train_transforms": {"hflip": 0.5, "photometric": 0.5}}
    inline = batches(DetectionDataModule(shapes, batch_size=8, **transforms))
    outputs = batches(DetectionDataModule(shapes, batch_size=8, **transforms, workers=settings))
    assert [boxes for _, boxes in outputs] == [boxes for _, boxes in inline]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(outputs, inline, strict=True))


@needs("hydra")
@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("auto", {"num_workers": "auto", "worker_method": "multiprocessing"}),
        ("threads", {"num_workers": 2, "worker_method": "thread"}),
        ("inline", {"num_workers": 0, "worker_method": "multiprocessing"}),
    ],
)
def test_options_of_the_config_group_are_applied(option, settings):
    from lit_loader.app.composition import build_datamodule, compose_config

    datamodule = build_datamodule(compose_config(overrides=["dataset=shapes", f"workers={option}"]))
    assert {name: getattr(datamodule.workers, name) for name in settings} == settings
