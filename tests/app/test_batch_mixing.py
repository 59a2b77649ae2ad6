"""The options ``mixing=cutmix`` and ``mixing=batch_mixup`` of classification in the app."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from lit_loader import BatchMixing
from tests.support import app_recorder as recorder
from tests.support.shipped_configs import composed_once, option_configs
from tests.support.text_sets import write_image

WORDS = ["experiment=classification", "dataset=auto", "dataset.test_fraction=0", "dataset.val_fraction=0.25"]
WORDS += ["model=classifier_small", "workers=inline", "trainer=cpu", "trainer.max_epochs=2", "logger=none"]
WORDS += ["datamodule.batch_size=4", "datamodule.train_transforms.size=32", "callbacks=[class_mix,pictures]"]
WORDS += ["trainer.enable_progress_bar=false", "+trainer.enable_model_summary=false", "test=false"]
WORDS += ["+callbacks.recorder._target_=tests.support.app_recorder.Recorder"]

pytestmark = pytest.mark.filterwarnings("ignore:Total length of `list`", "ignore:.*could not find the monitored key")


@pytest.fixture
def pets(tmp_path):
    for number, name in enumerate(("cat", "dog") * 8):
        write_image(tmp_path / f"set/{name}/{number}.png", size=(40 + number, 40))
    return f"dataset.root={tmp_path}/set"


@pytest.mark.parametrize(
    ("words", "chances"),
    [
        pytest.param(["mixing=cutmix"], (0.0, 1.0), marks=pytest.mark.soak),
        (["mixing=cutmix", "mixing.cutmix.cutmix=0.25", "mixing.cutmix.mixup=0.5"], (0.5, 0.25)),
        pytest.param(
            ["mixing=batch_mixup", "mixing.batch_mixup.mixup={epochs: [0, 1], value: 0.5}"],
            (0.5, 0.0),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ["mixing=batch_mixup", "mixing.batch_mixup.mixup={points: {0: 0.5, 4: 0}}"],
            (0.5, 0.0),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_run_trains_on_mixed_batches(app, pets, words, chances):
    recorder.seen.clear()
    result = app("train", *WORDS, pets, *words, small=False)
    (record,) = recorder.seen
    assert record.trainer.datamodule.batch_mixing.chances(0) == chances
    assert "train mixing:" in result.out
    assert (result.folder / "pictures/train_batch.png").stat().st_size > 2000
    assert torch.isfinite(record.trainer.callback_metrics["train/loss"])
    # The class mix of a balanced sampler.
    mix = next(callback for callback in record.trainer.callbacks if hasattr(callback, "mixes")).mixes["class"]
    assert abs(mix.arrived - mix.expected).max() < 0.05


def test_mixes_of_detection_are_refused_with_the_options_of_classification(app, pets):
    result = app("train", *WORDS, pets, "mixing=mosaic", code=1, small=False)
    assert "datamodule.mixing=[Mosaic] is for images with objects" in result.err
    assert "mixing=cutmix or mixing=batch_mixup" in result.err


def test_mixes_of_classification_are_refused_with_the_options_of_detection(app):
    result = app("train", "mixing=cutmix", code=1)
    assert "datamodule.mixing=BatchMixing mixes batches of classification" in result.err
    assert "mixing=mosaic, mixup or copy_paste" in result.err


def test_both_options_at_once_are_refused(app, pets):
    result = app("train", *WORDS, pets, "mixing=[cutmix,batch_mixup]", code=1, small=False)
    assert "datamodule.mixing=[cutmix,batch_mixup] has several entries" in result.err


@pytest.mark.parametrize(("option", "changed"), [("cutmix", "cutmix"), ("batch_mixup", "mixup")])
def test_option_holds_every_argument_with_its_default_but_one(option, changed):
    node = dict(option_configs()["mixing", option].mixing[option])
    assert node.pop("_target_") == "lit_loader.collate.BatchMixing"
    assert node == {**asdict(BatchMixing()), changed: 1.0}


def test_batches_are_not_mixed_by_default():
    assert not composed_once("experiment=classification", "dataset.root=/x", "dataset=voc").mixing
