"""Checkpoints record their data, and a later run says what has changed, or refuses it with ``strict_data``."""

from __future__ import annotations

import copy
import json
import re
import warnings

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lit_loader import DetectionDataModule
from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules import ClassBalancedSamplerConfig, LandmarkDataModule
from lit_loader.datamodules.data_fingerprint import DamagedRecordError, data_changes
from lit_loader.datasets import ShapesSource, TableSource
from lit_loader.errors import DataChangedError
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.lightning_resuming import Learner, Save, fitted

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
]
STAGES = ("train", "val", "test")


class Changed(TableSource):
    """The tables of another source, changed by a function of the stage and the table."""

    def __init__(self, source, change=lambda stage, table: table):
        self.source = source
        self.change = change

    def prepare(self):
        self.source.prepare()

    def tables(self, stage):
        return [self.change(stage, table) for table in self.source.tables(stage)]


def replaced(table, **columns):
    return AnnotationTable(**{**table._parts(), **columns})


def relabelled(stage, table):
    labels = table.labels.copy()
    labels[np.flatnonzero(labels == 0)[:3]] = 1
    return replaced(table, labels=labels)


def moved(stage, table):
    paths = list(table.image_paths)
    paths[2] = f"other/{paths[2]}"
    return replaced(table, image_paths=paths)


def shorter(stage, table):
    return table.select(np.arange(3, table.num_images))


def reordered_classes(stage, table):
    return table.with_class_names(table.class_names[::-1])


def resized(stage, table):
    return replaced(table, widths=table.widths + 1)


def shuffled(stage, table):
    return table.select(np.arange(table.num_images)[::-1])


def unlabelled(stage, table):
    return table.with_unlabelled_classes(table.class_names[:1])


def opened(source, stages=STAGES, kind=DetectionDataModule, **settings):
    datamodule = kind(source, **{"batch_size": 4, "seed": 1, **settings})
    for stage in stages:
        datamodule.tables(stage)
    return datamodule


def record(*arguments, **settings):
    return opened(*arguments, **settings).state_dict()["data"]


def lines(old, new, sets=STAGES):
    return data_changes(old, new, sets).lines


@pytest.fixture(scope="module")
def names(shapes):
    return shapes.tables("train")[0].class_names


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (relabelled, r"train: labels differ \({0} (\d+) -> \d+, {1} \d+ -> \d+\)"),
        (moved, "train: 1 of 60 images has another name"),
        (shorter, r"train: 3 of 60 images are gone, labels differ \(.*\)"),
        (resized, "train: sizes differ"),
        (shuffled, "train: images are in another order"),
        (unlabelled, "train: unlabelled_classes differ"),
    ],
)
def test_a_change_is_named_in_one_line_for_each_set(shapes, names, change, text):
    messages = lines(record(shapes), record(Changed(shapes, change)))
    assert [line.partition(":")[0] for line in messages] == list(STAGES)
    assert re.fullmatch(text.format(*names), messages[0])


def test_new_images_are_counted_beside_the_labels_they_bring(shapes):
    messages = lines(record(Changed(shapes, shorter)), record(shapes), ["test"])
    assert messages[0].startswith("test: 3 of 24 images are new, labels differ (")
    assert " -> " in messages[0]


def test_a_moved_image_counts_as_new_and_gone_if_other_images_changed(shapes):
    def moved_and_resized(stage, table):
        sizes = np.array(table.widths)
        sizes[[5, 7]] += 1
        return replaced(moved(stage, table), widths=sizes)

    messages = lines(record(shapes), record(Changed(shapes, moved_and_resized)), ["train"])
    changes = "1 of 60 images is new, 1 of 60 images is gone, annotations of other images differ"
    assert messages == [f"train: {changes}"]


def test_another_order_of_the_classes_is_no_change_of_the_labels(shapes):
    messages = lines(record(shapes), record(Changed(shapes, reordered_classes)))
    assert messages == ["names: the classes are in another order"]


