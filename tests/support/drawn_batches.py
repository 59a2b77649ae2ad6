"""Batches of drawn squares with visible class, corners and finish, and short training runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_loader.collate.classification import ClassificationBatch
from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.collate.multi_task import MultiTaskBatch
from tests.support.toy_task import trainer as quiet_trainer

CORNERS = ("top_left", "bottom_right", "middle", "never")
CLASSES = ("dark", "bright")
FINISH = ("plain", "hollow")


def draw(generator: torch.Generator, *, size: int = 64) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw a square on grey, bright or dark, plain or hollow; its middle point is hidden, the last is absent."""
    label, finish = (int(torch.randint(2, (1,), generator=generator)) for _ in range(2))
    side = int(torch.randint(size // 3, size // 2, (1,), generator=generator))
    x, y = (int(torch.randint(4, size - side - 4, (1,), generator=generator)) for _ in range(2))
    image = 0.45 + 0.1 * torch.rand(3, size, size, generator=generator)
    image[:, y : y + side, x : x + side] = 0.9 if label else 0.1
    if finish:
        image[:, y + side // 4 : y + 3 * side // 4, x + side // 4 : x + 3 * side // 4] = 0.5
    points = torch.tensor([[x, y], [x + side, y + side], [x + side / 2, y + side / 2], [0, 0]], dtype=torch.float32)
    return image, {
        "boxes": torch.tensor([x, y, x + side, y + side], dtype=torch.float32),
        "labels": torch.tensor(label),
        "keypoints": points,
        "visibility": torch.tensor([2, 2, 1, 0], dtype=torch.uint8),
        "finish": torch.tensor(finish),
    }


def drawn(count: int, *, size: int = 64, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `count` images, and the columns of their objects, one an image."""
    generator = torch.Generator().manual_seed(seed)
    images, targets = zip(*(draw(generator, size=size) for _ in range(count)), strict=True)
    return torch.stack(images), {name: torch.stack([t[name] for t in targets]) for name in targets[0]}


def detection_batch(
    count: int = 8, *, masks: bool = False, **changes: Any
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """One object an image, with labels from 1, and with ``masks`` the mask of its whole box."""
    images, columns = drawn(count, **changes)
    targets = []
    for box, label in zip(columns["boxes"], columns["labels"] + 1, strict=True):
        target = {"boxes": box[None], "labels": label[None], "is_duplicate": False}
        if masks:
            x1, y1, x2, y2 = box.long().tolist()
            target["masks"] = torch.zeros(1, *images.shape[-2:], dtype=torch.uint8)
            target["masks"][0, y1:y2, x1:x2] = 1
        targets.append(target)
    return list(images), targets


def landmark_batch(count: int = 8, **changes: Any) -> LandmarkBatch:
    images, columns = drawn(count, **changes)
    return LandmarkBatch(
        images=images,
        keypoints=columns["keypoints"],
        visibility=columns["visibility"],
        mask=columns["visibility"] > 0,
        boxes=columns["boxes"],
        labels=columns["labels"],
        attributes={"finish": columns["finish"]},
        crops=torch.tensor([0.0, 0, images.shape[-1], images.shape[-2]]).expand(count, 4),
        image_ids=torch.arange(count),
        is_duplicate=torch.zeros(count, dtype=torch.bool),
    )


def classification_batch(
    count: int = 8, *, multi_label: bool = False, labels: Tensor | None = None, **changes: Any
) -> ClassificationBatch:
    """Labels are dark or bright; with `multi_label` bright, hollow, and a class that never occurs."""
    images, columns = drawn(count, **changes)
    labels = columns["labels"] if labels is None else labels
    if multi_label:
        labels = torch.stack([labels, columns["finish"], torch.zeros_like(labels)], dim=1).float()
    marks = torch.zeros(count, dtype=torch.bool)
    return ClassificationBatch(images=images, labels=labels, image_ids=torch.arange(count), is_duplicate=marks)


def multi_task_batch(count: int = 8, *, empty: Sequence[int] = (), **changes: Any) -> MultiTaskBatch:
    """One object and one row of padding an image; images in `empty` have padding alone."""
    images, columns = drawn(count, **changes)
    mask = torch.tensor([[i not in empty, False] for i in range(count)])

    def padded(name: str, value: float = 0) -> Tensor:
        rows = torch.stack([columns[name], torch.full_like(columns[name], value)], dim=1)
        rows[~mask] = value
        return rows

    visibility = padded("visibility")
    finish = padded("finish", -1)
    return MultiTaskBatch(
        images=images,
        sizes=torch.tensor([images.shape[-2:]] * count),
        boxes=padded("boxes"),
        labels=torch.where(mask, padded("labels") + 1, 0),
        keypoints=padded("keypoints"),
        visibility=visibility,
        attributes={"finish": finish},
        object_mask=mask,
        keypoint_mask=visibility > 0,
        attribute_masks={"finish": finish >= 0},
        iscrowd=torch.zeros(count, 2, dtype=torch.int64),
        image_ids=torch.arange(count),
        is_duplicate=torch.zeros(count, dtype=torch.bool),
    )


def fit(model: LightningModule, batches: list[Any], folder: Any, **changes: Any) -> Trainer:
    """Fit, validate and test on two loaders of the same batches."""
    trainer = quiet_trainer(folder, **{"max_epochs": 1} | changes)
    loaders = [torch.utils.data.DataLoader(batches, batch_size=None, num_workers=0) for _ in range(2)]
    trainer.fit(model, loaders[0], loaders)
    trainer.test(model, loaders, verbose=False)
    return trainer


def changed_by_fit(model: Any, batches: list[Any], folder: Any) -> tuple[Trainer, set[str]]:
    """Fit as `fit` does, and return the trainer and the names of the tensors of ``model.model`` that have changed."""
    initial_state = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    trainer = fit(model, batches, folder)
    state = model.model.state_dict()
    return trainer, {name for name in state if not torch.equal(state[name], initial_state[name])}


def overfit(model: Any, batch: Any, *, steps: int, learning_rate: float = 3e-3) -> list[float]:
    """Train on one batch without a trainer, and return the losses."""
    model.log_dict = model.log = lambda *_, **__: None
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    losses = []
    model.train()
    for step in range(steps):
        loss = model.training_step(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses
