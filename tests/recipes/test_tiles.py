"""Detections in tiles are scored as detections of whole images, on any number of ranks."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

from lit_loader import DetectionDataModule, MultiTaskDataModule
from lit_loader.annotations.masks import Masks
from lit_loader.errors import SettingError
from lit_loader.recipes import model_kwargs_from_datamodule, tiles
from tests.support.drawn_set import CLASSES, DrawnSource, draw_set
from tests.support.echo_task import EchoDetection, EchoMultiTask
from tests.support.lightning_ranks import on_ranks, trainer

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
# The images have 64 x 48 pixels and their objects up to 22, so that each is whole in one of the 6 tiles.
TILING = {"size": [36, 40], "overlap": 0.6, "keep": 0.2}
NUM_TILES = 6
TRANSFORMS = [{}, {"size": 60}, {"size": [96, 41]}, {"size": [40, 96], "letterbox": True}]


def square_masks(table):
    """Return a mask for each object, its box without the middle column."""
    polygons = []
    for x1, y1, x2, y2 in table.boxes.tolist():
        middle = (x1 + x2) // 2
        columns = ((x1, middle), (middle + 1, x2))
        polygons.append([[[low, y1], [high, y1], [high, y2], [low, y2]] for low, high in columns])
    return Masks.from_rows(polygons)


def tiled(table, kind=DetectionDataModule, **settings):
    stages = {"val": table, "test": table}
    return kind(DrawnSource(**stages), **{"tiling": TILING, "batch_size": 4, "num_workers": 0, **settings})


def score(module, datamodule, **settings):
    running = trainer(**settings)
    running.test(module, datamodule=datamodule, verbose=False)
    return module.test_scores


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set", num_images=7)


@pytest.mark.parametrize("transforms", TRANSFORMS, ids=str)
def test_perfect_detections_in_tiles_are_perfect_in_the_images(table, transforms):
    transforms = {"min_box_size": 0.1, **transforms}
    datamodule = tiled(table, test_transforms=transforms)
    scores = score(EchoDetection(CLASSES), datamodule)
    assert scores.map == 1.0
    assert scores.recall["100"] == 1.0
    assert sum(map(len, datamodule.tables("test"))) == NUM_TILES * table.num_images


def test_scores_of_tiles_are_those_of_the_merged_detections(table):
    # One object is missed in every tile, so exactly this object is missed in the image.
    class MissesRare(EchoDetection):
        def echo(self, target):
            detections = super().echo(target)
            is_detected = detections["labels"] != CLASSES.index("rare") + 1
            return {name: values[is_detected] for name, values in detections.items()}

    scores = score(MissesRare(CLASSES), tiled(table))
    assert scores.ap_50 == {"common": 1.0, "rare": 0.0, "pointless": 1.0}


def test_imprecise_detections_in_several_tiles_count_once(table):
    task = EchoDetection(CLASSES)
    task.noise = 0.3
    scores = score(task, tiled(table, tiling={**TILING, "keep": 0.5}))
    # Every fourth detection is missing in a tile, but most objects are in several.
    assert 0.9 < scores.map_50 <= 1.0


def test_validation_and_its_sanity_check_merge_tiles(table):
    datamodule = tiled(table)
    task = EchoDetection(CLASSES)
    running = trainer(num_sanity_val_steps=2)
    running.validate(task, datamodule=datamodule, verbose=False)
    assert running.callback_metrics["val/map"] == 1.0
    assert task.val_scores.map_50 == 1.0


def test_points_and_attributes_of_tiles_are_scored_in_the_images(table):
    datamodule = tiled(table, MultiTaskDataModule)
    datamodule.prepare_data()
    scores = score(EchoMultiTask(**model_kwargs_from_datamodule(datamodule)), datamodule)
    assert scores.detection.map == 1.0
    assert (scores.num_matched, scores.num_missed) == (table.num_objects, 0)
    assert scores.landmarks.nme == pytest.approx(0, abs=1e-5)
    assert scores.landmarks.num_faces == (table.visibility > 0).any(axis=1).sum()
    assert scores.attributes["finish"].accuracy == 1.0


@pytest.mark.parametrize("transforms", [{}, {"size": [72, 80]}], ids=str)
def test_masks_of_tiles_are_scored_in_the_images(tmp_path, transforms):
    table = draw_set(tmp_path / "set", num_images=5)
    table = draw_set(tmp_path / "set", num_images=5, masks=square_masks(table))
    datamodule = tiled(table, masks=True, test_transforms=transforms)
    scores = score(EchoDetection(CLASSES, masks=True), datamodule)
    assert scores.map == 1.0
    assert scores.masks.map == 1.0


def test_each_of_several_sets_is_scored(tmp_path, table):
    second = draw_set(tmp_path / "second", num_images=5, seed=3)

    class SecondMissed(EchoDetection):
        def test_step(self, batch, batch_idx, dataloader_idx=0):
            self.misses = dataloader_idx == 1
            super().test_step(batch, batch_idx, dataloader_idx)

        def echo(self, target):
            detections = super().echo(target)
            return {name: values[:0] for name, values in detections.items()} if self.misses else detections

    task = SecondMissed(CLASSES)
    datamodule = DetectionDataModule(DrawnSource(test=[table, second]), tiling=TILING, batch_size=4, num_workers=0)
    scores = score(task, datamodule)
    assert 0.3 < scores.map < 0.9
    assert [task.test_set_scores[name].map for name in ("0", "1")] == [1.0, 0.0]


def test_detections_on_a_crowd_and_of_unlabelled_classes_do_not_count(tmp_path):
    table = draw_set(tmp_path / "set", num_images=7)
    crowd = np.arange(table.num_objects) % 3 == 0
    table = draw_set(tmp_path / "set", num_images=7, crowd=crowd).with_unlabelled_classes(["rare"])

    class DetectsAll(EchoDetection):
        def echo(self, target):
            target = {**target, "iscrowd": torch.zeros_like(target["iscrowd"])}
            return super().echo(target)

    scores = score(DetectsAll(CLASSES), tiled(table, tiling={**TILING, "keep": 1e-3}))
    assert scores.ap_50["common"] == scores.ap_50["pointless"] == 1.0
    assert np.isnan(scores.ap_50["rare"])


@pytest.mark.parametrize(
    ("num_batches", "num_scored", "num_partial"), [(1, 0, 1), (2, 1, 1), (3, 2, 0)], ids=["part", "one", "two"]
)
def test_only_images_whose_tiles_were_all_seen_are_scored(table, caplog, num_batches, num_scored, num_partial):
    # From the end, because the first image has no object.
    table = table.select([3, 2, 1, 0])
    task = EchoDetection(CLASSES)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        scores = score(task, tiled(table), limit_test_batches=num_batches)
    assert scores.map == float(num_scored > 0)
    message = f"test: {num_partial} images are not scored, because only some of their tiles were seen"
    assert (message in caplog.text) == (num_partial > 0)


def test_stages_without_tiles_are_scored_as_before(table):
    datamodule = tiled(table, tiling={**TILING, "stages": ["train", "predict"]})
    assert score(EchoDetection(CLASSES), datamodule).map == 1.0
    assert datamodule.tables("test")[0].regions is None


def test_loaders_of_other_data_are_scored_as_they_are(tmp_path, table):
    task = EchoDetection(CLASSES)
    running = trainer()
    running.test(task, datamodule=tiled(table), verbose=False)
    second = draw_set(tmp_path / "second", num_images=3, seed=3)
    for tiling in (None, TILING):
        foreign = tiled(second, tiling=tiling)
        foreign.prepare_data()
        foreign.setup("test")
        # The trainer keeps the first data module.
        expected = pytest.warns(UserWarning, match="tile is scored alone") if tiling else nullcontext()
        with expected:
            running.test(task, dataloaders=foreign.test_dataloader(), verbose=False)
        assert task.test_scores.map == 1.0


def test_a_wrapped_set_of_tiles_is_scored_tile_by_tile_with_a_warning(table):
    class Wrapping(DetectionDataModule):
        def test_dataloader(self):
            dataset = Subset(self.test_dataset, range(len(self.test_dataset)))
            return DataLoader(dataset, batch_size=4, collate_fn=self.collate_fn("test"))

    datamodule = Wrapping(DrawnSource(val=table, test=table), tiling=TILING, batch_size=4, num_workers=0)
    with pytest.warns(UserWarning, match="test: each tile is scored alone.*a loader wraps the data set"):
        scores = score(EchoDetection(CLASSES), datamodule)
    assert scores.map == 1.0


def test_masks_that_exhaust_the_memory_are_refused_before_they_are_drawn(tmp_path, monkeypatch):
    table = draw_set(tmp_path / "set", num_images=5)
    table = draw_set(tmp_path / "set", num_images=5, masks=square_masks(table))
    monkeypatch.setattr(tiles, "_MAX_MASK_BYTES", 64 * 48 - 1)
    with pytest.raises(SettingError, match=r"masks=True takes .* of 64x48 pixels.*tiling.stages, or pass masks=False"):
        score(EchoDetection(CLASSES, masks=True), tiled(table, masks=True))


def test_transforms_that_change_sizes_at_random_are_refused(table):
    datamodule = tiled(table, test_transforms=RandomSize())
    with pytest.raises(ValueError, match="test_transforms that are not random"):
        score(EchoDetection(CLASSES), datamodule)


class RandomSize:
    """Halves every second image."""

    def __init__(self):
        self.count = 0

    def __call__(self, image, target):
        self.count += 1
        return (image[:, ::2, ::2] if self.count % 2 else image), target


# -- ranks ------------------------------------------------------------------------------------------------


def scores_of_cases(root):
    """Return the scores of an imprecise model on every kind of set."""
    table = draw_set(root / f"{dist.get_rank() if dist.is_initialized() else 'single'}", num_images=7)
    second = table.select([1, 2, 3])
    masks = draw_set(table.root, num_images=7, masks=square_masks(table))
    cases = [
        ("boxes", EchoDetection, [table], {}),
        ("sets", EchoDetection, [table, second], {}),
        ("masks", EchoDetection, [masks], {"masks": True}),
        ("one image", EchoDetection, [table.select([2])], {}),
        ("no complete image", EchoDetection, [table], {"batch_size": 1}),
        ("several tasks", EchoMultiTask, [table], {}),
    ]
    results = {}
    for name, kind, tables, settings in cases:
        data = MultiTaskDataModule if kind is EchoMultiTask else DetectionDataModule
        settings = {"batch_size": 4, **settings}
        datamodule = data(DrawnSource(test=tables), tiling=TILING, num_workers=0, **settings)
        datamodule.prepare_data()
        task = kind(**model_kwargs_from_datamodule(datamodule))
        task.noise = 1.0
        running = trainer(limit_test_batches=1 if name == "no complete image" else 1.0)
        running.test(task, datamodule=datamodule, verbose=False)
        results[name] = {key: float(value) for key, value in running.callback_metrics.items()}
    return results


def write_scores(folder):
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(scores_of_cases(folder)))
    dist.barrier()


@pytest.mark.soak
def test_two_ranks_have_the_scores_of_one_process(tmp_path: Path):
    expected = scores_of_cases(tmp_path)
    assert 0.1 < expected["boxes"]["test/map"] < 0.9
    assert expected["no complete image"]["test/map"] == 0
    on_ranks(2, tmp_path, write_scores, tmp_path)
    for rank in range(2):
        scores = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, values in expected.items():
            # Ranks add numbers in another order.
            assert scores[name] == pytest.approx(values, rel=1e-5, abs=1e-6, nan_ok=True), name
