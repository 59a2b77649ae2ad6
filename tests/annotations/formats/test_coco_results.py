"""Predictions on COCO sets have COCO's own numbers, so that COCO's own evaluation takes them."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch
from faster_coco_eval import COCO, COCOeval_faster

from lit_loader import DetectionDataModule
from lit_loader.annotations import Masks, concatenate
from lit_loader.annotations.formats import write_annotations
from lit_loader.annotations.formats.coco import coco_results
from lit_loader.annotations.masks import run_lengths
from lit_loader.datasets import ClassificationDataset, DetectionDataset, FormatSource
from lit_loader.recipes import DetectionTask, fcos_small
from tests.datasets.test_masks import HEIGHT, WIDTH, draw_polygons

IMAGE_IDS = [900, 12, 7, 4_000_000_000, 0, 31]
CATEGORY_IDS = [18, 3]


def table_of(root, *, points=False):
    """Six images with odd numbers, masks as run lengths, classes with odd numbers."""
    table = draw_polygons(root)
    masks = [run_lengths(table.masks.rasterize(row, HEIGHT, WIDTH)) for row in range(table.num_objects)]
    numbers = {"source_ids": IMAGE_IDS, "category_ids": CATEGORY_IDS, "masks": Masks.from_rows(masks)}
    if points:
        centres = table.boxes.reshape(-1, 2, 2).mean(axis=1, keepdims=True)
        visibility = np.full((table.num_objects, 1), 2)
        numbers |= {"keypoints": centres, "visibility": visibility, "keypoint_names": ("centre",)}
    return dataclasses.replace(table, **numbers)


@pytest.fixture
def table(tmp_path):
    return table_of(tmp_path)


def perfect(datamodule):
    """Yield perfect predictions for the batches of a data module."""
    with datamodule.predict_dataloader() as loader:
        for _, targets in loader:
            for target in targets:
                yield {**target, "scores": torch.full((len(target["labels"]),), 0.5)}


def average_precision(truth, results, kind):
    evaluation = COCOeval_faster(truth, truth.loadRes(results), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0])


def test_perfect_predictions_have_ap_1_in_cocos_evaluation(tmp_path, table):
    write_annotations("coco", table, tmp_path, "a.json")
    source = FormatSource("coco", str(tmp_path), predict="a.json", cache_dir=str(tmp_path / "c"))
    predictions = list(perfect(DetectionDataModule(source, batch_size=2, masks=True, num_workers=0)))
    assert [target["image_id"] for target in predictions] == IMAGE_IDS
    results = coco_results(source.tables("predict")[0], predictions)
    assert json.loads(json.dumps(results)) == results
    truth = COCO(str(tmp_path / "a.json"))
    for kind in ("bbox", "segm"):
        assert average_precision(truth, results, kind) == pytest.approx(1.0)
    wrong = [result | {"category_id": 21 - result["category_id"]} for result in results]
    assert average_precision(truth, wrong, "bbox") < 0.5


def test_keypoints_and_masks_have_cocos_layout(tmp_path):
    table = table_of(tmp_path, points=True)
    masks = torch.zeros((1, 1, HEIGHT, WIDTH))
    masks[0, 0, 2:4, 1:3] = 0.7
    prediction = {
        "image_id": torch.tensor(12),
        "boxes": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.25]),
        "masks": masks,
        "keypoints": torch.tensor([[[2.0, 3.0, 0.0]]]),
    }
    (result,) = coco_results(table, [prediction, prediction])  # the second is a duplicate
    assert (result["image_id"], result["category_id"], result["score"]) == (12, 3, 0.25)
    assert (result["bbox"], result["keypoints"]) == ([1, 2, 2, 2], [2, 3, 1])
    assert result["segmentation"]["size"] == [HEIGHT, WIDTH]
    (first_label_0,) = coco_results(table, [prediction | {"labels": torch.tensor([1])}], first_label=0)
    assert first_label_0 == result
    encoded = [run_lengths(masks[0, 0] >= 0.5)]
    assert coco_results(table, [prediction | {"masks": encoded}]) == [result]
    more = {"keypoint_scores": torch.tensor([[0.5]]), "attributes": {"finish": ["plain"], "hue": [None]}}
    (scored,) = coco_results(table, [prediction | more])
    assert scored == result | {"keypoints": [2, 3, 0.5], "attributes": {"finish": "plain"}}


def test_tables_without_ids_get_names_and_the_ids_of_the_writer(tmp_path, table):
    bare = dataclasses.replace(table, source_ids=None, category_ids=None)
    prediction = {"image_id": 5, "boxes": np.ones((1, 4)), "labels": np.array([2]), "scores": np.ones(1)}
    (result,) = coco_results(bare, [prediction])
    assert (result["file_name"], result["category_name"]) == (bare.image_paths[5], "house")
    with_numbers = coco_results(table, [prediction | {"image_id": IMAGE_IDS[5]}])
    assert not {"file_name", "category_name"} & with_numbers[0].keys()
    write_annotations("coco", bare, tmp_path, "a.json")
    written = json.loads((tmp_path / "a.json").read_text())
    image = next(image for image in written["images"] if image["file_name"] == bare.image_paths[5])
    category = next(category for category in written["categories"] if category["name"] == "house")
    assert (result["image_id"], result["category_id"]) == (image["id"], category["id"])


@pytest.mark.parametrize("wrong", [{"image_id": 901}, {"labels": [0]}, {"labels": [3]}])
def test_images_and_labels_of_other_tables_are_refused(table, wrong):
    prediction = {"image_id": 900, "boxes": [[0, 0, 1, 1]], "labels": [1], "scores": [1]} | wrong
    with pytest.raises(ValueError, match=r"image_id=\d+ with labels \[\d\] is not in the table"):
        coco_results(table, [prediction])


def test_missing_or_duplicate_image_ids_become_positions(table):
    assert table.image_numbers.tolist() == IMAGE_IDS
    assert table.select([3, 1]).image_numbers.tolist() == [IMAGE_IDS[3], IMAGE_IDS[1]]
    for other in (
        dataclasses.replace(table, source_ids=None),
        dataclasses.replace(table, source_ids=[1, 2, 3, 4, 5, -1]),
        table.per_object([0, 1, 2, 1, 0, 2]),
    ):
        assert other.image_numbers.tolist() == list(range(6))
    both = concatenate([table, table])
    assert both.image_numbers.tolist() == list(range(12))


def test_samples_of_every_data_set_have_the_number_of_their_image(table):
    assert [DetectionDataset(table)[i][1]["image_id"] for i in (0, 3)] == [900, 4_000_000_000]
    labelled = table.select(np.flatnonzero(np.diff(table.offsets) == 1))
    assert ClassificationDataset(labelled)[1][2] == labelled.source_ids[1]


def test_predictions_of_the_recipe_have_the_image_ids_of_their_batch(table):
    model = DetectionTask(partial(fcos_small, score_thresh=0.0), class_names=table.class_names).eval()
    images, targets = zip(*[DetectionDataset(table)[i] for i in (3, 2)], strict=True)
    with torch.no_grad():
        predictions = model.predict_step(([image.float() / 255 for image in images], targets), 0)
    assert [int(prediction["image_id"]) for prediction in predictions] == [4_000_000_000, 7]
    assert {result["image_id"] for result in coco_results(table, predictions)} <= {4_000_000_000, 7}
