"""Predicted points of several objects: files hold the predicted classes, points and scores in pixels of the images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from faster_coco_eval import COCO, COCOeval_faster
from PIL import Image
from torch import Tensor, nn

from lit_loader import KeypointDataModule, read_annotations
from lit_loader.annotations import KEYPOINT_SCHEMAS, AnnotationTable
from lit_loader.annotations.formats import write_annotations
from lit_loader.callbacks import PredictionWriter
from lit_loader.collate import batch_targets
from lit_loader.datasets import ImageFilesSource
from lit_loader.recipes import KeypointTask
from tests.support.drawn_set import CLASSES, POINTS, DrawnSource, draw_set
from tests.support.predicting import predict as predict_with
from tests.support.tiny_trainer import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
NUMBERS: dict[str, Any] = {"source_ids": [70, 10, 30, 20, 50, 40, 90], "category_ids": [5, 3, 9]}
SCORES = (0.75, 0.5, 0.25)
# Images resized, stretched, and resized with a border, and the sizes of files in the table unknown.
MOVED: list[dict[str, Any]] = [
    {},
    {"size": [96, 41]},
    {"size": [96, 160], "letterbox": True},
    {"size": [40, 96], "letterbox": True},
]


class Annotated(nn.Module):
    """Detects the objects in its attribute ``targets``, like a keypoint detector of torchvision's."""

    targets: list[dict[str, Any]]

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        detections = []
        for target in self.targets:
            points = target["keypoints"].as_subclass(Tensor)
            count = len(points)
            detections.append(
                {
                    "boxes": target["boxes"].as_subclass(Tensor),
                    "labels": target["labels"],
                    "scores": torch.tensor(SCORES[:count]),
                    "keypoints": torch.cat([points, torch.ones(count, points.shape[1], 1)], dim=2),
                    "keypoints_scores": torch.arange(points.shape[1], dtype=torch.float32).expand(count, -1),
                }
            )
        return detections


class AnnotatedTask(KeypointTask):
    """Predicts the annotations by a detector."""

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        self.model.targets = batch_targets(batch)  # type: ignore[assignment]
        return super().predict_step(batch, batch_idx, dataloader_idx)


def predict(folder: Path, table: AnnotationTable, *, transforms: dict[str, Any] | None = None, **settings: Any) -> Path:
    model = AnnotatedTask(lambda **_: Annotated(), class_names=CLASSES, keypoint_names=POINTS)
    keywords = {"min_box_size": 0.1, **(transforms or {})}
    datamodule = KeypointDataModule(DrawnSource(predict=table), batch_size=3, predict_transforms=keywords)
    writer = PredictionWriter(folder=folder / "out", **settings)
    trainer_of(folder, writer).predict(model, datamodule=datamodule, return_predictions=False)
    return writer.paths[0]


def point_scores() -> list[float]:
    return torch.arange(len(POINTS), dtype=torch.float32).sigmoid().tolist()


def scores_of(table: AnnotationTable) -> list[float]:
    """Return the score of each object by its number in the image."""
    numbers = np.arange(table.num_objects) - np.asarray(table.offsets)[table.image_of_object()]
    return [SCORES[number] for number in numbers]


@pytest.mark.parametrize("transforms", MOVED, ids=str)
def test_coco_results_have_the_points_of_every_object_in_pixels_of_the_file(
    tmp_path: Path, transforms: dict[str, Any]
) -> None:
    sizes = {"widths": [0] * 7, "heights": [0] * 7} if transforms.get("letterbox") else {}
    table = draw_set(tmp_path / "set", num_images=7, **NUMBERS, **sizes)
    results = json.loads(predict(tmp_path, table, transforms=transforms).read_text())
    image_ids = np.array(NUMBERS["source_ids"])[table.image_of_object()]
    assert [result["image_id"] for result in results] == image_ids.tolist()
    assert [result["category_id"] for result in results] == np.array(NUMBERS["category_ids"])[table.labels].tolist()
    assert [result["score"] for result in results] == scores_of(table)
    points = np.array([result["keypoints"] for result in results]).reshape(-1, len(POINTS), 3)
    assert np.abs(points[..., :2] - table.keypoints)[table.visibility > 0].max() < 1e-3
    np.testing.assert_allclose(points[..., 2], [point_scores()] * table.num_objects, rtol=1e-6)
    boxes = np.array([result["bbox"] for result in results])
    assert np.abs(boxes - np.concatenate([table.boxes[:, :2], table.boxes[:, 2:] - table.boxes[:, :2]], 1)).max() < 1e-3


