"""Predictions that are what is true, and a run that writes them."""

from __future__ import annotations

import torch

from lit_loader.callbacks import PredictionWriter
from lit_loader.collate import batch_targets
from tests.support.tiny_trainer import Tiny, trainer_of


def echo(batch):
    """Find what is true, in the pixels that the model sees."""
    found = []
    for target in batch_targets(batch):
        one = {name: torch.as_tensor(value) for name, value in target.items() if name != "is_duplicate"}
        one["scores"] = 1 / (1 + torch.arange(len(one["labels"])))
        if "keypoints" in one:
            one["keypoint_scores"] = torch.full(one["keypoints"].shape[:2], 0.25)
        found.append(one)
    return found


def predict(folder, datamodule, find=echo, *, module=(), writer=None, **settings):
    writer = writer or PredictionWriter(folder=folder / "out", **settings)
    trainer_of(folder, writer).predict(Tiny(find, **dict(module)), datamodule=datamodule, return_predictions=False)
    return writer.paths