def test_other_classes_are_named(shapes, names):
    def renamed(stage, table):
        return replaced(table, class_names=("car", *names[1:]))

    messages = lines(record(shapes), record(Changed(shapes, renamed)), ["train"])
    assert messages[0] == f"names: the classes differ (new: car; gone: {names[0]})"
    assert messages[1].startswith("train: labels differ (")


def test_keypoints_are_compared_where_batches_have_them(shapes):
    def renamed(stage, table):
        return replaced(table, keypoint_names=[f"p{i}" for i in range(len(table.keypoint_names))])

    source = Changed(shapes, renamed)
    old, new = (record(data, kind=LandmarkDataModule) for data in (shapes, source))
    assert lines(old, new) == ["names: the names or mirror pairs of the keypoints differ"]


def test_thousands_of_changed_images_are_estimated(shapes):
    def many(num_images, first):
        def change(stage, table):
            paths = [f"{i}.jpg" for i in range(first, first + num_images)]
            return AnnotationTable(
                root="/d",
                image_paths=paths,
                class_names=table.class_names,
                offsets=np.zeros(num_images + 1, np.int64),
                boxes=np.zeros((0, 4)),
                labels=[],
            )

        return record(Changed(shapes, change), ["train"])

    (line,) = lines(many(100_000, 0), many(90_000, 20_000), ["train"])
    words = line.replace(",", "").split()
    assert words[:2] == ["train:", "about"]
    assert words[3:8] == ["of", "90000", "images", "are", "new"]
    assert 5000 < int(words[2]) < 15_000
    assert words[10:] == ["of", "100000", "images", "are", "gone"]
    assert 15_000 < int(words[9]) < 25_000


def test_transforms_and_samplers_are_compared(shapes):
    old = record(shapes, train_transforms={"size": 48})
    new = record(shapes, train_transforms={"size": 64}, train_sampler=ClassBalancedSamplerConfig())
    messages = lines(old, new)
    assert [line.partition(":")[0] for line in messages] == list(STAGES)
    assert "transforms differ (" in messages[0]
    assert "48" in messages[0]
    assert "64" in messages[0]
    assert "sampler differ (RandomSamplerConfig() -> ClassBalancedSamplerConfig())" in messages[0]
    assert "sampler" not in messages[1]


def test_another_balance_of_the_same_sampler_changes_the_class_mix(shapes):
    def few(stage, table):
        return table.select(np.arange(10))

    settings = {"stages": ["train"], "train_sampler": ClassBalancedSamplerConfig()}
    old = record(shapes, **settings)
    new = record(Changed(shapes, few), **settings)
    new["sets"]["train"]["mix"] = [700, 200, 100]
    assert "the expected class mix differs (" in lines(old, new, ["train"])[0]


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
    assert records[0]["sets"]["train"]["images"] == 6


def test_another_number_of_sets_of_a_stage_is_a_change(shapes):
    class TwoSets(Changed):
        def tables(self, stage):
            return super().tables(stage) * (2 if stage == "val" else 1)

    old = record(shapes)
    new = record(TwoSets(shapes))
    assert lines(old, new, ["val/0", "val/1"]) == ["sets: val/0, val/1 new, val gone"]
    assert data_changes(record(shapes, ["train"]), new, ["val/0", "val/1"]).missing == ["val/0", "val/1"]


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


def test_descriptions_hold_no_address_and_are_bounded(shapes):
    many = v2.Compose([v2.ColorJitter(0.1)] * 100)
    for transforms in (_transform, many, lambda image, target: (image, target)):
        text = record(shapes, ["train"], train_transforms=transforms)["sets"]["train"]["texts"]["transforms"]
        assert " at 0x" not in text
        assert len(text) <= 240


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


def run(kind, datamodule, checkpoint, **settings):
    """Fit, test or validate with a checkpoint; return the warnings about the data, and the model."""
    model = Model(make_val=list)
    runner = trainer(max_epochs=1, num_sanity_val_steps=0, **settings)
    options = {} if kind == "fit" else {"verbose": False}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(runner, kind)(model, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True, **options)
    messages = [str(item.message) for item in caught]
    return [text for text in messages if text.startswith(("data changed", "strict_data", "the checkpoint's record"))]