def test_predicted_annotations_have_ap_1_in_cocos_evaluation_of_points(tmp_path: Path) -> None:
    table = draw_set(tmp_path / "set", num_images=7, **NUMBERS)
    write_annotations("coco", table, tmp_path, "truth.json", progress=False)
    path = predict(tmp_path, table, transforms={"size": [96, 160], "letterbox": True})
    truth = COCO(str(tmp_path / "truth.json"))

    def precision(results: Any) -> float:
        predictions = truth.loadRes(results)
        evaluation = COCOeval_faster(truth, predictions, "keypoints", kpt_oks_sigmas=[0.05] * len(POINTS))
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        return float(evaluation.stats[0])

    assert precision(str(path)) == pytest.approx(1.0)
    # Left and right exchanged, the middle in place.
    wrong = json.loads(path.read_text())
    for result in wrong:
        keypoints = result["keypoints"]
        result["keypoints"] = [*keypoints[3:6], *keypoints[:3], *keypoints[6:]]
    assert precision(wrong) < 0.5


@pytest.mark.parametrize("transforms", MOVED, ids=str)
def test_unified_xml_has_the_points_by_name_with_scores(tmp_path: Path, transforms: dict[str, Any]) -> None:
    table = draw_set(
        tmp_path / "set", num_images=7, keypoint_sigmas=(0.1, 0.2, 0.3), skeleton=[(0, 2), (2, 1)], **NUMBERS
    )
    folder = predict(tmp_path, table, transforms=transforms, format="voc")
    (folder / "JPEGImages").symlink_to(table.root)
    predicted = read_annotations("voc", folder, ".", cache_dir=None, progress=False)
    assert not predicted.report.problems
    assert predicted.keypoint_schema == table.keypoint_schema
    assert predicted.class_names == table.class_names
    # Images are sorted by the names of their files.
    np.testing.assert_array_equal(predicted.offsets, table.offsets)
    np.testing.assert_array_equal(predicted.labels, table.labels)
    assert np.abs(predicted.boxes - table.boxes).max() < 1e-3
    assert np.abs(predicted.keypoints - table.keypoints)[table.visibility > 0].max() < 1e-3
    score = predicted.attributes["score"]
    assert [float(score.names[row]) for row in score.ids] == scores_of(table)
    points = ElementTree.parse(folder / "Annotations" / "1.xml").findall("object/keypoints/point")
    assert [point.get("name") for point in points] == list(POINTS)
    np.testing.assert_allclose([float(point.get("score", "nan")) for point in points], point_scores(), rtol=1e-6)


def test_points_of_a_known_schema_have_its_skeleton_without_annotations(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (40, 32), "grey").save(folder / "a.png")
    schema = KEYPOINT_SCHEMAS["coco_17"]

    def one_person(_: Any) -> list[dict[str, Tensor]]:
        points = torch.rand(1, len(schema.names), 2) * 30
        box = torch.tensor([[1.0, 2, 30, 31]])
        return [{"boxes": box, "labels": torch.tensor([1]), "scores": torch.tensor([0.5]), "keypoints": points}]

    datamodule = KeypointDataModule(ImageFilesSource(folder, progress=False))
    module = {"class_names": ["person"], "keypoint_names": schema.names}
    (path,) = predict_with(tmp_path, datamodule, one_person, module=module, format="voc")
    (path / "JPEGImages").symlink_to(folder)
    assert read_annotations("voc", path, ".", cache_dir=None, progress=False).keypoint_schema == schema
