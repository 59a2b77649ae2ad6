"""The argument `mixing` of data modules."""

from __future__ import annotations

import pytest

from lit_loader import DetectionDataModule, EpochRange, LandmarkDataModule, MixingDataset, MultiTaskDataModule
from lit_loader.datasets import DetectionDataset
from tests.support.drawn_set import drawn_source
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
    first, second = Stacked(p=0.5), Stacked(p=0.25)
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
    with pytest.raises(ValueError, match=r"mixing=\['Stacked'\] .*MultiTaskDataModule.*mixing=None"):
        LandmarkDataModule(source, sample_unit=sample_unit, mixing=Stacked())


def test_checkpoint_leaves_mixes_out_of_its_arguments_and_keeps_them_in_its_record(source):
    datamodule = DetectionDataModule(source, mixing=Stacked(p=EpochRange([0, 2], 0.5)), num_workers=0)
    assert "mixing" not in datamodule.hparams
    datamodule.setup("fit")
    sets = datamodule.state_dict()["data"]["sets"]
    assert sets["train"]["texts"]["mixing"] == "Stacked(p=(0.5 in epochs 0 to 1, else 0.0))"
    assert "mixing" not in sets["val"]["texts"]


def test_resumed_run_with_another_mix_is_told(source, caplog):
    datamodule = DetectionDataModule(source, mixing=Stacked(p=0.5))
    datamodule.setup("fit")
    state = datamodule.state_dict()
    changed = DetectionDataModule(source, mixing=Stacked(p=0.25), strict_data=True)
    changed.setup("fit")
    with pytest.raises(ValueError, match=r"train: other mixing \(p=0.5\) -> p=0.25\)\)"):
        changed.load_state_dict(state)
    without = DetectionDataModule(source)
    without.setup("fit")
    without.load_state_dict(state)
    assert "other mixing (Stacked(p=0.5) -> none)" in caplog.text


def test_summary_names_mixes_with_their_schedules(source):
    datamodule = DetectionDataModule(source, mixing=[Stacked(p=EpochRange([0, 2], 0.5)), Stacked(p=0.25)])
    lines = datamodule.summary().splitlines()
    first = lines.index("train mixing, before the transforms:")
    assert lines[first + 1 : first + 3] == ["  Stacked(p=(0.5 in epochs 0 to 1, else 0.0))", "  Stacked(p=0.25)"]
    assert "train mixing" not in DetectionDataModule(source).summary()
