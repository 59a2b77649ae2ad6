"""Predictions in tiles are written as predictions of whole images."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from lit_loader import DetectionDataModule, MultiTaskDataModule
from lit_loader.annotations import Tiling, tile_table
from lit_loader.annotations.masks import Masks, decode_counts, run_lengths
from lit_loader.callbacks import PredictionWriter
from tests.support.drawn_set import SIZE, DrawnSource, draw_set
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.predicting import echo, predict
from tests.support.tiny_trainer import Tiny

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
# The images have 64 x 48 pixels and their objects up to 22, so that each is whole in one of the 6 tiles.
TILING = {"size": [36, 40], "overlap": 0.6, "keep": 0.2, "stages": ["predict"]}
IDS = [70, 10, 30, 20, 50, 40, 90]


def tiled(table, kind=DetectionDataModule, **settings):
    settings = {"tiling": TILING, "batch_size": 4, "num_workers": 0, **settings}
    return kind(DrawnSource(train=table, val=table, predict=table), **settings)


def results(paths):
    return json.loads(paths[0].read_text())


def check_objects(predictions, table):
    """Check image number, class and box (x, y, width, height) of all objects of a table, in any order in an image."""
    actual = [(p["image_id"], p["category_id"], *p["bbox"]) for p in predictions]
    boxes = np.concatenate([table.boxes[:, :2], table.boxes[:, 2:] - table.boxes[:, :2]], axis=1)
    numbers = np.array(IDS)[table.image_of_object()]
    expected = [(number, label + 1, *box) for number, label, box in zip(numbers, table.labels, boxes, strict=True)]
    assert np.abs(np.array(sorted(actual)) - np.array(sorted(expected))).max() < 1e-3
    # Images in the order of the table.
    assert list(dict.fromkeys(row[0] for row in actual)) == list(dict.fromkeys(numbers.tolist()))


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set", num_images=7, source_ids=IDS)


@pytest.mark.parametrize(
    "transforms", [{}, {"size": 60}, {"size": [96, 41]}, {"size": [40, 96], "letterbox": True}], ids=str
)
def test_boxes_are_in_pixels_of_whole_images_for_every_transform(tmp_path, table, transforms):
    datamodule = tiled(table, train_transforms={"min_box_size": 0.1, **transforms})
    check_objects(results(predict(tmp_path, datamodule)), table)
    # A model that trains on whole images predicts in tiles.
    assert datamodule.tables("train")[0].regions is None
    assert datamodule.tables("predict")[0].num_images == 6 * table.num_images


def test_images_without_known_sizes_are_tiled_and_merged(tmp_path):
    table = draw_set(tmp_path / "set", num_images=7, source_ids=IDS, widths=[0] * 7, heights=[0] * 7)
    check_objects(results(predict(tmp_path, tiled(table))), table)


def test_points_and_attributes_come_from_a_tile_that_shows_the_whole_object(tmp_path, table):
    predictions = results(predict(tmp_path, tiled(table, MultiTaskDataModule)))
    check_objects(predictions, table)
    rows = {tuple(box[:2]): row for row, box in enumerate(table.boxes.round().tolist())}
    for prediction in predictions:
        row = rows[tuple(round(x) for x in prediction["bbox"][:2])]
        points = np.reshape(prediction["keypoints"], (3, 3))[:, :2]
        is_visible = table.visibility[row] > 0
        assert np.abs(points - table.keypoints[row])[is_visible].max(initial=0) < 1e-3
        finish = table.attributes["finish"]
        expected = {} if finish.ids[row] < 0 else {"finish": finish.names[finish.ids[row]]}
        assert prediction.get("attributes", {}) == expected


def test_masks_have_the_size_of_the_whole_image(tmp_path, table):
    polygons = [[[[x1, y1], [x2, y1], [x1, y2]]] for x1, y1, x2, y2 in table.boxes.tolist()]
    table = draw_set(tmp_path / "set", num_images=7, source_ids=IDS, masks=Masks.from_rows(polygons))
    predictions = results(predict(tmp_path, tiled(table, masks=True)))
    check_objects(predictions, table)
    rows = {tuple(box[:2]): row for row, box in enumerate(table.boxes.round().tolist())}
    for prediction in predictions:
        row = rows[tuple(round(x) for x in prediction["bbox"][:2])]
        segmentation = prediction["segmentation"]
        expected = run_lengths(table.masks.rasterize(row, SIZE[1], SIZE[0]))
        assert segmentation["size"] == [SIZE[1], SIZE[0]]
        assert decode_counts(segmentation["counts"]).tolist() == expected.counts.tolist()


def test_xml_files_and_pictures_show_whole_images(tmp_path, table):
    paths = predict(tmp_path, tiled(table), format="voc", num_pictures=3)
    files = sorted((paths[0] / "Annotations").iterdir())
    assert len(files) == table.num_images
    for file in files:
        size = ElementTree.parse(file).getroot().find("size")
        assert [int(size.find(name).text) for name in ("width", "height")] == list(SIZE)
    (*_, path) = sorted(paths[1].iterdir())
    with Image.open(path) as picture:
        assert picture.width / picture.height == pytest.approx(SIZE[0] / SIZE[1], rel=0.02)


def test_minimum_score_applies_to_merged_objects(tmp_path):
    table = draw_set(tmp_path / "set", num_images=1, objects=1, boxes=[[10, 10, 60, 30]], source_ids=[70])

    def halves(batch):
        """Predict the object, with a low score in the tiles at the right."""
        predictions = echo(batch)
        for prediction in predictions:
            is_cut_left = prediction["boxes"][:, 0] == 0
            prediction["scores"] = torch.where(is_cut_left, 0.2, 0.9)
        return predictions

    datamodule = tiled(table, tiling={**TILING, "size": [48, 40], "overlap": 0.4})
    (prediction,) = results(predict(tmp_path, datamodule, halves, min_score=0.5))
    assert prediction["bbox"] == pytest.approx([10, 10, 50, 20])
    assert prediction["score"] == pytest.approx(0.9)


def test_images_with_missing_tiles_are_reported(tmp_path, table, caplog):
    writer = PredictionWriter(folder=tmp_path / "out")
    running = trainer(callbacks=[writer], limit_predict_batches=2)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        running.predict(Tiny(echo), datamodule=tiled(table), return_predictions=False)
    assert "1 images lack predictions in some of their tiles" in caplog.text
    assert "predictions of 8 tiles of 2 images" in caplog.text


def test_a_source_of_tiles_is_refused(tmp_path, table):
    tiles = tile_table(table, Tiling([36, 40]))
    with pytest.raises(ValueError, match=r"describes regions of images.*predict on the table of whole images"):
        predict(tmp_path, tiled(tiles, tiling=None))


def predict_on_rank(folder):
    table = draw_set(folder / f"set{dist.get_rank()}", num_images=7, source_ids=IDS)
    writer = PredictionWriter(folder=folder / "out")
    trainer(callbacks=[writer]).predict(Tiny(echo), datamodule=tiled(table), return_predictions=False)
    dist.barrier()


def test_tiles_of_an_image_on_several_ranks_are_merged(tmp_path: Path):
    table = draw_set(tmp_path / "set", num_images=7, source_ids=IDS)
    on_ranks(2, tmp_path, predict_on_rank, tmp_path)
    check_objects(json.loads((tmp_path / "out" / "predictions.json").read_text()), table)
