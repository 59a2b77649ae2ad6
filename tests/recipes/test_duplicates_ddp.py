"""A test on several ranks gives the scores of one process, on a set whose size does not divide.

One process group of real ranks serves every case. Some cases are tested a second time with duplicates counted, which
shows that the scores would then differ.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAUROC
from torchmetrics.retrieval import RetrievalMAP

from lit_loader import ClassificationDataModule, DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
from lit_loader.callbacks import EvaluationCurves
from lit_loader.collate import batch_duplicates
from lit_loader.datasets import ShapesSource
from lit_loader.recipes import (
    ClassificationTask,
    DetectionTask,
    LandmarkTask,
    MultiTask,
    WithoutDuplicates,
    classifier_small,
    fcos_small,
    heatmaps_small,
    model_kwargs_from_datamodule,
)
from tests.support.lightning_ranks import on_ranks, trainer

NUM_IMAGES = {"train": 6, "val": 6, "test": 17}
BATCH_SIZE = 4
SMALL: dict[str, Any] = {"channels": 16, "head_channels": 32}
CROPS: dict[str, Any] = {"sample_unit": "object", "train_transforms": {"size": 32}}
DETECTOR = partial(fcos_small, **SMALL, min_size=48, max_size=48, score_thresh=0.0, detections_per_img=60)
CLASSIFIER = partial(ClassificationTask, partial(classifier_small, **SMALL))

pytestmark = [pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")]


class UserModule(LightningModule):
    """A user's module with metrics of torchmetrics, one of them with lists for states, and a mean of losses."""

    def __init__(self, *, class_names: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 32 * 32, len(class_names))
        self.ranking = WithoutDuplicates(MulticlassAUROC(num_classes=len(class_names)))
        self.loss = WithoutDuplicates(MeanMetric())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.layer(batch.images.flatten(1))
        marks = batch_duplicates(batch)
        self.ranking.update(logits.softmax(dim=1), batch.labels, is_duplicate=marks)
        losses = functional.cross_entropy(logits, batch.labels, reduction="none")
        self.loss.update(losses, is_duplicate=marks)
        self.log_dict({"test/auroc": self.ranking, "test/loss": self.loss})

    def test_report(self) -> list[Any]:
        return []


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "detection": (partial(DetectionTask, DETECTOR), DetectionDataModule, {}),
    "landmarks": (partial(LandmarkTask, partial(heatmaps_small, **SMALL)), LandmarkDataModule, CROPS),
    "classification": (CLASSIFIER, ClassificationDataModule, CROPS),
    "several tasks": (partial(MultiTask, DETECTOR), MultiTaskDataModule, {"attributes": ["finish"]}),
    "user's module": (UserModule, ClassificationDataModule, CROPS),
}
COUNTED = ("detection", "classification")  # the metrics of the other cases are of the same kinds


class WorstSamples(EvaluationCurves):
    """Records curves and draws the worst samples, without the picture of the curves, which takes a second."""

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        pass


def curve_figures(curves: Any) -> dict[str, float]:
    """Return a number for each cell of a confusion matrix, each class's curve and the curve of errors."""
    cells = {} if curves.confusion is None else dict(np.ndenumerate(curves.confusion.counts))
    figures = {f"{curves.label} confusion {cell}": float(count) for cell, count in cells.items()}
    for kind in curves.precision_recall:
        sums = np.nansum(kind.precision * kind.recall, axis=1)
        columns = zip(curves.class_names, sums, kind.average_precision, strict=True)
        for name, total, average_precision in columns:
            figures |= {
                f"{curves.label} {kind.name} {name}": total,
                f"{curves.label} {kind.name} AP {name}": average_precision,
            }
    if curves.errors is not None:
        figures |= {f"shares {i}": share for i, share in enumerate(curves.errors.shares)}
        figures |= {f"point {i}": error for i, error in enumerate(curves.errors.point_errors)}
    return figures


def evaluate(case: str, source: ShapesSource, folder: Path) -> dict[str, float]:
    """Test a case, and return its figures: as logged, as in the report, of its curves and its worst samples."""
    task, datamodule, data_settings = CASES[case]
    data = datamodule(source, batch_size=BATCH_SIZE, num_workers=0, seed=1, **data_settings)
    data.prepare_data()
    torch.manual_seed(0)
    names = {"class_names": data.class_names} if task is UserModule else model_kwargs_from_datamodule(data)
    model = task(**names)
    for name, parameter in model.named_parameters():
        if name.endswith("bbox_reg.bias"):  # untrained boxes as large as objects, so that some match
            torch.nn.init.constant_(parameter, 1.2)
    worst = WorstSamples(num_worst=2, min_score=0.0, folder=folder)
    running = trainer(callbacks=[worst])
    running.test(model, datamodule=data, verbose=False)
    figures = {name: float(value) for name, value in running.callback_metrics.items()}
    figures |= {f"worst {place}": float(sample.image_id) for place, sample in enumerate(worst.worst)}
    for curves in getattr(model, "test_curves", []):
        figures |= curve_figures(curves)
    for title, section in model.test_report():
        figures |= {f"{title}: {name}": float(value) for name, value in section.items()}
    return figures