def in_stage(stage, change):
    return lambda other, table: change(other, table) if other == stage else table


@pytest.mark.parametrize(("kind", "stage"), [("fit", "train"), ("fit", "val"), ("validate", "val"), ("test", "test")])
def test_a_run_warns_of_its_own_stages(shapes, checkpoint, kind, stage):
    source = Changed(shapes, in_stage(stage, relabelled))
    messages = run(kind, DetectionDataModule(source, batch_size=4, seed=1), checkpoint)
    assert len(messages) == 1
    assert messages[0].startswith(f"data changed since the checkpoint: {stage}: labels differ (")


@pytest.mark.parametrize(
    ("kind", "stage"), [("validate", "train"), ("test", "train"), ("test", "val"), ("fit", "test")]
)
def test_a_run_does_not_compare_other_stages(shapes, checkpoint, kind, stage):
    datamodule = opened(Changed(shapes, in_stage(stage, relabelled)), strict_data=True)
    assert run(kind, datamodule, checkpoint) == []


def test_other_training_transforms_are_no_change_of_a_test(shapes, checkpoint):
    datamodule = DetectionDataModule(
        shapes, batch_size=2, num_workers=1, seed=9, strict_data=True, train_transforms={"hflip": 0.1}
    )
    assert run("test", datamodule, checkpoint) == []


def test_other_training_transforms_are_a_change_of_a_resumed_run(shapes, checkpoint):
    datamodule = DetectionDataModule(shapes, batch_size=4, seed=1, train_transforms={"hflip": 0.1})
    (line,) = run("fit", datamodule, checkpoint)
    assert "train: transforms differ (" in line


@pytest.mark.parametrize(("kind", "stage"), [("fit", "train"), ("validate", "val"), ("test", "test")])
def test_strict_data_refuses_before_the_first_batch(shapes, checkpoint, kind, stage):
    datamodule = DetectionDataModule(Changed(shapes, in_stage(stage, moved)), batch_size=4, seed=1, strict_data=True)
    model = Model(make_val=list)
    runner = trainer(max_epochs=1)
    with pytest.raises(DataChangedError, match=f"{stage}: 1 of .* another name; restore .*, or pass strict_data=False"):
        getattr(runner, kind)(model, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    assert model.seen == []


def test_strict_data_accepts_the_same_data(shapes, checkpoint):
    assert run("fit", opened(shapes, strict_data=True), checkpoint) == []


def without_record(checkpoint, folder, stored=None):
    content = torch.load(checkpoint, weights_only=True)
    if stored is None:
        del content["DetectionDataModule"]["data"]
    else:
        content["DetectionDataModule"]["data"] = stored
    torch.save(content, folder / "other.ckpt")
    return folder / "other.ckpt"


def test_a_checkpoint_without_a_record_is_silent_unless_strict(shapes, checkpoint, tmp_path):
    path = without_record(checkpoint, tmp_path)
    source = Changed(shapes, relabelled)
    assert run("test", DetectionDataModule(source), path) == []
    (line,) = run("test", DetectionDataModule(source, strict_data=True), path)
    assert line == "strict_data=True: the checkpoint has no record of its data, so the data is not compared"


def test_a_stage_that_the_checkpoint_does_not_know_is_named_if_strict(shapes, tmp_path):
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
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "data changed")
        trainer().predict(Predicting(), datamodule=datamodule, ckpt_path=checkpoint, return_predictions=False)


def test_the_record_changes_no_state_of_the_loader(shapes, checkpoint):
    state = torch.load(checkpoint, weights_only=True)["DetectionDataModule"]
    assert state.keys() == {"train", "position", "data"}
    assert json.loads(json.dumps(state["data"])) == state["data"]


# -- records from anyone ----------------------------------------------------------------------------------------------

_ESCAPE = "\x1b[31m\n\r\x07"


