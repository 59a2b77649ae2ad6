"""Pages of samplers and augmentation: their formulas and tables agree with the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
import yaml

from lit_loader import (
    BatchMixing,
    ClassAwareSampler,
    ClassBalancedSampler,
    CopyPaste,
    DetectionDataModule,
    Mosaic,
    ShapesSource,
    class_weights,
    datamodules,
    recall_weights,
    shuffle_quality,
)
from lit_loader.samplers import (
    MixedSourceSampler,
    effective_number_image_weights,
    effective_number_weights,
    repeat_factors,
)
from lit_loader.transforms import MixUp, classification_transforms, detection_transforms, landmark_transforms
from tests.support.documents import PAGES, ROOT, blocks

CONFIGS = {
    "samplers/weighted": datamodules.WeightedSamplerConfig,
    "samplers/class-balance": datamodules.ClassBalancedSamplerConfig,
    "samplers/class-aware": datamodules.ClassAwareSamplerConfig,
    "samplers/repeat-factor": datamodules.RepeatFactorSamplerConfig,
    "samplers/effective-number": datamodules.EffectiveNumberSamplerConfig,
    "samplers/block-shuffle": datamodules.BlockShuffleSamplerConfig,
}
LABELS = [[0], [0, 1], [0], [0, 1], [1, 2], [0]]


def first_cells(page):
    """Return the names in the first column of the tables of a page."""
    cells = re.findall(r"^\| ?((?:`[\w.]+`(?:, )?)+) \|", PAGES[page], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("page", CONFIGS)
def test_table_of_settings_has_every_setting_of_the_config(page):
    assert {field.name for field in fields(CONFIGS[page])} <= first_cells(page)


def test_table_of_problems_names_every_sampler_of_the_app():
    names = {path.stem for path in (ROOT / "lit_loader/conf/sampler").glob("*.yaml")}
    assert names <= set(re.findall(r"`(\w+)`", PAGES["samplers/index"]))


def test_table_of_presets_has_every_number():
    page = set(re.findall(r"`(\w+)", PAGES["augmentation/transforms"]))
    for preset in (detection_transforms, classification_transforms, landmark_transforms):
        names = set(inspect.signature(preset).parameters) - {"train", "per_object", "per_image", "crop"}
        assert names <= page


@pytest.mark.parametrize("mix", [Mosaic, MixUp, CopyPaste])
def test_table_of_mixes_has_every_setting(mix):
    assert set(inspect.signature(mix).parameters) <= set(re.findall(r"`(\w+)`", PAGES["augmentation/mixing"]))


def test_defaults_of_the_pages_are_those_of_the_code():
    page = PAGES["augmentation/mixing"]
    for mix, name in ((Mosaic, "fill"), (Mosaic, "center"), (MixUp, "alpha"), (CopyPaste, "num_objects")):
        default = inspect.signature(mix).parameters[name].default
        assert re.search(rf"\| `{name}` \| {re.escape(str(default))} \|", page), name
    assert BatchMixing().mixup_alpha == 0.2
    assert "| `mixup_alpha` | 0.2 |" in PAGES["augmentation/batch-mixing"]
    config = yaml.safe_load((ROOT / "lit_loader/conf/sampler/block_shuffle.yaml").read_text())
    for name in ("open_shards", "block_size"):
        assert f"| `{name}` | {config[name]} |" in PAGES["samplers/block-shuffle"]


def test_pipeline_of_albumentations_moves_boxes(tmp_path):
    pytest.importorskip("albumentations")
    (code,) = (code for code in blocks(PAGES["augmentation/albumentations"], "python"))
    names = {}
    exec(code, names)
    source = ShapesSource(num_images={"train": 8}, class_shares=(0.6, 0.3, 0.1), cache_dir=tmp_path, progress=False)
    settings = {"batch_size": 4, "num_workers": 0, "train_transforms": names["train_transforms"]}
    plain = DetectionDataModule(source, **settings | {"train_transforms": {}})
    boxes = [
        torch.cat([target["boxes"] for target in datamodule.first_batch("train")[1]])
        for datamodule in (plain, DetectionDataModule(source, **settings))
    ]
    assert len(boxes[1])
    assert boxes[0].shape != boxes[1].shape or not torch.equal(*boxes)


# -- formulas ----------------------------------------------------------------------------------------------


def test_formula_of_weights():
    counts = np.array([90, 9, 1])
    for exponent in (0.0, 0.5, 1.0):
        assert np.allclose(class_weights(counts, exponent=exponent), (100 / (3 * counts)) ** exponent)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_formula_of_class_balance(exponent):
    sampler = ClassBalancedSampler(LABELS, exponent=exponent, num_samples=6000)
    images = np.array([5, 3, 1])  # that contain each class
    shares = images ** (1 - exponent) / (images ** (1 - exponent)).sum()
    assert np.allclose(sampler.quotas, 6000 * shares, atol=1)
    visits = [sum(sampler.quotas[c] / images[c] for c in labels) for labels in LABELS]
    assert np.allclose(sampler.expected_visits(), visits)


def test_formula_of_class_aware_sampling():
    visits = [sum(60 / (3 * (5, 3, 1)[c]) for c in labels) for labels in LABELS]
    assert np.allclose(ClassAwareSampler(LABELS, num_samples=60).expected_visits(), visits)


def test_formula_of_repeat_factors():
    frequencies = np.array([5, 3, 1]) / 6
    factors = [max(max(1, (0.7 / frequencies[c]) ** 0.5) for c in labels) for labels in LABELS]
    assert np.allclose(repeat_factors(LABELS, repeat_thresh=0.7), factors)


def test_formula_of_effective_numbers():
    counts = np.array([5, 3, 1])
    weights = (1 - 0.9) / (1 - 0.9**counts)
    assert np.allclose(effective_number_weights(counts, beta=0.9), weights)
    largest = [weights[labels].max() for labels in LABELS]
    assert np.allclose(effective_number_image_weights(LABELS, beta=0.9), largest)


def test_formulas_of_mixed_sources():
    sampler = MixedSourceSampler([200, 60, 10], shares=[2, 1, 1])
    assert len(sampler) == max(200 * 4 / 2, 60 * 4, 10 * 4)
    assert sampler.quotas.tolist() == [200, 100, 100]
    assert len(MixedSourceSampler([200, 60, 10], counts=[4, 2, 2])) == 8 * max(200 / 4, 60 / 2, 10 / 2)


def test_formula_of_weights_by_recall():
    weights = recall_weights([[9, 1], [5, 5]])
    assert np.allclose(weights, np.array([0.1 + 0.1, 0.5 + 0.1]) / 0.4)


def test_formula_of_the_score_of_a_shuffle():
    shards = np.repeat([0, 1], 4)
    score = shuffle_quality([[0, 1, 4, 5, 2, 3, 6, 7]], shards, batch_size=4).score
    # Two of the six pairs of a batch are from one shard, and 12 of all 28 pairs.
    assert np.isclose(score, (1 - 2 / 6) / (1 - 12 / 28))
