"""``lit-loader train``: fit, test, files and returned metric of a run."""

from __future__ import annotations

import csv
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lit_loader.app import train
from lit_loader.app.composition import ConfigError, compose_config
from tests.support import app_recorder as recorder
from tests.support.small_app import SMALL
from tests.support.text_sets import write_image

RECORDED = "+callbacks.recorder._target_=tests.support.app_recorder.Recorder"


@pytest.fixture
def recorded(app):
    """Run the app, and return the callback that recorded its fit."""

    def run(*words):
        recorder.seen.clear()
        app("train", *words, "test=false", RECORDED)
        (record,) = recorder.seen
        return record

    return run


def test_run_fits_tests_reports_and_logs(app):
    pictures = "+callbacks.pictures._target_=lit_loader.callbacks.PictureLogger"
    curves = "+callbacks.curves._target_=lit_loader.callbacks.EvaluationCurves"
    curves_folder = "+callbacks.curves.folder=${paths.output_dir}/curves"
    result = app("train", "sampler=class_balanced", "tags=[a,b]", pictures, curves, curves_folder)
    for part in ("disc", "AP@50", "arrived", "expected", "ClassBalancedSampler", "waited", "finished in"):
        assert part in result.out
    assert "tested: checkpoint" in result.out
    folder = result.folder
    for picture in ("train_batch", "predictions", "class_report"):
        assert (folder / f"pictures/{picture}.png").stat().st_size > 5000
    names = {path.name for path in (folder / "curves").iterdir()}
    assert names == {"curves.png", "curves.csv", "classes.csv", "confusion.csv", "worst_images.png"}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    with (folder / "csv/version_0/metrics.csv").open() as file:
        logged = {name for row in csv.DictReader(file) for name, value in row.items() if value}
    assert {"train/loss", "val/map_50", "test/map", "data/wait_fraction"} <= logged
    hparams = yaml.safe_load((folder / "csv/version_0/hparams.yaml").read_text())
    assert hparams["tags"] == ["a", "b"]
    assert hparams["sampler"]["_target_"].endswith("ClassBalancedSamplerConfig")
    assert hparams["class_names"] == ["disc", "square", "star"]
    assert hparams["num_parameters"]["total"] == hparams["num_parameters"]["trainable"] > 1000
    assert hparams["paths"]["output_dir"] == str(folder)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the resumed run writes into a folder of its own
def test_resumed_run_loads_the_same_data_and_ends_with_the_same_weights(recorded):
    uninterrupted = recorded("trainer.max_epochs=2")
    checkpoint = recorded().trainer.checkpoint_callbacks[1].best_model_path
    assert checkpoint.endswith("last.ckpt")
    resumed = recorded("trainer.max_epochs=2", f"+ckpt_path={checkpoint}")
    assert uninterrupted.start == (0, 0)
    assert resumed.start == (1, 4)
    assert resumed.batches == uninterrupted.batches[4:]
    for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_callbacks_and_loggers_come_from_their_groups(recorded):
    default = recorded()
    assert [type(logger) for logger in default.trainer.loggers] == [CSVLogger]
    kinds = {type(callback) for callback in default.trainer.callbacks}
    assert {ModelCheckpoint, LearningRateMonitor} <= kinds
    assert EarlyStopping not in kinds
    words = ["callbacks=[default,early_stopping]", "logger=null"]
    other = recorded(*words, "+trainer.enable_checkpointing=false")
    assert other.trainer.loggers == []
    (stopping,) = (callback for callback in other.trainer.callbacks if isinstance(callback, EarlyStopping))
    assert (stopping.monitor, stopping.mode) == ("val/map_50", "max")
    assert not {ModelCheckpoint, LearningRateMonitor} & {type(callback) for callback in other.trainer.callbacks}


def test_logger_of_the_trainer_wins_over_the_group(recorded):
    record = recorded("+trainer.logger=false")
    assert record.trainer.loggers == []


@pytest.mark.filterwarnings("ignore:.*could not find the monitored key", "ignore:Total length of `list`")
def test_without_validation_the_last_checkpoint_is_tested(app):
    result = app("train", "~dataset.num_images.val", "trainer.limit_train_batches=1")
    assert f"tested: checkpoint {result.folder}/checkpoints/last.ckpt" in result.out


def returned(folder, *words):
    """Return the value of `train` for a run that writes into a folder."""
    paths = [f"paths.output_dir={folder}", f"paths.work_dir={folder}"]
    cfg = compose_config(overrides=[*SMALL, "logger=none", "trainer.limit_train_batches=1", *paths, *words])
    with redirect_stdout(StringIO()):
        return train(cfg)


def test_run_returns_the_metric_to_optimise(tmp_path):
    best = returned(tmp_path / "a", "test=false")
    checkpoint = torch.load(tmp_path / "a/checkpoints/best.ckpt", weights_only=True)
    states = [state for name, state in checkpoint["callbacks"].items() if name.startswith("ModelCheckpoint")]
    (score,) = (state["best_model_score"] for state in states if state["monitor"] is not None)
    assert best == pytest.approx(float(score))
    assert returned(tmp_path / "b", "test=false", "optimized_metric=train/loss") > 1
    assert returned(tmp_path / "c", "train=false", "test=false") is None
    with pytest.raises(
        ConfigError, match=r"optimized_metric='nope' is not a metric of this run: .* train/loss, val/map, val/map_50"
    ):
        returned(tmp_path / "d", "test=false", "optimized_metric=nope")


def test_warnings_are_ignored_and_the_config_printed_on_request(app):
    words = ["extras.ignore_warnings=true", "extras.print_config=true", "train=false", "test=false"]
    result = app("train", *words)
    assert "num_images:" in result.out


@pytest.mark.filterwarnings("ignore:Total length of `list`", "ignore:.*could not find the monitored key")
def test_experiment_classification_trains_on_any_folders(app, tmp_path):
    for number, name in enumerate(("cat", "dog") * 4):
        write_image(tmp_path / f"set/{name}/{number}.png", size=(40 + number, 40))
    words = ["experiment=classification", "dataset=auto", f"dataset.root={tmp_path}/set", "dataset.test_fraction=0"]
    words += ["dataset.val_fraction=0.25", "model=classifier_small", "workers=inline", "logger=none"]
    words += ["datamodule.batch_size=4", "datamodule.train_transforms.size=32", "callbacks=[class_mix]"]
    words += ["trainer.max_epochs=1"]
    result = app("train", *words, "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1", small=False)
    assert "mix" in result.out
    assert "cat" in result.out
    assert "as the only data set: dataset=files dataset.format=image_folder" in result.out + result.err