def evaluate_on_rank(folder: Path, source: ShapesSource) -> None:
    """Evaluate every case as one rank of a group, some also with duplicates counted, and write the results."""
    rank = dist.get_rank()
    results: dict[str, Any] = {case: evaluate(case, source, folder) for case in CASES}
    results["rankings"] = {kind: ranking(kind, is_duplicate=rank > 0) for kind in RANKINGS}
    update = WithoutDuplicates.update

    def count_all(metric: Any, *args: Any, is_duplicate: Any, **kwargs: Any) -> None:
        update(metric, *args, is_duplicate=torch.zeros_like(is_duplicate), **kwargs)

    WithoutDuplicates.update = count_all  # type: ignore[method-assign, assignment]
    counted = {case: evaluate(case, source, folder) for case in COUNTED}
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps((results, counted)))
    dist.barrier()


RANKINGS: dict[str, Any] = {
    "curve": MulticlassAUROC(num_classes=2),  # its lists are concatenated
    "retrieval": RetrievalMAP(),  # its lists are not: one entry per update
}


def ranking(kind: str, *, is_duplicate: bool) -> float:
    """Return the score of two batches, on a rank that may have duplicates alone."""
    metric = WithoutDuplicates(RANKINGS[kind].clone())
    labels = torch.tensor([0, 1, 1, 1, 0, 0])
    scores = torch.tensor([0.1, 0.9, 0.3, 0.4, 0.8, 0.7])
    for _ in range(2):
        marks = torch.full((6,), is_duplicate)
        if kind == "curve":
            metric.update(torch.stack([1 - scores, scores], dim=1), labels, is_duplicate=marks)
        else:
            queries = torch.tensor([0, 0, 0, 1, 1, 1])
            metric.update(scores, labels, indexes=queries, is_duplicate=marks)
    return float(metric.compute())


def results_of_ranks(world_size: int, folder: Path, source: ShapesSource) -> list[Any]:
    on_ranks(world_size, folder, evaluate_on_rank, folder, source)
    return [pickle.loads((folder / f"{rank}.pkl").read_bytes()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ShapesSource:
    source = ShapesSource(
        num_images=NUM_IMAGES,
        image_size=48,
        objects_per_image=(1, 3),
        class_shares=(0.2, 0.4, 0.4),
        cache_dir=str(tmp_path_factory.mktemp("shapes")),
        progress=False,
    )
    source.prepare()
    return source


@pytest.fixture(scope="module")
def single(source: ShapesSource, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("single")
    return {case: evaluate(case, source, folder) for case in CASES}


@pytest.fixture(scope="module")
def two_ranks(source: ShapesSource, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return results_of_ranks(2, tmp_path_factory.mktemp("ranks"), source)


def check(case: str, single: dict[str, Any], ranks: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Check that each rank has the figures of the single process, and would not have them with duplicates counted."""
    for figures, counted in ranks:
        assert figures[case] == pytest.approx(single[case], rel=1e-5, abs=1e-6, nan_ok=True)
        if case in COUNTED:
            assert counted[case] != pytest.approx(single[case], rel=1e-3, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_have_the_scores_of_one_process(case: str, single: dict[str, Any], two_ranks: list[Any]) -> None:
    check(case, single, two_ranks)


@pytest.mark.parametrize("kind", RANKINGS)
def test_rank_with_duplicates_alone_has_the_score_of_the_other_rank(kind: str, two_ranks: list[Any]) -> None:
    expected = ranking(kind, is_duplicate=False)
    assert 0 < expected < 1
    assert [rank[0]["rankings"][kind] for rank in two_ranks] == [pytest.approx(expected)] * 2


@pytest.mark.soak
def test_three_ranks_have_the_scores_of_one_process(
    single: dict[str, Any], source: ShapesSource, tmp_path: Path
) -> None:
    ranks = results_of_ranks(3, tmp_path, source)
    for case in CASES:
        check(case, single, ranks)