def damaged_records(stored):
    """Yield copies of a record with one value replaced by nonsense, and nonsense instead of a record."""
    yield from ([], "x", 1, {}, {"version": 2}, {"version": 1}, {"version": [1] * 10}, {**stored, "sets": []})
    train = stored["sets"]["train"]
    nonsense = (None, -1, 2**70, 1.5, True, "x" * 10**5, ["x"] * 10**5, [2**70], {"x" * 1000: 1}, {1: 2}, b"x", [[]])
    for value in nonsense:
        for key in ("class_names", "names", "versions", "sets"):
            yield {**stored, key: value}
        for key in train:
            # No mix is a valid mix.
            if (key, value) != ("mix", None):
                yield {**stored, "sets": {"train": {**train, key: value}}}
    yield {**stored, "sets": {f"s{i}": train for i in range(1000)}}
    yield {**stored, "sets": {"train": {**train, "sketch": "\u2603" * 840}}}
    yield {**stored, "sets": {"train": {**train, "digests": {"images": "\x1b" * 16}}}}


def test_nonsense_is_a_damaged_record_and_no_other_error(shapes):
    stored = record(shapes)
    for damaged in damaged_records(stored):
        with pytest.raises(DamagedRecordError):
            data_changes(damaged, copy.deepcopy(stored), STAGES)


@pytest.mark.parametrize("strict", [False, True])
def test_a_damaged_record_is_reported_and_the_run_goes_on(shapes, checkpoint, tmp_path, strict):
    path = without_record(checkpoint, tmp_path, stored={"version": 1, "sets": [_ESCAPE]})
    (line,) = run("test", DetectionDataModule(shapes, strict_data=strict), path)
    assert "record of its data is damaged" in line
    assert "\x1b" not in line


def test_no_text_of_a_record_reaches_a_terminal_unescaped(shapes):
    new = record(shapes)
    stored = copy.deepcopy(new)
    stored["class_names"] = [f"{_ESCAPE}{i}" for i in range(3)]
    stored["names"]["class_names"] = "0" * 16
    stored["versions"] = {"torch": _ESCAPE, _ESCAPE: "1"}
    for values in stored["sets"].values():
        values["texts"] = {"transforms": _ESCAPE * 30, "sampler": _ESCAPE}
        values["counts"] = [1, 2, 3]
        values["digests"] = {"images": "0" * 16, _ESCAPE: "0" * 16}
    changes = data_changes(stored, new, STAGES)
    texts = [*changes.lines, *changes.versions]
    assert len(texts) == 5
    assert all(text.isprintable() and len(text) < 1000 for text in texts)
    assert any("\\x1b[31m\\n" in text for text in texts)


def test_the_record_of_many_classes_and_sets_stays_small(shapes):
    def wide(stage, table):
        return replaced(table, class_names=[f"class number {i} é" for i in range(3000)])

    source = Changed(shapes, wide)
    settings = {
        "train_transforms": v2.Compose([v2.ColorJitter(0.1)] * 100),
        "train_sampler": ClassBalancedSamplerConfig(),
    }
    for val in (1, 5):
        many = copy.copy(source)
        many.tables = lambda stage, val=val: source.tables(stage) * (val if stage == "val" else 1)
        stored = record(many, **settings)
        # Usual names and transforms need half of that.
        assert len(json.dumps(stored)) < 10_000 + 1500 * (val - 1)
    assert data_changes(stored, stored, stored["sets"]).lines == []


def test_a_new_version_of_a_library_is_logged_and_never_refused(shapes, checkpoint, tmp_path, caplog):
    stored = torch.load(checkpoint, weights_only=True)["DetectionDataModule"]["data"]
    stored["versions"]["torch"] = "1.0"
    path = without_record(checkpoint, tmp_path, stored=stored)
    with caplog.at_level("INFO"):
        assert run("test", DetectionDataModule(shapes, strict_data=True), path) == []
    assert f"versions changed since the checkpoint: torch 1.0 -> {torch.__version__}" in caplog.text
