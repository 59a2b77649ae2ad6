"""A mix of sources, one without labels of a class: training and the scores of each source, also on two ranks."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lit_loader import DetectionDataModule, MultiTaskDataModule
from lit_loader.datasets import MixedSource, ShapesSource
from lit_loader.recipes import model_kwargs_from_datamodule
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.small_tasks import small_task

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "detection": (DetectionDataModule, {}),
    "multi_task": (MultiTaskDataModule, {"attributes": ["finish"]}),
}


def mix(folder: Path) -> MixedSource:
    """Return two sources; ``street`` does not label stars. The last batch of each is partial."""
    sources = {
        name: ShapesSource(
            num_images={"train": 6, "val": count, "test": count},
            image_size=48,
            seed=count,
            cache_dir=str(folder),
            progress=False,
        )
        for name, count in {"plant": 5, "street": 7}.items()
    }
    return MixedSource(sources, classes={"street": {"star": None}}, missing="unlabelled", cache_dir=str(folder))


def scored(folder: Path, kind: str) -> dict[str, float]:
    """Test an untrained model that detects some objects, and return its scores."""
    module, settings = KINDS[kind]
    data = module(mix(folder), batch_size=2, num_workers=0, seed=0, **settings)
    data.prepare_data()
    model = small_task(kind, {"score_thresh": 0.0}, **model_kwargs_from_datamodule(data))
    for name, parameter in model.named_parameters():
        if name.endswith("bbox_reg.bias"):  # boxes as large as objects
            torch.nn.init.constant_(parameter, 1.2)
    running = trainer()
    running.test(model, datamodule=data, verbose=False)
    return {name: float(value) for name, value in running.callback_metrics.items()}


def fitted(folder: Path) -> dict[str, Any]:
    """Train, and return scores of the validation and the weights of the classes' scores."""
    data = DetectionDataModule(mix(folder), batch_size=2, num_workers=0, seed=0)
    data.prepare_data()
    model = small_task("detection", **model_kwargs_from_datamodule(data))
    running = trainer(max_epochs=1, num_sanity_val_steps=0)
    running.fit(model, datamodule=data)
    scores = {name: float(value) for name, value in running.callback_metrics.items()}
    return {"scores": scores, "weights": model.model.head.classification_head.cls_logits.weight.detach()}


def evaluate_on_rank(folder: Path) -> None:
    results = {"fit": fitted(folder), **{kind: scored(folder, kind) for kind in KINDS}}
    (folder / f"{dist.get_rank()}.pkl").write_bytes(pickle.dumps(results))
    dist.barrier()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mix")
    mix(path).prepare()
    return path


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> list[dict[str, Any]]:
    on_ranks(2, folder, evaluate_on_rank, folder)
    return [pickle.loads((folder / f"{rank}.pkl").read_bytes()) for rank in range(2)]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_score_each_source_as_one_process_does(
    folder: Path, kind: str, two_ranks: list[dict[str, Any]]
) -> None:
    expected = scored(folder, kind)
    assert {"test/map", "test/plant/map", "test/street/map"} <= set(expected)
    assert expected["test/plant/map_50"] != expected["test/street/map_50"]
    for results in two_ranks:
        assert results[kind] == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)


def test_ranks_train_one_model_on_batches_with_and_without_unlabelled_classes(two_ranks: list[dict[str, Any]]) -> None:
    first, second = (results["fit"] for results in two_ranks)
    assert torch.equal(first["weights"], second["weights"])
    assert math.isfinite(first["scores"]["train/loss"])
    assert {"val/map_50", "val/plant/map_50", "val/street/map_50"} <= set(first["scores"])
