"""Predictions equal to the annotations, and a run that writes them."""

from __future__ import annotations

import torch

from lit_loader.callbacks import PredictionWriter
from lit_loader.collate import batch_targets
from tests.support.tiny_trainer import Tiny, trainer_of


def echo(batch):
    """Return the annotations as predictions, in pixels of the model's input, with falling scores."""
    predictions = []
    for target in batch_targets(batch):
        prediction = {name: torch.as_tensor(value) for name, value in target.items() if name != "is_duplicate"}
        prediction["scores"] = 1 / (1 + torch.arange(len(prediction["labels"])))
        if "keypoints" in prediction:
            prediction["keypoint_scores"] = torch.full(prediction["keypoints"].shape[:2], 0.25)
        predictions.append(prediction)
    return predictions


def predict(folder, datamodule, find=echo, *, module=(), writer=None, **settings):
    writer = writer or PredictionWriter(folder=folder / "out", **settings)
    trainer_of(folder, writer).predict(Tiny(find, **dict(module)), datamodule=datamodule, return_predictions=False)
    return writer.paths
