"""Checkpoints record their data, and a later run says what has changed, or refuses it with ``strict_data``."""

from __future__ import annotations

import functools
import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lit_loader import DetectionDataModule
from lit_loader.datamodules import ClassBalancedSamplerConfig
from lit_loader.datamodules.data_fingerprint import changed_sets, is_record
from lit_loader.datasets import ShapesSource, TableSource
from lit_loader.errors import DataChangedError
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.lightning_resuming import Learner, Save, fitted

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
]
STAGES = ("train", "val", "test")
LOGGER = "lit_loader.datamodules.data_fingerprint"


class Changed(TableSource):
    """The tables of another source, changed by a function of the stage and the table."""

    def __init__(self, source, change=lambda stage, table: table):
        self.source = source
        self.change = change

    def prepare(self):
        self.source.prepare()

    def tables(self, stage):
        return [self.change(stage, table) for table in self.source.tables(stage)]


def relabelled(stage, table):
    labels = table.labels.copy()
    labels[np.flatnonzero(labels == 0)[:3]] = 1
    return replace(table, labels=labels)


def moved(stage, table):
    paths = list(table.image_paths)
    paths[2] = f"other/{paths[2]}"
    return replace(table, image_paths=paths)


def shorter(stage, table):
    return table.select(np.arange(3, table.num_images))


def moved_and_resized(stage, table):
    return replace(moved(stage, table), widths=table.widths + 1)


def shuffled(stage, table):
    return table.select(np.arange(table.num_images)[::-1])


def reordered_classes(stage, table):
    return table.with_class_names(table.class_names[::-1])


def renamed_class(stage, table):
    return replace(table, class_names=("car", *table.class_names[1:]))


def renamed_points(stage, table):
    return replace(table, keypoint_names=[f"p{i}" for i in range(len(table.keypoint_names))])


def unlabelled(stage, table):
    return table.with_unlabelled_classes(table.class_names[:1])


def opened(source, stages=STAGES, **settings):
    datamodule = DetectionDataModule(source, **{"batch_size": 4, "seed": 1, **settings})
    for stage in stages:
        datamodule.tables(stage)
    return datamodule


def record(*arguments, **settings):
    return opened(*arguments, **settings).state_dict()["data"]


def lines(old, new, stages=STAGES):
    assert is_record(old)
    return changed_sets(old["sets"], new["sets"], stages)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (relabelled, r"labels differ \({0} \d+ -> \d+, {1} \d+ -> \d+\)"),
        (moved, "other image paths"),
        (moved_and_resized, "other image paths, sizes differ"),
        (shuffled, "other image paths, boxes.* differ"),
        (shorter, r"57 images instead of 60, labels differ \(\w+ \d+ -> \d+.*\)"),
        (reordered_classes, r"other class names \({0}, .* -> {2}, .*\)"),
        (renamed_class, r"labels differ, other class names \({0}, .* -> car, .*\)"),
        (renamed_points, r"other keypoint names \(.*p0.*\)"),
        (unlabelled, r"other unlabelled classes \(none -> {0}\)"),
    ],
)
def test_a_change_is_named_in_one_line_for_each_set(shapes, change, text):
    messages = lines(record(shapes), record(Changed(shapes, change)))
    assert [line.partition(":")[0] for line in messages] == list(STAGES)
    assert re.fullmatch(f"train: {text.format(*shapes.tables('train')[0].class_names)}", messages[0])


def test_transforms_and_samplers_are_compared(shapes):
    old = record(shapes, train_transforms={"size": 48})
    new = record(shapes, train_transforms={"size": 64}, train_sampler=ClassBalancedSamplerConfig())
    messages = lines(old, new)
    assert [line.partition(":")[0] for line in messages] == list(STAGES)
    assert re.search(r"other transforms \(.*48.* -> .*64.*\), other sampler \(Random.* -> ClassBalanced", messages[0])
    assert "sampler" not in messages[1]


