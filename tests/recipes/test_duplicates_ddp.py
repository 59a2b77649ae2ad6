"""Guarantee: a test on several ranks finds what one process finds, on a set whose size does not divide.

One process group of real ranks serves every case. Some are tested a second time with duplicates counted, which shows
that the figures would tell.
"""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAUROC
from torchmetrics.retrieval import RetrievalMAP

from lit_loader import ClassificationDataModule, DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
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

NUM_IMAGES = {"train": 6, "val": 6, "test": 17}
BATCH_SIZE = 4
SMALL: dict[str, Any] = {"channels": 16, "head_channels": 32}
CROPS: dict[str, Any] = {"sample_unit": "object", "train_transforms": {"size": 32}}
DETECTOR = partial(fcos_small, **SMALL, min_size=48, max_size=48, score_thresh=0.0, detections_per_img=60)

pytestmark = [pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")]


class Own(LightningModule):
    """What a user writes: metrics of torchmetrics, one of them with lists for states, and a mean of losses."""

    def __init__(self, *, class_names: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 32 * 32, len(class_names))
        self.ranking = WithoutDuplicates(MulticlassAUROC(num_classes=len(class_names)))
        self.loss = WithoutDuplicates(MeanMetric())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        logits, marks = self.predict_step(batch, batch_idx), batch_duplicates(batch)
        self.ranking.update(logits.softmax(dim=1), batch.labels, is_duplicate=marks)
        losses = functional.cross_entropy(logits, batch.labels, reduction="none")
        self.loss.update(losses, is_duplicate=marks)
        self.log_dict({"test/auroc": self.ranking, "test/loss": self.loss})

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits: Tensor = self.layer(batch.images.flatten(1))
        return logits

    def test_report(self) -> list[Any]:
        return []


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "detection": (partial(DetectionTask, DETECTOR), DetectionDataModule, {}),
    "landmarks": (partial(LandmarkTask, partial(heatmaps_small, **SMALL)), LandmarkDataModule, CROPS),
    "classification": (
        partial(ClassificationTask, partial(classifier_small, **SMALL)),
        ClassificationDataModule,
        CROPS,
    ),
    "several tasks": (partial(MultiTask, DETECTOR), MultiTaskDataModule, {"attributes": ["finish"]}),
    "a user's own": (Own, ClassificationDataModule, CROPS),
}
TOLD = ("detection", "classification")  # the others' metrics are of the same kinds


class Predictions(Callback):
    """Keeps what is predicted of each sample that is no duplicate, by its id."""

    def __init__(self) -> None:
        self.found: dict[int, list[float]] = {}
        self.num_duplicates = 0

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        predicted = module.predict_step(batch, batch_idx)
        marks = batch_duplicates(batch).tolist()
        self.num_duplicates += sum(marks)
        for row, (image_id, mark) in enumerate(zip(ids_of(batch), marks, strict=True)):
            if not mark:
                assert image_id not in self.found
                self.found[image_id] = numbers_of(predicted, row)


def ids_of(batch: Any) -> list[int]:
    ids: Any = batch.image_ids.tolist() if hasattr(batch, "image_ids") else [t["image_id"] for t in batch[1]]
    return list(ids)


def numbers_of(predicted: Any, row: int) -> list[float]:
    if isinstance(predicted, Tensor):
        parts = [predicted[row]]
    elif isinstance(predicted, dict):
        parts = [predicted[name][row] for name in sorted(predicted)]
    else:
        parts = [predicted[row][name] for name in sorted(predicted[row])]
    return [number for part in parts for number in part.double().flatten().tolist()]


def evaluate(case: str, source: ShapesSource, *, devices: int = 1) -> dict[str, Any]:
    """Test a case; its figures, as they are logged and as the report has them, and its predictions."""
    task, datamodule, data_settings = CASES[case]
    data = datamodule(source, batch_size=BATCH_SIZE, num_workers=0, seed=1, **data_settings)
    data.prepare_data()
    torch.manual_seed(0)
    names = {"class_names": data.class_names} if task is Own else model_kwargs_from_datamodule(data)
    model = task(**names)
    for name, parameter in model.named_parameters():
        if name.endswith("bbox_reg.bias"):  # untrained boxes as large as objects are: some hit
            torch.nn.init.constant_(parameter, 1.2)
    predictions = Predictions()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if devices > 1 else "auto",
        devices=devices,
        callbacks=[predictions],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.test(model, datamodule=data, verbose=False)
    figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for title, section in model.test_report():
        figures |= {f"{title}: {name}": float(value) for name, value in section.items()}
    return {"figures": figures, "predictions": predictions.found, "duplicates": predictions.num_duplicates}


