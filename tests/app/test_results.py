"""``results.json``: every metric, and the scores of the best validation and of the test."""

from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from rich.console import Console

from lit_loader.app.report import print_report
from lit_loader.app.results import BestValidation, write_results
from lit_loader.callbacks import ClassMixMonitor
from tests.support.made_sets import WITHOUT_POINTS, make_voc, split_in_three
from tests.support.small_app import SMALL
from tests.support.toy_task import ToyTask, loader
from tests.support.toy_task import trainer as toy_trainer


def read_results(result):
    return json.loads((result.folder / "results.json").read_text())


def test_results_hold_the_best_validation_and_the_test(app):
    result = app("train", "logger=none")
    results = read_results(result)
    validation = results["best_validation"]
    assert (validation["epoch"], validation["step"]) == (0, 4)
    assert validation["checkpoint"] == f"{result.folder}/checkpoints/best.ckpt"
    assert validation["metrics"]["val/map_50"] == pytest.approx(validation["scores"]["map_50"])
    scores = results["test"]["scores"]
    assert results["test"]["metrics"]["test/map"] == pytest.approx(scores["map"])
    assert set(scores["ap_50"]) == set(scores["ap"]) == {"disc", "square", "star"}
    assert set(scores["map_by_size"]) == set(scores["recall_by_size"]) == {"small", "medium", "large"}
    assert set(scores["recall"]) == {"1", "10", "100"}
    assert scores["map_75"] >= 0
    assert scores["map_by_size"]["large"] is None  # the images have 48 pixels
    assert {"train/loss", "val/map_50", "test/map", "data/wait_fraction"} <= set(results["metrics"])


@pytest.mark.parametrize(("num_empty", "expected"), [(3, 0), (72, 2)])
def test_report_folds_classes_without_objects_into_one_row(num_empty, expected):
    names = ["car", "bus", *(f"class {number}" for number in range(num_empty))]
    monitor = ClassMixMonitor(names, first_label=0)
    monitor.mixes["class"].add(torch.tensor([0, 0, 1]), None)
    out = Console(file=io.StringIO(), width=100)
    metrics = {name: 0.5 if name in ("car", "bus") else math.nan for name in names}
    print_report(LightningModule(), SimpleNamespace(callbacks=[monitor]), metrics, out, [])
    text = out.file.getvalue()
    assert text.count("car") == text.count("bus") == 2
    assert text.count("class ") == (1 if expected else 1 + 2 * num_empty)
    assert text.count("72 without a score") + text.count("72 without objects") == expected


def test_without_a_test_split_the_best_validation_is_printed(app):
    result = app("train", "~dataset.num_images.test", "trainer.limit_train_batches=1", "logger=none")
    assert "tested: nothing, the data has no test split" in result.out
    assert "best validation" in result.out
    assert "AP@50" in result.out
    results = read_results(result)
    assert results["test"]["scores"] is None
    assert results["best_validation"]["scores"]["ap_50"].keys() == {"disc", "square", "star"}


def test_scores_of_each_of_several_sets_are_written_and_printed(app, tmp_path):
    tables = split_in_three(tmp_path, **WITHOUT_POINTS)
    make_voc(tmp_path / "voc", tables)
    data = ["dataset=voc", f"dataset.root={tmp_path / 'voc'}", "dataset.val=[val,test]", "dataset.test=[test,val]"]
    small = [word for word in SMALL if not word.startswith("dataset.")]
    monitor = "callbacks.model_checkpoint.monitor=val/1/map_50"
    result = app("train", *small, *data, "logger=none", monitor, small=False)
    assert all(title in result.out for title in ("set 0", "set 1"))
    results = read_results(result)
    assert set(results["test"]["sets"]) == set(results["best_validation"]["sets"]) == {"0", "1"}
    for number, scores in results["test"]["sets"].items():
        assert results["test"]["metrics"][f"test/{number}/map"] == pytest.approx(scores["map"])
    assert set(results["test"]["sets"]["1"]["ap_50"]) == set(results["test"]["scores"]["ap_50"])


def test_unlabelled_class_and_a_model_of_ones_own_end_with_the_remedies(app, tmp_path):
    tables = split_in_three(tmp_path, **WITHOUT_POINTS)
    make_voc(tmp_path / "voc", tables)
    names = sorted(tables["train"].class_names)
    source = f"{{_target_: lit_loader.datasets.VocSource, root: {tmp_path / 'voc'}}}"
    data = [
        "dataset=mixed",
        f"+dataset.sources={{plant: {source}, street: {source}}}",
        f"+dataset.classes={{street: {{{names[0]}: null}}}}",
        "dataset.missing=unlabelled",
    ]
    small = [word for word in SMALL if not word.startswith(("dataset.", "model.model"))]
    model = ["~model.model", "+model.model={_target_: tests.support.small_detectors.OwnDetector, _partial_: true}"]
    result = app("train", *small, *data, *model, "logger=none", small=False, code=1)
    assert f"OwnDetector trains on every class in every image, and an image does not label ['{names[0]}']" in result.err
    assert "or fcos_small, or pass dataset.missing=absent" in result.err
    assert "Traceback" not in result.err
    result = app("train", *small, *data, "model=fcos_small", "logger=none", small=False)
    assert all(title in result.out for title in ("set plant", "set street"))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_best_validation_reports_each_of_several_sets(tmp_path):
    best = BestValidation()
    running = toy_trainer(tmp_path, max_epochs=1, callbacks=[best])
    model = ToyTask()
    running.fit(model, loader(), [loader(2), loader(3)])
    assert [title for title, _ in best.report()] == ["best validation", "recall", "F1", "set 0", "set 1"]
    assert best.report()[-1][1]["accuracy"] == best.best["sets"]["1"]["accuracy"] == model.val_set_scores["1"].accuracy


class Model(LightningModule):
    monitor = "val/loss"
    monitor_mode = "min"


def validated(best, *losses):
    """Let a fit have validations of these losses, a step apart."""
    for step, loss in enumerate(losses):
        trainer = SimpleNamespace(
            state=SimpleNamespace(fn="fit"),
            sanity_checking=False,
            checkpoint_callbacks=[],
            callback_metrics={"val/loss": torch.tensor(loss)},
            current_epoch=step,
            global_step=step,
        )
        best.on_validation_end(trainer, Model())
    return trainer


def test_best_validation_is_saved_in_checkpoints():
    best = BestValidation()
    trainer = validated(best, 3.0, 1.0, 1.0, 2.0)
    assert best.best["epoch"] == 1
    checkpoint = {}
    best.on_save_checkpoint(trainer, Model(), checkpoint)
    resumed = BestValidation()
    resumed.on_load_checkpoint(trainer, Model(), checkpoint)
    validated(resumed, 1.5)
    assert resumed.best["metrics"] == {"val/loss": 1.0}


def test_numbers_that_json_lacks_become_null(tmp_path):
    write_results(tmp_path / "results.json", {"a": float("nan"), "b": {"c": float("inf"), "d": 1.5}})
    assert json.loads((tmp_path / "results.json").read_text()) == {"a": None, "b": {"c": None, "d": 1.5}}
