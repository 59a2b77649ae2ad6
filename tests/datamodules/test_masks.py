"""Masks from a COCO file in the batches of a data module."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lit_loader import DetectionDataModule
from lit_loader.annotations.formats import write_annotations
from lit_loader.datasets import FormatSource
from tests.datasets.test_masks import HEIGHT, WIDTH, draw_polygons

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


@pytest.fixture
def root(tmp_path):
    table = draw_polygons(tmp_path / "set", num_images=24)
    table = table.select(np.flatnonzero(np.diff(table.offsets) > 0))
    write_annotations("coco", table, tmp_path / "set", "train.json", progress=False)
    bare = dataclasses.replace(table, masks=None)
    write_annotations("coco", bare, tmp_path / "set", "bare.json", progress=False)
    return tmp_path / "set"


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
