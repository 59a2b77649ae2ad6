"""Arguments of a wrong type or name are refused where they are given, and what there is can be looked at at once."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.data import TensorDataset

from lit_loader import DetectionDataModule
from lit_loader.app.composition import compose_config, validate
from lit_loader.datamodules import (
    ClassificationDataModule,
    DatasetsDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    WorkerSettings,
)
from lit_loader.datasets import VocSource
from lit_loader.transforms import RandomHorizontalFlip
from tests.support.drawn_set import DrawnSource, draw_set

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_sampler": "class_balanced"}, r"'class_balanced' of type str.*ClassBalancedSamplerConfig\(\)"),
        (
            {"val_sampler": [0, 1]},
            r"val_sampler=\[0, 1\] of type list should be SamplerConfig or Sampler\[int\] or None",
        ),
        ({"train_transforms": 3}, "train_transforms=3 of type int .*give transforms of"),
        ({"batch_transforms": "flip"}, "batch_transforms='flip'"),
        ({"batch_size": "8"}, "batch_size='8' of type str should be int"),
        ({"num_workers": 2.5}, "num_workers=2.5 of type float should be int or 'auto'"),
        ({"seed": True}, "seed=True of type bool should be int or None"),
        ({"workers": 4}, "4 of type int should be WorkerSettings or"),
        ({"reading": "fast"}, "'fast' of type str should be ImageReading or"),
        ({"num_worker": 2}, "unexpected keyword argument 'num_worker'; did you mean 'num_workers'?"),
        ({"workers": {"pin_memory": "yes"}}, "pin_memory='yes' of type str should be bool or None"),
        ({"decode": "fast"}, r"'decode'; it is a field of reading: give reading=ImageReading\(decode=\.\.\.\)"),
        ({"timeout": 5}, r"'timeout'; it is a field of workers: give workers=WorkerSettings\(timeout=\.\.\.\)"),
        ({"qqq": 1}, "unexpected keyword argument 'qqq'; it takes batch_size, batch_transforms"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_where_it_is_given(shapes, settings, message):
    with pytest.raises(TypeError, match=message):
        DetectionDataModule(shapes, **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (DetectionDataModule, {"masks": "yes"}, "of type str should be bool"),
        (LandmarkDataModule, {"min_points": 1.5}, "of type float should be int"),
        (LandmarkDataModule, {"attributes": "finish"}, r"should be .*Sequence\[str\]"),
        (ClassificationDataModule, {"label_attribute": 3}, "of type int should be .*str"),
        (ClassificationDataModule, {"multi_label": 1}, "of type int should be bool"),
        (MultiTaskDataModule, {"pad_value": "0"}, "of type str should be float"),
    ],
)
def test_a_wrong_argument_of_a_task_is_refused_too(shapes, kind, settings, expected):
    (name,) = settings
    with pytest.raises((TypeError, ValueError), match=f"{name}=.*{expected}"):
        kind(shapes, **settings)


@pytest.mark.parametrize("settings", [{"train_sampler": "random"}, {"collate_fn": "stack"}], ids=str)
def test_datasets_module_refuses_arguments_of_a_wrong_type(settings):
    (name,) = settings
    with pytest.raises(TypeError, match=f"{name}='.*' of type str should be"):
        DatasetsDataModule(train_dataset=range(4), **settings)


def test_a_path_instead_of_a_source_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"source='data/voc' of type str.*VocSource\(root=FOLDER\)"):
        DetectionDataModule("data/voc")


@pytest.mark.parametrize("kind", [dict, WorkerSettings])
def test_num_workers_overrides_the_worker_settings(shapes, kind):
    datamodule = DetectionDataModule(shapes, workers=kind(num_workers=3, timeout=9.0), num_workers=1)
    assert datamodule.workers == WorkerSettings(num_workers=1, timeout=9.0)


@pytest.mark.parametrize("keywords", [{"hflip": 1.0, "flip_pairs": []}, {"hflip": 1.0, "flip_pairs": [[0, 1]]}])
def test_points_without_known_pairs_flip_as_the_error_says(tmp_path, keywords):
    source = DrawnSource(train=draw_set(tmp_path, num_images=6, flip_pairs=[]))
    with pytest.raises(ValueError, match="flip_pairs") as refused:
        LandmarkDataModule(source, train_transforms={"hflip": 0.5}).train_dataloader()
    assert "flip_pairs=[]" in str(refused.value)
    for alone in ({}, {"flip_pairs": []}, {"hflip": 0.0}, {"hflip": None}):
        assert LandmarkDataModule(source, train_transforms=alone).first_batch("train")
    plain, flipped = (
        LandmarkDataModule(source, batch_size=4, train_transforms={"shift": 0, "rotation": 0, **overrides})
        for overrides in ({"hflip": 0.0}, keywords)
    )
    assert not torch.equal(plain.first_batch("train").images, flipped.first_batch("train").images)


@pytest.mark.parametrize(
    ("pairs", "keywords", "chance"),
    [
        ([[0, 1]], {"hflip": None}, 0.5),
        ([], {"hflip": None}, None),
        ([], {"hflip": None, "flip_pairs": []}, 0.5),
        ([[0, 1]], {"hflip": 0.25}, 0.25),
    ],
)
@pytest.mark.parametrize("kind", [LandmarkDataModule, MultiTaskDataModule])
def test_hflip_none_flips_where_mirror_pairs_are_known(tmp_path, kind, pairs, keywords, chance):
    source = DrawnSource(train=draw_set(tmp_path, num_images=2, flip_pairs=pairs))
    datamodule = kind(source, train_transforms=keywords)
    datamodule.setup("fit")
    flips = [part for part in datamodule.train_dataset.transforms.transforms if isinstance(part, RandomHorizontalFlip)]
    assert [flip.p for flip in flips] == ([] if chance is None else [chance])


@pytest.mark.parametrize("keypoints", [True, False])
def test_the_shipped_multi_task_config_flips_what_has_no_points(tmp_path, keypoints):
    cfg = compose_config(
        overrides=[
            "dataset=shapes",
            "model=multi_task_small",
            "datamodule=multi_task",
            f"datamodule.keypoints={str(keypoints).lower()}",
        ]
    )
    validate(cfg)
    source = DrawnSource(train=draw_set(tmp_path, num_images=2, flip_pairs=[]))
    keywords = OmegaConf.to_container(cfg.datamodule.train_transforms)
    datamodule = MultiTaskDataModule(source, keypoints=keypoints, train_transforms=keywords)
    datamodule.setup("fit")
    parts = datamodule.train_dataset.transforms.transforms
    assert any(isinstance(part, RandomHorizontalFlip) for part in parts) == (not keypoints)


def test_data_sets_of_the_stages_are_attributes(shapes):
    root = shapes.tables("train")[0].root
    datamodule = DetectionDataModule(VocSource(root=root, val=["val", "test"], predict=[], progress=False))
    with pytest.raises(RuntimeError, match=r"train_dataset is not open yet; call setup\('fit'\) first"):
        _ = datamodule.train_dataset
    datamodule.setup()
    assert len(datamodule.train_dataset) == 60
    assert [len(dataset) for dataset in datamodule.val_dataset] == [20, 24]
    assert len(datamodule.test_dataset) == 24
    with pytest.raises(RuntimeError, match="predict_dataset: DetectionDataModule has no data for this stage"):
        _ = datamodule.predict_dataset


class Unprepared(DrawnSource):
    is_prepared = False

    def prepare(self):
        self.is_prepared = True

    def tables(self, stage):
        assert self.is_prepared, "prepare() comes first"
        return super().tables(stage)


@pytest.mark.parametrize("look", ["summary", "summaries", "plot_batch", "class_names"])
def test_summaries_and_pictures_prepare_the_source(tmp_path, look):
    datamodule = DetectionDataModule(Unprepared(train=draw_set(tmp_path, num_images=4)))
    result = getattr(datamodule, look)
    assert result if look == "class_names" else result()


@pytest.mark.parametrize("value", [False, True])
def test_the_check_of_repeatability_can_be_switched_off(value):
    dataset = TensorDataset(torch.zeros(4))
    datamodule = DatasetsDataModule(train_dataset=dataset, check_repeatability=value, num_workers=0)
    assert datamodule.train_dataloader().check_repeatability is value
