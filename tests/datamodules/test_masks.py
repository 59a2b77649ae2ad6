"""Masks from a COCO file through a composed data module into torchvision's Mask R-CNN."""

from __future__ import annotations

import dataclasses
from functools import partial

import lightning
import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from lit_loader import DetectionDataModule
from lit_loader.annotations.formats import write_annotations
from lit_loader.datasets import FormatSource
from lit_loader.recipes import DetectionTask
from tests.datasets.test_masks import HEIGHT, WIDTH, draw_polygons, mask_rcnn
from tests.support.extras import needs

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


class Learner(DetectionTask):
    def __init__(self, **arguments):
        torch.manual_seed(0)
        super().__init__(
            mask_rcnn, masks=True, optimizer=partial(torch.optim.AdamW, lr=2e-3), scheduler=None, **arguments
        )
        self.losses = []

    def log_sum(self, losses, *, batch_size):
        self.losses.append(losses["loss_mask"].item())
        return super().log_sum(losses, batch_size=batch_size)


@pytest.fixture
def root(tmp_path):
    table = draw_polygons(tmp_path / "set", num_images=24)
    table = table.select(np.flatnonzero(np.diff(table.offsets) > 0))
    write_annotations("coco", table, tmp_path / "set", "train.json", progress=False)
    bare = dataclasses.replace(table, masks=None)
    write_annotations("coco", bare, tmp_path / "set", "bare.json", progress=False)
    return tmp_path / "set"


@needs("hydra")
@needs("recipes")
@pytest.mark.soak
def test_mask_rcnn_trains_on_the_batches_of_a_composed_data_module(root, tmp_path):
    from lit_loader.app.composition import build_datamodule, compose_config

    config = compose_config(
        overrides=[
            *("dataset=files", "dataset.format=coco", f"dataset.root={root}", "dataset.train=train.json"),
            "dataset.val=train.json",
            *(f"dataset.cache_dir={tmp_path / 'cache'}", "datamodule.masks=true", "datamodule.batch_size=4"),
            *("datamodule.train_transforms.photometric=0", "workers.num_workers=0", "seed=0"),
        ]
    )
    datamodule = build_datamodule(config)
    images, targets = next(iter(datamodule.train_dataloader()))
    for image, target in zip(images, targets, strict=True):
        assert isinstance(target["masks"], tv_tensors.Mask)
        assert target["masks"].shape == (len(target["boxes"]), *image.shape[-2:])
        visible = image[0] > 0.6
        mask = target["masks"].as_subclass(torch.Tensor).bool().any(dim=0)
        assert (mask & visible).sum() > 0.95 * (mask | visible).sum()
    learner = Learner(class_names=datamodule.class_names)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=16,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(learner, datamodule=datamodule)
    assert len(learner.losses) == 16
    assert np.mean(learner.losses[-4:]) < np.mean(learner.losses[:4])
    (scores,) = trainer.validate(learner, datamodule=datamodule, verbose=False)
    assert set(scores) == {"val/map", "val/map_50", "val/mask_map", "val/mask_map_50"}


def source(root, tmp_path, **stages):
    return FormatSource(format="coco", root=str(root), cache_dir=str(tmp_path / "cache"), progress=False, **stages)


def test_tables_without_masks_are_refused_but_for_prediction(root, tmp_path):
    with pytest.raises(ValueError, match="masks=True but no object of AnnotationTable"):
        DetectionDataModule(source(root, tmp_path, train="bare.json"), masks=True).train_dataloader()
    datamodule = DetectionDataModule(
        source(root, tmp_path, train="train.json", predict="bare.json"), masks=True, batch_size=2
    )
    _, targets = next(iter(datamodule.predict_dataloader()))
    assert "masks" not in targets[0]
    _, targets = next(iter(datamodule.train_dataloader()))
    assert targets[0]["masks"].shape[1:] == (HEIGHT, WIDTH)


def test_batches_have_no_masks_unless_they_are_wanted(root, tmp_path):
    datamodule = DetectionDataModule(source(root, tmp_path, train="train.json"), batch_size=2)
    assert "masks" not in next(iter(datamodule.train_dataloader()))[1][0]
