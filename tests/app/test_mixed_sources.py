"""``dataset=mixed``: several folders in one run, from the command line to the files of its predictions."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.mixed_sets import make_folders
from tests.support.small_app import SMALL

MODEL = [word for word in SMALL if word.startswith(("model", "trainer", "~", "+"))]
CLASSES = "dataset.classes={plant: {weed: null}, street: {Leaf: leaf, dirt: null}, field: {*: leaf}}"
MISSING = "dataset.missing={plant: absent, street: {stem: unlabelled}, field: absent}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("mixed"))


@pytest.fixture
def words(folders):
    """Overrides of a run on all three sets."""
    sources = ", ".join(f"{name}: {folder}" for name, folder in folders.items())
    mix = ["dataset=mixed", f"dataset.sources={{{sources}}}", CLASSES, MISSING, "dataset.progress=false"]
    return [*mix, "model=fcos_small", "workers=inline", *MODEL]


RATIO = ["dataset.ratio={plant: 2, street: 1, field: 1}", "dataset.ratio_per=batch", "datamodule.batch_size=4"]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Total length of `list`")
def test_mix_is_trained_tested_and_predicted(app, words, tmp_path):
    trained = app("train", *words, *RATIO, "callbacks=[default,class_mix]", small=False)
    for name in ("train/plant", "val/street", "test/field", "MixedSourceSampler"):
        assert name in trained.out
    checkpoint = trained.folder / "checkpoints" / "last.ckpt"
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["hyper_parameters"]["class_names"] == ["leaf", "stem", "car"]
    results = json.loads((trained.folder / "results.json").read_text())
    assert "test/map" in results["test"]["metrics"]
    evaluated = app("eval", f"ckpt_path={checkpoint}", small=False)
    assert "as in" in evaluated.err
    predicted = app("predict", f"ckpt_path={checkpoint}", small=False)
    files = {path.name for path in predicted.folder.rglob("*.json")}
    assert {"predictions-plant.json", "predictions-street.json", "predictions-field.json"} <= files


def test_classes_that_are_not_settled_are_an_error_with_the_keys_of_the_config(app, words):
    result = app("train", *(word for word in words if word != MISSING), small=False, code=1)
    (line,) = result.err.strip().splitlines()[-1:]
    assert "error in the config: dataset.missing=null leaves open what these differences mean: plant lacks car" in line
    assert line.endswith("pass dataset.missing={plant: unlabelled, street: unlabelled, field: unlabelled}")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("datamodule.batch_size=6", "datamodule.batch_size=6 is not a multiple of 4, "),
        ("dataset.num_samples=7", "dataset.num_samples=7 is not a multiple of 4, "),
        ("dataset.ratio.street=0", r"ratio['street']=0 must be positive"),
        ("++dataset.classes.plant.wed=x", "names classes that plant does not have; its classes: leaf, stem, weed"),
        ("batching=size", "in Hydra batching=plain"),
        ("dataset.classes={plant: {0: leaf}}", "dataset.classes={plant: {0: leaf}} names classes that plant does not"),
        ("dataset.classes={plant: {weed: 0}}", "write a number as new name in quotes"),
        ("++dataset.classes={roof: {}}", "give classes, missing, ratio, ratio_per and class_names again"),
    ],
)
def test_settings_that_do_not_fit_are_named_by_their_keys(app, words, word, message):
    result = app("train", *words, *RATIO, word, small=False, code=1)
    assert message in result.err
    assert "Traceback" not in result.err


def test_folder_that_cannot_be_read_is_named_with_its_source(app, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ["dataset=mixed", f"dataset.sources={{plant: {tmp_path}/empty}}", "model=fcos_small", "workers=inline"]
    result = app("train", *words, *MODEL, small=False, code=1)
    assert f"error: {tmp_path}/empty: source plant: " in result.err


def test_remedies_of_missing_can_be_pasted(app, words, folders):
    start = [word for word in words if not word.startswith(("dataset.missing", "dataset.classes"))]
    failed = app("train", *start, "dataset.missing={plant: {car: absent}}", small=False, code=1)
    remedy = failed.err.strip().rpartition("or pass ")[2]
    trained = app("train", *start, remedy, small=False)
    assert "unlabelled: Leaf, dirt, stone" in trained.out
