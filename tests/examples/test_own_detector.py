"""The example of a custom detector trains, is scored, and learns to find objects."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "examples/own_detector.py"

pytestmark = [pytest.mark.filterwarnings("ignore:.*does not have many workers")]


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


def test_example_trains_and_tests(example, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"num_images": {"train": 32, "val": 4, "test": 4}, "cache_dir": str(tmp_path), "progress": False}
    example["main"](epochs=1, **settings)
    assert "mAP@50 after 2 steps: 0." in capfd.readouterr().out
    assert not list(tmp_path.glob("**/*.ckpt"))


def test_losses_fall_and_objects_are_detected(example):
    torch.manual_seed(0)
    model = example["SmallDETR"](num_classes=3, num_queries=4, channels=16).train()
    images = [torch.full((3, 48, 96), 0.3), torch.full((3, 96, 64), 0.3)]
    images[0][:, 10:30, 20:60] = 0.9
    boxes = [torch.tensor([[20.0, 10, 60, 30]]), torch.zeros(0, 4)]
    labels = [torch.tensor([2]), torch.zeros(0, dtype=torch.int64)]
    targets = [{"boxes": b, "labels": label} for b, label in zip(boxes, labels, strict=True)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(40):
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    with torch.no_grad():
        detections, empty_detections = model.eval()(images)
    best = int(detections["scores"].argmax())
    assert int(detections["labels"][best]) == 2
    assert (detections["boxes"][best] - boxes[0][0]).abs().max() < 12
    assert detections["scores"].max() > 0.5 > empty_detections["scores"].max()