def test_another_expected_class_mix_is_a_change(shapes):
    old = record(shapes, ["train"], train_sampler=ClassBalancedSamplerConfig())
    new = record(shapes, ["train"], train_sampler=ClassBalancedSamplerConfig(exponent=0.5))
    assert re.search(r"other expected class mix \(\w+ \d+\.\d % -> \d+\.\d %", lines(old, new)[0])


@pytest.mark.parametrize(
    "settings",
    [{"seed": 2}, {"batch_size": 8}, {"num_workers": 2}, {"strict_data": True}, {"drop_last": True}],
    ids=str,
)
def test_settings_that_are_no_data_are_no_change(shapes, settings):
    assert record(shapes) == record(shapes, **settings)


def test_data_read_through_another_cache_is_the_same(shapes, tmp_path):
    arguments = {"num_images": {"train": 6, "val": 3}, "image_size": 48, "progress": False}
    records = [record(ShapesSource(cache_dir=str(tmp_path / name), **arguments)) for name in "ab"]
    assert records[0] == records[1]
    assert records[0]["sets"]["train"]["numbers"]["images"] == 6


def test_tiles_of_an_image_count_once(shapes):
    assert record(shapes, tiling={"size": 32})["sets"]["val"]["numbers"]["images"] == len(shapes.tables("val")[0])


def test_another_number_of_sets_of_a_stage_is_a_change(shapes):
    class TwoSets(Changed):
        def tables(self, stage):
            return super().tables(stage) * (2 if stage == "val" else 1)

    messages = lines(record(shapes), record(TwoSets(shapes)))
    assert messages == ["val/0: set is new", "val/1: set is new", "val: set is gone"]


def test_only_open_stages_are_recorded_and_none_is_opened(shapes):
    assert record(shapes, ["val"])["sets"].keys() == {"val"}
    assert "data" not in DetectionDataModule(shapes).state_dict()


def test_a_table_is_hashed_once(shapes, monkeypatch):
    datamodule = opened(shapes)
    first = datamodule.state_dict()
    monkeypatch.setattr("lit_loader.datamodules.table_module.set_record", None)
    assert datamodule.state_dict() == first


def _transform(image, target):
    return image, target


def test_descriptions_hold_no_address(shapes):
    for transforms in (_transform, functools.partial(_transform), lambda image, target: (image, target)):
        text = record(shapes, ["train"], train_transforms=transforms)["sets"]["train"]["texts"]["transforms"]
        assert "_transform" in text or "lambda" in text
        assert " at 0x" not in text


def test_a_failing_repr_does_not_prevent_a_checkpoint(shapes):
    class Failing:
        def __call__(self, image, target):
            return image, target

        def __repr__(self):
            raise RuntimeError

    text = record(shapes, ["train"], train_transforms=Failing())["sets"]["train"]["texts"]["transforms"]
    assert "Failing" in text


def save_record(shapes, folder):
    rank = torch.distributed.get_rank()
    model = Learner()
    datamodule = DetectionDataModule(shapes, batch_size=8, seed=5)
    runner = trainer(max_epochs=1, limit_val_batches=0, limit_train_batches=2)
    runner.fit(model, datamodule=datamodule)
    (folder / f"{rank}.json").write_text(json.dumps(datamodule.state_dict()["data"], sort_keys=True))


