"""The argument `mixing` of data modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lit_loader import (
    ClassBalancedSamplerConfig,
    ClassMixMonitor,
    CopyPaste,
    DataLoader,
    DetectionDataModule,
    EpochRange,
    FunctionSchedule,
    LandmarkDataModule,
    MixedSource,
    MixingDataset,
    MixUp,
    Mosaic,
    MultiTaskDataModule,
)
from lit_loader.annotations import Masks
from lit_loader.callbacks import PictureLogger
from lit_loader.datasets import DetectionDataset, JoinedDataset
from lit_loader.errors import SettingError
from tests.support.drawn_set import DrawnSource, draw_set, drawn_source
from tests.support.tiny_trainer import Tiny, trainer_of
from tests.support.toy_mixes import Stacked

MODULES = {"detection": DetectionDataModule, "multi_task": MultiTaskDataModule}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


@pytest.mark.parametrize("kind", MODULES)
def test_only_training_is_mixed(source, kind):
    datamodule = MODULES[kind](source, mixing=Stacked(), num_workers=0)
    datamodule.setup()
    assert type(datamodule.train_dataset) is MixingDataset
    assert type(datamodule.train_dataset.dataset) is DetectionDataset
    stages = (datamodule.val_dataset, datamodule.test_dataset, datamodule.predict_dataset)
    assert [type(dataset) for dataset in stages] == [DetectionDataset] * 3


def test_one_mix_a_list_and_a_mapping_are_applied_in_their_order(source):
    first = Stacked(p=0.5)
    second = Stacked(p=0.25)
    for mixing in ([first, second], {"first": first, "off": None, "second": second}):
        assert DetectionDataModule(source, mixing=mixing).mixing == (first, second)
    assert DetectionDataModule(source, mixing=first).mixing == (first,)
    for mixing in (None, [], {}, {"off": None}):
        datamodule = DetectionDataModule(source, mixing=mixing)
        assert datamodule.mixing == ()
        datamodule.setup("fit")
        assert type(datamodule.train_dataset) is DetectionDataset


@pytest.mark.parametrize("mixing", ["mosaic", 0.5, [Stacked(), "mosaic"], {"mosaic": 1.0}])
def test_anything_but_a_mix_is_refused_with_the_remedy(source, mixing):
    with pytest.raises(TypeError, match="Mosaic"):
        DetectionDataModule(source, mixing=mixing)


@pytest.mark.parametrize("sample_unit", ["object", "image"])
def test_landmarks_refuse_a_mix_with_the_remedy(source, sample_unit):
    with pytest.raises(ValueError, match=r"mixing=\['Stacked'\] .*mixing=none in a config.*MultiTaskDataModule"):
        LandmarkDataModule(source, sample_unit=sample_unit, mixing=Stacked())


def test_checkpoint_leaves_mixes_out_of_its_arguments_and_keeps_them_in_its_record(source):
    datamodule = DetectionDataModule(source, mixing=Stacked(p=EpochRange([0, 2], 0.5)), num_workers=0)
    assert "mixing" not in datamodule.hparams
    datamodule.setup("fit")
    sets = datamodule.state_dict()["data"]["sets"]
    assert sets["train"]["texts"]["mixing"] == "Stacked(p=0.5 in epochs 0 to 1, else 0.0)"
    assert "mixing" not in sets["val"]["texts"]


def test_resumed_run_with_another_mix_is_told(source, caplog):
    datamodule = DetectionDataModule(source, mixing=Stacked(p=0.5))
    datamodule.setup("fit")
    state = datamodule.state_dict()
    changed = DetectionDataModule(source, mixing=Stacked(p=0.25), strict_data=True)
    changed.setup("fit")
    with pytest.raises(ValueError, match=r"train: other mixing \(Stacked: p=0.5 -> p=0.25\)"):
        changed.load_state_dict(state)
    without = DetectionDataModule(source)
    without.setup("fit")
    without.load_state_dict(state)
    assert "other mixing (Stacked -> none)" in caplog.text


def test_changed_mixes_are_compared_one_by_one(source, caplog):
    def opened(*mixes):
        datamodule = DetectionDataModule(source, mixing=list(mixes))
        datamodule.setup("fit")
        return datamodule

    copied = CopyPaste(p=EpochRange([0, 2]), num_objects=2)
    opened(Mosaic(p=0.5), CopyPaste(p=EpochRange([0, 3]))).load_state_dict(opened(Mosaic(p=0.5), copied).state_dict())
    message = "CopyPaste: p=1.0 in epochs 0 to 1, else 0.0, num_objects=2 -> p=1.0 in epochs 0 to 2, else 0.0"
    assert f"other mixing ({message})" in caplog.text
    opened(copied).load_state_dict(opened(Mosaic(), copied).state_dict())
    assert "other mixing (Mosaic, CopyPaste -> CopyPaste)" in caplog.text


def test_summary_names_mixes_with_their_schedules(source):
    datamodule = DetectionDataModule(source, mixing=[Stacked(p=EpochRange([0, 2], 0.5)), Stacked(p=0.25)])
    lines = datamodule.summary().splitlines()
    first = lines.index("train mixing:")
    assert lines[first + 1 : first + 3] == ["  Stacked(p=0.5 in epochs 0 to 1, else 0.0)", "  Stacked(p=0.25)"]
    assert "train mixing" not in DetectionDataModule(source).summary()


BALANCED = ClassBalancedSamplerConfig(num_samples=480)
# The announced mix counts all objects, so these mixes keep those that are hidden in part.
ARRIVALS = {
    "mosaic": Mosaic(p=0.5, min_visible=0, scale=(1.0, 1.0), center=(0.5, 0.5)),
    "mixup": MixUp(p=0.5),
    "pasted images": CopyPaste(num_objects=2, min_visible=0),
    "pasted classes": CopyPaste(p=0.5, num_objects=4, class_weights={"rare": 3, "pointless": 1}, min_visible=0),
    "all": [MixUp(p=0.5), CopyPaste(class_weights="balanced", min_visible=0)],
}
SLOW_ARRIVALS = ("pasted images", "mosaic", "all")


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in SLOW_ARRIVALS else ()) for name in ARRIVALS]
)
def test_announced_class_mix_arrives_with_mixes(tmp_path, name):
    # One object an image: a pasted rectangle brings no neighbours.
    source = DrawnSource(train=draw_set(tmp_path / "set", num_images=30, objects=1))
    monitor = ClassMixMonitor()
    datamodule = DetectionDataModule(source, mixing=ARRIVALS[name], train_sampler=BALANCED, batch_size=24)
    trainer_of(tmp_path, monitor, max_epochs=3, limit_val_batches=0).fit(Tiny(), datamodule=datamodule)
    mix = monitor.mixes["class"]
    assert np.array_equal(mix.expected, datamodule.summaries(["train"])[0].expected_mix)
    # The objects of 1440 samples and of their partners: three standard deviations are below 0.025.
    assert mix.counts.sum() > 2000
    assert abs(mix.arrived - mix.expected).max() < 0.025
    plain = DetectionDataModule(source, train_sampler=BALANCED).summaries(["train"])[0].expected_mix
    assert (abs(mix.expected - plain).max() > 0.05) == (name in ("pasted classes",))


def test_summary_shows_the_class_mix_before_and_after_pasting_ends(source):
    mixing = CopyPaste(p=EpochRange([0, 5]), class_weights={"rare": 1})
    datamodule = DetectionDataModule(source, mixing=[Mosaic(p=EpochRange([0, 7])), mixing])
    plain = DetectionDataModule(source).summaries(["train"])[0]
    summary = datamodule.summaries(["train"])[0]
    # Mosaics change the share of pasted objects.
    assert list(summary.mix_by_epoch) == [0, 5, 7]
    assert np.array_equal(summary.mix_by_epoch[0], summary.expected_mix)
    assert np.allclose(summary.mix_by_epoch[5], plain.expected_mix)
    assert summary.expected_mix[1] > plain.expected_mix[1] + 0.2
    # Mixes add nothing to other stages.
    assert np.array_equal(datamodule.summaries(["val"])[0].expected_mix, plain_mix(source, "val"))


def test_summary_asks_for_partners_only_in_epochs_with_mixing(source):
    class Brief(Stacked):
        def num_partners(self, epoch):
            return {0: 1, 1: 1}[epoch]

    mixing = [CopyPaste(p=EpochRange([0, 2])), Brief(p=EpochRange([0, 2]))]
    assert list(DetectionDataModule(source, mixing=mixing).summaries(["train"])[0].mix_by_epoch) == [0, 2]


@pytest.mark.parametrize(
    ("chance", "message"),
    [
        ("high", "p='high' is not a probability"),
        ({"epoch": [0, 2]}, "p={'epoch': .* is a mapping that describes no schedule; give one such as {points"),
        ({"points": {0: 0.5, 3: 1.5}}, r"p=1.5 is not a probability in \[0, 1\] \(in epoch 3 of the schedule linear"),
        ({"choices": [0, 1]}, "is drawn for every batch"),
        (float("nan"), "p=nan is not a probability"),
    ],
)
def test_wrong_chance_of_a_mix_is_refused_at_once(chance, message):
    with pytest.raises(SettingError, match=message):
        Mosaic(p=chance)


def rising(epoch):
    return 0.5 + epoch


def test_wrong_chance_in_a_later_epoch_is_refused_there():
    mix = Mosaic(p=FunctionSchedule(rising))
    assert mix.chance(0) == 0.5
    with pytest.raises(SettingError, match=r"p=1.5 is not a probability .*\(in epoch 1 of the schedule rising"):
        mix.chance(1)


def plain_mix(source, stage):
    return DetectionDataModule(source).summaries([stage])[0].expected_mix


def test_class_mix_is_unknown_where_pasted_objects_or_pools_are(source):
    multi_task = MultiTaskDataModule(source, mixing=CopyPaste())
    by_label = {summary.label: summary.expected_mix for summary in multi_task.summaries(["train"])}
    assert by_label["finish"] is None
    assert by_label["class"] is not None

    class Pooled(Stacked):
        def pool(self, tables):
            return self

    assert DetectionDataModule(source, mixing=Pooled()).summaries(["train"])[0].expected_mix is None
    assert DetectionDataModule(source, mixing=Pooled(p=0.0)).summaries(["train"])[0].expected_mix is not None


def test_weights_of_an_unknown_class_are_refused_before_training(source):
    datamodule = DetectionDataModule(source, mixing=CopyPaste(class_weights={"zebra": 1}))
    with pytest.raises(SettingError, match=r"class_weights=.*'zebra', but the classes are"):
        datamodule.summary()


def test_joined_training_sets_are_mixed_with_each_other(tmp_path):
    tables = [draw_set(tmp_path / str(i), num_images=12, objects=2, seed=i) for i in range(2)]
    source = MixedSource({"a": DrawnSource(train=tables[0]), "b": DrawnSource(train=tables[1])})
    datamodule = DetectionDataModule(source, mixing=[Stacked(), CopyPaste(class_weights="balanced")], batch_size=6)
    datamodule.setup("fit")
    assert type(datamodule.train_dataset.dataset) is JoinedDataset
    names = [summary.name for summary in datamodule.summaries(["train"])]
    assert names == ["train", "train/a", "train/b"]
    images, targets = datamodule.first_batch("train")
    assert [image.shape[1] for image in images] == [96] * 6
    assert all(len(target["boxes"]) > 4 for target in targets)


def test_sets_with_different_unlabelled_classes_are_not_mixed(tmp_path):
    tables = [draw_set(tmp_path / str(i), num_images=6, seed=i) for i in range(2)]
    partly_labelled = [table.with_unlabelled_classes(["rare"]) for table in tables]
    mixed_tables = [tables[0], partly_labelled[1]]
    with pytest.raises(SettingError, match=r"different unlabelled classes: \[\] and \['rare'\].*absent.*mixing=None"):
        DetectionDataModule(DrawnSource(train=mixed_tables), mixing=MixUp()).setup("fit")
    DetectionDataModule(DrawnSource(train=mixed_tables)).setup("fit")
    datamodule = DetectionDataModule(DrawnSource(train=partly_labelled), mixing=MixUp(), batch_size=6, num_workers=0)
    datamodule.setup("fit")
    assert {tuple(target["unlabelled"].tolist()) for target in datamodule.first_batch("train")[1]} == {(2,)}


@pytest.mark.parametrize("class_weights", [pytest.param(None, marks=pytest.mark.soak), "balanced"])
def test_announced_class_mix_counts_only_objects_with_masks(tmp_path, class_weights):
    table = draw_set(tmp_path, num_images=30, objects=1)
    corners = table.boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]
    rows = [[corners[row]] if label != 1 or row % 4 else None for row, label in enumerate(table.labels)]
    source = DrawnSource(train=replace(table, masks=Masks.from_rows(rows)))
    mixing = CopyPaste(num_objects=4, class_weights=class_weights, min_visible=0)
    settings = {"train_sampler": BALANCED, "train_transforms": {"hflip": 0}, "num_workers": 0}
    datamodule = DetectionDataModule(source, mixing=mixing, masks=True, batch_size=24, **settings)
    datamodule.setup("fit")
    counts = np.zeros(3)
    dataset = MixingDataset(DetectionDataset(source.given["train"], masks=True), mixing)
    order = BALANCED.make_sampler(table)
    for sample in DataLoader(dataset, sampler=order, seed=0, batch_size=None):
        counts += np.bincount(sample[1]["labels"].numpy() - 1, minlength=3)
    arrived = counts / counts.sum()
    assert abs(arrived - datamodule.summaries(["train"])[0].expected_mix).max() < 0.03


def test_pictures_show_the_mixed_batch(source, tmp_path, monkeypatch):
    datamodule = DetectionDataModule(source, mixing=Stacked(), batch_size=4)
    batches = []
    draw = datamodule.draw_batch
    monkeypatch.setattr(
        datamodule, "draw_batch", lambda batch, **drawing: batches.append(batch) or draw(batch, **drawing)
    )
    trainer_of(tmp_path, PictureLogger(), limit_val_batches=0).fit(Tiny(), datamodule=datamodule)
    ((images, _),) = batches
    assert [tuple(image.shape) for image in images] == [(3, 96, 64)] * 4
    assert (tmp_path / "pictures" / "train_batch.png").is_file()