def on_a_rank(rank: int, world_size: int, folder: Path, source: ShapesSource) -> None:
    """Run every case as one rank of a group: with the wrapper, and with duplicates counted."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(minutes=5))
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world_size)}
    found: dict[str, Any] = {case: evaluate(case, source, devices=world_size) for case in CASES}
    found["nothing of its own"] = {kind: ranking(kind, is_duplicate=rank > 0) for kind in RANKINGS}
    dropping = WithoutDuplicates.update

    def count_all(metric: Any, *args: Any, is_duplicate: Any, **kwargs: Any) -> None:
        dropping(metric, *args, is_duplicate=torch.zeros_like(is_duplicate), **kwargs)

    WithoutDuplicates.update = count_all  # type: ignore[method-assign, assignment]
    counted = {case: evaluate(case, source, devices=world_size) for case in TOLD}
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps((found, counted)))
    dist.barrier()
    dist.destroy_process_group()


RANKINGS: dict[str, Any] = {
    "curve": MulticlassAUROC(num_classes=2),  # lists that are concatenated
    "retrieval": RetrievalMAP(),  # lists that are not, an entry an update
}


def ranking(kind: str, *, is_duplicate: bool) -> float:
    """Return what a metric finds in two batches, on a rank that may have nothing but duplicates."""
    metric = WithoutDuplicates(RANKINGS[kind].clone())
    right = torch.tensor([0, 1, 1, 1, 0, 0])
    scores = torch.tensor([0.1, 0.9, 0.3, 0.4, 0.8, 0.7])
    for _ in range(2):
        marks = torch.full((6,), is_duplicate)
        if kind == "curve":
            metric.update(torch.stack([1 - scores, scores], dim=1), right, is_duplicate=marks)
        else:
            queries = torch.tensor([0, 0, 0, 1, 1, 1])
            metric.update(scores, right, indexes=queries, is_duplicate=marks)
    return float(metric.compute())


def of_ranks(world_size: int, folder: Path, source: ShapesSource) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    torch.multiprocessing.start_processes(
        on_a_rank, (world_size, folder, source), nprocs=world_size, start_method="fork"
    )
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
def alone(source: ShapesSource) -> dict[str, Any]:
    return {case: evaluate(case, source) for case in CASES}


@pytest.fixture(scope="module")
def two_ranks(source: ShapesSource, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return of_ranks(2, tmp_path_factory.mktemp("ranks"), source)


def check(case: str, alone: dict[str, Any], ranks: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Each rank has the figures of the process alone; the predictions are those of each image, once."""
    exact = [rank[0][case] for rank in ranks]
    assert alone[case]["duplicates"] == 0 < sum(rank["duplicates"] for rank in exact)
    predictions: dict[int, list[float]] = {}
    for rank in exact:
        assert not predictions.keys() & rank["predictions"].keys()
        predictions |= rank["predictions"]
    assert predictions.keys() == alone[case]["predictions"].keys()
    for image_id, numbers in alone[case]["predictions"].items():  # other batches, so sums in another order
        assert predictions[image_id] == pytest.approx(numbers, rel=1e-4, abs=1e-4)
    for rank in exact:
        assert rank["figures"] == pytest.approx(alone[case]["figures"], rel=1e-5, abs=1e-6, nan_ok=True)
    for counted in (rank[1][case] for rank in ranks if case in TOLD):  # so the figures above would tell
        assert counted["figures"] != pytest.approx(alone[case]["figures"], rel=1e-3, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_find_what_one_process_finds(case: str, alone: dict[str, Any], two_ranks: list[Any]) -> None:
    check(case, alone, two_ranks)


@pytest.mark.parametrize("kind", RANKINGS)
def test_a_rank_that_has_duplicates_alone_agrees_with_the_others(kind: str, two_ranks: list[Any]) -> None:
    wanted = ranking(kind, is_duplicate=False)
    assert 0 < wanted < 1
    assert [rank[0]["nothing of its own"][kind] for rank in two_ranks] == [pytest.approx(wanted)] * 2


@pytest.mark.soak
def test_three_ranks_find_what_one_process_finds(alone: dict[str, Any], source: ShapesSource, tmp_path: Path) -> None:
    ranks = of_ranks(3, tmp_path, source)
    for case in CASES:
        check(case, alone, ranks)