def test_two_ranks_record_the_same(shapes, tmp_path):
    on_ranks(2, tmp_path, save_record, shapes, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second == record(shapes, ["train", "val"])


# -- with a Trainer ---------------------------------------------------------------------------------------------------


class Model(Learner):
    def test_step(self, batch, batch_idx):
        pass


@pytest.fixture(scope="module")
def checkpoint(shapes, tmp_path_factory):
    """A checkpoint in the middle of an epoch, whose record has all stages."""
    save = Save(tmp_path_factory.mktemp("checkpoint"))
    fitted(Model(), datamodule=opened(shapes), callbacks=[save], max_epochs=1)
    return save.saved[2][1]


@pytest.fixture
def run(caplog):
    """Fits, tests or validates with a checkpoint; returns the warnings about the data."""

    def run_stage(kind, datamodule, checkpoint):
        caplog.clear()
        runner = trainer(max_epochs=1, num_sanity_val_steps=0)
        options = {} if kind == "fit" else {"verbose": False}
        model = Model(make_val=list)
        getattr(runner, kind)(model, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True, **options)
        return [item.getMessage() for item in caplog.records if item.name == LOGGER and item.levelno == logging.WARNING]

    return run_stage


def in_stage(stage, change):
    return lambda other, table: change(other, table) if other == stage else table


@pytest.mark.parametrize(("kind", "stage"), [("fit", "train"), ("fit", "val"), ("validate", "val"), ("test", "test")])
def test_a_run_warns_of_its_own_stages(shapes, checkpoint, kind, stage, run):
    source = Changed(shapes, in_stage(stage, relabelled))
    messages = run(kind, DetectionDataModule(source, batch_size=4, seed=1), checkpoint)
    assert len(messages) == 1
    assert messages[0].startswith(f"data changed since the checkpoint: {stage}: labels differ (")


@pytest.mark.parametrize(
    ("kind", "stage"), [("validate", "train"), ("test", "train"), ("test", "val"), ("fit", "test")]
)
def test_a_run_does_not_compare_other_stages(shapes, checkpoint, kind, stage, run):
    datamodule = opened(Changed(shapes, in_stage(stage, relabelled)), strict_data=True)
    assert run(kind, datamodule, checkpoint) == []


def test_other_training_transforms_are_no_change_of_a_test(shapes, checkpoint, run):
    datamodule = DetectionDataModule(
        shapes, batch_size=2, num_workers=1, seed=9, strict_data=True, train_transforms={"hflip": 0.1}
    )
    assert run("test", datamodule, checkpoint) == []


def test_other_training_transforms_are_a_change_of_a_resumed_run(shapes, checkpoint, run):
    datamodule = DetectionDataModule(shapes, batch_size=4, seed=1, train_transforms={"hflip": 0.1})
    (line,) = run("fit", datamodule, checkpoint)
    assert "train: other transforms (" in line


@pytest.mark.parametrize(("kind", "stage"), [("fit", "train"), ("validate", "val"), ("test", "test")])
def test_strict_data_refuses_before_the_first_batch(shapes, checkpoint, kind, stage):
    datamodule = DetectionDataModule(Changed(shapes, in_stage(stage, moved)), batch_size=4, seed=1, strict_data=True)
    model = Model(make_val=list)
    runner = trainer(max_epochs=1)
    with pytest.raises(DataChangedError, match=f"{stage}: other image paths; restore .*, or pass strict_data=False"):
        getattr(runner, kind)(model, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    assert model.seen == []


def test_strict_data_accepts_the_same_data(shapes, checkpoint, run):
    assert run("fit", opened(shapes, strict_data=True), checkpoint) == []


def without_record(checkpoint, folder, stored=None):
    content = torch.load(checkpoint, weights_only=True)
    if stored is None:
        del content["DetectionDataModule"]["data"]
    else:
        content["DetectionDataModule"]["data"] = stored
    torch.save(content, folder / "other.ckpt")
    return folder / "other.ckpt"


def test_a_checkpoint_without_a_record_is_silent_unless_strict(shapes, checkpoint, tmp_path, run):
    path = without_record(checkpoint, tmp_path)
    source = Changed(shapes, relabelled)
    assert run("test", DetectionDataModule(source), path) == []
    (line,) = run("test", DetectionDataModule(source, strict_data=True), path)
    assert line == "strict_data=True: the checkpoint has no record of test, so this is not compared"


def test_a_stage_that_the_checkpoint_does_not_know_is_named_if_strict(shapes, tmp_path, run):
    save = Save(tmp_path)
    fitted(Model(), datamodule=DetectionDataModule(shapes, batch_size=4), callbacks=[save], max_epochs=1)
    path = save.saved[0][1]
    assert run("test", DetectionDataModule(Changed(shapes, relabelled)), path) == []
    (line,) = run("test", DetectionDataModule(shapes, strict_data=True), path)
    assert line == "strict_data=True: the checkpoint has no record of test, so this is not compared"


def test_a_state_loaded_without_a_run_compares_the_open_training_data(shapes):
    state = opened(shapes).state_dict()
    datamodule = opened(Changed(shapes, relabelled), strict_data=True)
    with pytest.raises(DataChangedError, match="train: labels differ"):
        datamodule.load_state_dict(state)
    datamodule.trainer = trainer()
    datamodule.load_state_dict(state)


def test_prediction_compares_nothing(shapes, checkpoint):
    class Predicting(Model):
        def predict_step(self, batch, batch_idx):
            return 0

    datamodule = DetectionDataModule(Changed(shapes, relabelled), batch_size=4, strict_data=True)
    datamodule.tables("test")
    # A difference would raise.
    trainer().predict(Predicting(), datamodule=datamodule, ckpt_path=checkpoint, return_predictions=False)


def test_the_record_changes_no_state_of_the_loader(shapes, checkpoint):
    state = torch.load(checkpoint, weights_only=True)["DetectionDataModule"]
    assert state.keys() == {"train", "position", "data"}
    assert json.loads(json.dumps(state["data"])) == state["data"]


# -- records from anyone ----------------------------------------------------------------------------------------------

_ESCAPE = "\x1b[31m\n\r\x07"
NONSENSE = (None, -1, 2**70, 1.5, True, "x" * 10**5, ["x"], b"x", [[]])
BAD_MAPPINGS = ({"x": [1]}, {"x": -1}, {"x": 2**70}, {1: 1}, {"x" * 1000: 1}, {_ESCAPE: 1}, {"x": _ESCAPE})


def damaged_records(stored):
    """Yield nonsense instead of a record, and copies of a record with one value replaced by nonsense."""
    yield from (*NONSENSE[1:], *BAD_MAPPINGS, {"version": 1})
    train = stored["sets"]["train"]
    for value in (*NONSENSE, *BAD_MAPPINGS, {str(i): "" for i in range(1000)}):
        for key in stored:
            yield {**stored, key: value}
        for key in train:
            yield {**stored, "sets": {"train": {**train, key: value}}}
    yield {**stored, "version": 2}
    yield {**stored, "more": 1}
    yield {**stored, "sets": {"train": {**train, "numbers": {"images": 1}}}}
    yield {**stored, "sets": {"train": {**train, "texts": {"sampler": "x" * 1000}}}}


def test_nonsense_and_control_characters_are_a_damaged_record(shapes):
    stored = record(shapes)
    for damaged in damaged_records(stored):
        assert not is_record(damaged), repr(damaged)[:300]


@pytest.mark.parametrize("strict", [False, True])
def test_a_damaged_record_is_reported_once_and_the_run_goes_on(shapes, checkpoint, tmp_path, run, strict):
    path = without_record(checkpoint, tmp_path, stored={"version": 1, "sets": [_ESCAPE]})
    (line,) = run("test", DetectionDataModule(shapes, strict_data=strict), path)
    assert "record of its data is damaged" in line
    assert line.isprintable()


def test_the_record_of_many_classes_stays_small_and_printable(shapes):
    def wide(stage, table):
        return replace(table, class_names=[f"class number {i}\x1b é" for i in range(3000)])

    transforms = v2.Compose([v2.ColorJitter(0.1)] * 100)
    settings = {"train_transforms": transforms, "train_sampler": ClassBalancedSamplerConfig()}
    stored = record(Changed(shapes, wide), **settings)
    assert is_record(stored)
    assert len(json.dumps(stored, ensure_ascii=False).encode()) < 10 * 1024


def test_a_new_version_of_a_library_is_logged_and_never_refused(shapes, checkpoint, tmp_path, run, caplog):
    stored = torch.load(checkpoint, weights_only=True)["DetectionDataModule"]["data"]
    stored["versions"]["torch"] = "1.0"
    path = without_record(checkpoint, tmp_path, stored=stored)
    with caplog.at_level("INFO"):
        assert run("test", DetectionDataModule(shapes, strict_data=True), path) == []
    assert f"version changed since the checkpoint: torch 1.0 -> {torch.__version__}" in caplog.text
