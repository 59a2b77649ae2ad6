"""The detectors of the shipped configs: each is built, fitted for a step and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import instantiate

from lit_loader.recipes import DetectionTask
from tests.support.drawn_batches import CLASSES, changed_by_fit, detection_batch, fit

CONF = Path(__file__).parents[2] / "conf" / "model"
LARGE = ("fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2")

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def build(name: str) -> DetectionTask:
    config: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    config["model"] |= {"min_size": 64, "max_size": 64}
    model: DetectionTask = instantiate(config, weights=None, class_names=CLASSES, _convert_="all")
    return model


def test_every_config_of_a_detector_is_tested() -> None:
    names = {path.stem for path in CONF.glob("*.yaml") if "recipes.DetectionTask" in path.read_text()}
    hub_names = {"transformers", "rfdetr"}  # in test_hub_detectors.py
    assert names == {"fcos_small", "maskrcnn_small", *LARGE, *hub_names}


@pytest.mark.parametrize(
    "name",
    [
        "fcos_small",
        "maskrcnn_small",
        "fcos_resnet50_fpn",
        "retinanet_resnet50_fpn_v2",
        pytest.param("fasterrcnn_resnet50_fpn_v2", marks=pytest.mark.soak),
        pytest.param("maskrcnn_resnet50_fpn_v2", marks=pytest.mark.soak),
    ],
)
def test_shipped_detector_takes_a_step_and_is_scored(name: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = build(name)
    trainer, changed = changed_by_fit(model, [detection_batch(2, masks=model.masks)], tmp_path)
    assert trainer.global_step == 1
    assert next(name for name, _ in model.model.named_parameters()) in changed
    assert {"test/map", "test/map_50"} <= set(trainer.callback_metrics)
    assert ("test/mask_map" in trainer.callback_metrics) == model.masks


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_shipped_detector_trains_under_bfloat16(name: str, tmp_path: Any) -> None:
    model = build(name)
    trainer = fit(model, [detection_batch(2, masks=model.masks)], tmp_path, precision="bf16-mixed")
    assert trainer.global_step == 1
