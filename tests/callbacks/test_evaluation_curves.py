"""The curves and the worst samples of a test, in files and in loggers."""

from __future__ import annotations

import csv
import logging

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from PIL import Image
from torch.utils.data import Dataset

from lit_loader import ClassificationDataModule, DetectionDataModule
from lit_loader.callbacks import EvaluationCurves, evaluation_curves
from tests.callbacks.test_picture_logger import ImageLogger
from tests.support.drawn_set import CLASSES, DrawnSource, draw_set
from tests.support.echo_task import EchoDetection
from tests.support.small_tasks import small_task
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = [pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")]
FILES = {"curves.png", "curves.csv", "classes.csv", "confusion.csv", "worst_images.png"}


class Misses(EchoDetection):
    """Misses the objects of image 3, and adds a false detection to image 5."""

    def echo(self, target):
        detections = super().echo(target)
        row = int(target["image_id"])
        if row == 3:
            return {name: values[:0] for name, values in detections.items()}
        if row == 5:
            false = {"boxes": torch.tensor([[0.0, 40, 6, 47]]), "labels": torch.ones(1, dtype=torch.int64)}
            false["scores"] = torch.tensor([0.6])
            return {name: torch.cat([values, false[name]]) for name, values in detections.items()}
        return detections


@pytest.fixture
def source(tmp_path):
    return DrawnSource(test=draw_set(tmp_path / "set", num_images=8))


@pytest.fixture
def drawn_figures(monkeypatch):
    """Return the arguments of the pictures of worst samples, which are drawn as well."""
    calls = []
    draw = evaluation_curves.draw_found

    def record(datamodule, batch, predictions, **settings):
        calls.append((batch, predictions, settings))
        return draw(datamodule, batch, predictions, **settings)

    monkeypatch.setattr(evaluation_curves, "draw_found", record)
    return calls


def test_files_and_pictures_of_a_detector(source, drawn_figures, tmp_path):
    logger = ImageLogger()
    callback = EvaluationCurves(num_worst=3, folder=tmp_path / "curves")
    datamodule = DetectionDataModule(source, batch_size=3, num_workers=0)
    module = Misses(CLASSES)
    trainer_of(tmp_path, callback, logger=logger).test(module, datamodule=datamodule, verbose=False)
    assert {path.name for path in (tmp_path / "curves").iterdir()} == FILES
    assert [name for name, _, _ in logger.logged] == ["worst_images", "curves"]
    with Image.open(tmp_path / "curves/curves.png") as picture:
        assert picture.size == logger.logged[1][2][0]
    # Images 3 and 5 have three objects and one.
    assert [(sample.image_id, sample.text) for sample in callback.worst] == [
        (3, "3 missed, 0 false"),
        (5, "0 missed, 1 false"),
    ]
    ((_, predictions, settings),) = drawn_figures
    assert len(predictions) == 2
    assert settings["captions"] == ["3 missed, 0 false: 3.png", "0 missed, 1 false: 5.png"]
    assert settings["title"] == f"the 2 worst of the test, scores from {settings['min_score']:.3f} on"
    assert settings["truths"][0]["is_wrong"].tolist() == [True] * 3
    assert predictions[1]["is_wrong"].nonzero().flatten().tolist() == [len(predictions[1]["scores"]) - 1]
    with (tmp_path / "curves/confusion.csv").open(newline="") as file:
        counts = {(row["true"], row["predicted"]): int(row["count"]) for row in csv.DictReader(file)}
    num_objects = len(source.tables("test")[0].labels)
    assert sum(count for (true, _), count in counts.items() if true) == num_objects
    assert sum(count for (_, predicted), count in counts.items() if not predicted) == 3
    scores = module.test_scores.ap_50
    with (tmp_path / "curves/classes.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["curve"] == "IoU 0.50"]
    assert {row["class"]: float(row["average_precision"]) for row in rows} == pytest.approx(scores, abs=1e-5)


def test_worst_images_are_drawn_from_the_threshold_of_the_confusion_matrix_on(source, drawn_figures, tmp_path):
    callback = EvaluationCurves(confusion_score=0.7)
    datamodule = DetectionDataModule(source, batch_size=3, num_workers=0)
    trainer_of(tmp_path, callback).test(Misses(CLASSES), datamodule=datamodule, verbose=False)
    assert 5 in [sample.image_id for sample in callback.worst]
    ((_, predictions, settings),) = drawn_figures
    # The false detection of image 5 has a score of 0.6.
    assert not any(detections["is_wrong"].any() for detections in predictions)
    assert settings["min_score"] == 0.7
    assert "scores from 0.700 on" in settings["title"]


def test_worst_images_are_those_of_each_of_several_sets(tmp_path):
    tables = [draw_set(tmp_path / name, num_images=4, seed=seed) for seed, name in enumerate(("day", "night"))]
    callback = EvaluationCurves(num_worst=2)
    datamodule = DetectionDataModule(DrawnSource(test=tables), batch_size=3, num_workers=0)
    trainer_of(tmp_path, callback).test(Misses(CLASSES), datamodule=datamodule, verbose=False)
    assert [(sample.set_number, sample.image_id) for sample in callback.worst] == [(0, 3), (1, 3)]
    assert {path.name for path in (tmp_path / "curves").iterdir()} == FILES


def test_worst_images_of_a_classifier_have_the_largest_losses(source, drawn_figures, tmp_path):
    datamodule = ClassificationDataModule(
        source, sample_unit="object", train_transforms={"size": 32}, batch_size=4, num_workers=0
    )
    module = small_task("classification", class_names=CLASSES)
    callback = EvaluationCurves(num_worst=4)
    losses = {}

    class Losses(Callback):
        def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            losses.update(zip(batch.image_ids.tolist(), (error for error, _ in pl_module.batch_errors), strict=True))

    trainer_of(tmp_path, Losses(), callback).test(module, datamodule=datamodule, verbose=False)
    assert len(losses) == len(source.tables("test")[0].labels)
    largest = sorted(losses, key=lambda image_id: (-losses[image_id], image_id))[:4]
    assert [sample.image_id for sample in callback.worst] == largest
    ((batch, probabilities, _),) = drawn_figures
    assert batch.image_ids.tolist() == largest
    expected = -probabilities[range(4), batch.labels].log()
    assert [sample.error for sample in callback.worst] == pytest.approx(expected.tolist(), rel=1e-4)


def test_tiles_have_curves_and_a_reason_instead_of_worst_images(source, tmp_path, caplog):
    settings = {"tiling": {"size": [36, 40], "overlap": 0.6, "keep": 0.2, "stages": ["test"]}}
    datamodule = DetectionDataModule(source, batch_size=4, num_workers=0, **settings)
    callback = EvaluationCurves(folder=tmp_path / "curves")
    with caplog.at_level(logging.INFO):
        trainer_of(tmp_path, callback).test(EchoDetection(CLASSES), datamodule=datamodule, verbose=False)
    assert {path.name for path in (tmp_path / "curves").iterdir()} == FILES - {"worst_images.png"}
    assert "worst_images.png is left out: detections are merged from tiles" in caplog.text


class Plain(Dataset):
    """Images without ids, or with file names as ids."""

    def __init__(self, fields):
        self.fields = fields

    def __len__(self):
        return 2

    def __getitem__(self, index):
        boxes = torch.tensor([[1.0, 1, 9, 9]])
        target = {"boxes": boxes, "labels": torch.tensor([1]), "is_duplicate": False, "iscrowd": torch.tensor([0])}
        return torch.rand(3, 32, 32), {**target, **self.fields}


@pytest.mark.parametrize("fields", [{}, {"image_id": "cat.jpg"}])
def test_loader_of_the_user_has_curves_and_a_reason_instead_of_worst_images(fields, tmp_path, caplog):
    def collate(samples):
        return torch.stack([image for image, _ in samples]), [target for _, target in samples]

    loader = torch.utils.data.DataLoader(Plain(fields), batch_size=2, collate_fn=collate)
    with caplog.at_level(logging.INFO):
        trainer_of(tmp_path, EvaluationCurves()).test(
            small_task("detection", class_names=CLASSES), dataloaders=loader, verbose=False
        )
    assert (tmp_path / "curves/classes.csv").exists()
    assert "worst_images.png is left out: the data module is not one of lit_loader" in caplog.text


@pytest.mark.parametrize("result", [torch.tensor(0.5), {"loss": torch.tensor(0.5)}])
def test_step_that_returns_values_of_its_own_keeps_the_worst_images(result, source, tmp_path):
    class ReturnsLoss(Misses):
        def test_step(self, batch, batch_idx, dataloader_idx=0):
            super().test_step(batch, batch_idx, dataloader_idx)
            return result

    callback = EvaluationCurves(num_worst=1)
    datamodule = DetectionDataModule(source, batch_size=3, num_workers=0)
    trainer_of(tmp_path, callback).test(ReturnsLoss(CLASSES), datamodule=datamodule, verbose=False)
    assert [sample.image_id for sample in callback.worst] == [3]


def test_perfect_predictions_have_no_worst_images(source, tmp_path):
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves/worst_images.png").write_text("of an earlier test")
    datamodule = DetectionDataModule(source, batch_size=4, num_workers=0)
    trainer_of(tmp_path, EvaluationCurves()).test(EchoDetection(CLASSES), datamodule=datamodule, verbose=False)
    assert {path.name for path in (tmp_path / "curves").iterdir()} == FILES - {"worst_images.png"}


def test_module_that_is_no_task_has_no_files(source, tmp_path):
    datamodule = DetectionDataModule(source, batch_size=4, num_workers=0)
    module = Tiny()
    # Names that the task has as well.
    module.record_curves = module.sample_errors = None
    trainer_of(tmp_path, EvaluationCurves()).test(module, datamodule=datamodule, verbose=False)
    assert not (tmp_path / "curves").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_worst": -1}, "num_worst=-1 must be 0 or more"),
        ({"max_classes": 1}, "max_classes=1 must be 2 to 100"),
        ({"min_score": 1.5}, "min_score=1.5"),
        ({"confusion_score": -0.1}, r"confusion_score=-0.1 must be in \[0, 1\]"),
        ({"confusion_iou": 0.0}, "confusion_iou=0.0 in"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EvaluationCurves(**settings)
