"""Scores of several validation or test sets: together, and of each set as if it were evaluated alone."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lit_loader.recipes.set_scores import set_names
from tests.support.drawn_batches import classification_batch, detection_batch
from tests.support.lightning_ranks import on_ranks
from tests.support.lightning_ranks import trainer as rank_trainer
from tests.support.small_tasks import TASKS, small_task
from tests.support.toy_task import ToyTask, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def as_loader(batches: list[Any]) -> Any:
    return DataLoader(batches, batch_size=None, num_workers=0)


def two_sets(kind: str) -> tuple[list[Any], list[Any]]:
    make_batch = TASKS[kind][-1]
    return [make_batch(4, seed=1), make_batch(3, seed=2)], [make_batch(5, seed=3)]


def scoring_task(kind: str) -> Any:
    """Return a task that finds some of the objects, so that its scores differ from set to set."""
    model = small_task(kind, {"score_thresh": 0.0} if "task" in kind or kind == "detection" else None)
    for name, parameter in model.named_parameters():
        if name.endswith("bbox_reg.bias"):  # boxes as large as objects
            torch.nn.init.constant_(parameter, 2.0)
    return model


def scores_of_test(model: Any, folder: Path, loaders: Any) -> dict[str, float]:
    running = trainer(folder)
    running.test(model, loaders, verbose=False)
    return {name.removeprefix("test/"): float(value) for name, value in running.callback_metrics.items()}


@pytest.mark.parametrize("kind", TASKS)
def test_each_set_has_the_scores_of_an_evaluation_of_it_alone(tmp_path: Path, kind: str) -> None:
    first, second = two_sets(kind)
    model = scoring_task(kind)
    scores = scores_of_test(model, tmp_path, [as_loader(first), as_loader(second)])
    scores_again = scores_of_test(model, tmp_path, [as_loader(first), as_loader(second)])
    together = scores_of_test(model, tmp_path, as_loader([*first, *second]))
    assert model.test_set_scores == {}
    parts = [scores_of_test(model, tmp_path, as_loader(batches)) for batches in (first, second)]
    expected = together | {
        f"{number}/{name}": value for number, part in enumerate(parts) for name, value in part.items()
    }
    assert scores == pytest.approx(expected, nan_ok=True)
    assert scores_again == pytest.approx(scores, nan_ok=True)
    assert any(parts[0][name] != parts[1][name] for name in parts[0])


def test_a_single_set_has_no_metrics_of_its_own(tmp_path: Path) -> None:
    model = ToyTask()
    trainer(tmp_path, max_epochs=1).fit(model, loader(), loader(2))
    assert len(model.val_set_metrics.updates) == 0
    assert model.val_set_scores == {}


def test_step_that_updates_the_common_metric_only_gives_no_scores_of_sets(tmp_path: Path) -> None:
    class Common(ToyTask):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.collect(batch, self.test_metric)

    model = Common()
    assert set(scores_of_test(model, tmp_path, [loader(2), loader(1)])) == {"accuracy", "macro_f1"}
    assert model.test_set_scores == {}


@pytest.mark.filterwarnings("ignore:Total length of .* across ranks is zero")
def test_set_without_batches_has_no_scores(tmp_path: Path) -> None:
    model = ToyTask()
    scores = scores_of_test(model, tmp_path, [loader(2), as_loader([])])
    assert list(model.test_set_scores) == ["0"]
    assert scores["0/accuracy"] == scores["accuracy"]


class NamedSets(LightningDataModule):
    """Two validation and two test sets with names."""

    def set_names(self, stage: str) -> list[str]:
        return {"val": ["day", "night/rain"], "test": ["day", "day"]}[stage]

    def train_dataloader(self) -> Any:
        return loader(2)

    def val_dataloader(self) -> Any:
        return [loader(3), loader(1)]

    test_dataloader = val_dataloader


def test_names_of_the_data_module_are_names_of_metrics_that_a_checkpoint_can_monitor(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="val/night_rain/accuracy", mode="max")
    model = ToyTask()
    running = trainer(tmp_path, enable_checkpointing=True, callbacks=[best], num_sanity_val_steps=1)
    running.fit(model, datamodule=NamedSets())
    metrics = running.callback_metrics
    assert {"val/accuracy", "val/day/accuracy", "val/night_rain/accuracy"} <= set(metrics)
    assert best.best_model_score is not None
    assert set(model.val_set_scores) == {"day", "night_rain"}
    assert "val/day/accuracy" not in running.progress_bar_metrics
    running.test(model, datamodule=NamedSets(), verbose=False)
    sections = dict(model.test_report())
    scores = model.test_set_scores["day_1"]
    assert sections["set day_1"] == {"accuracy": scores.accuracy, "macro-F1": scores.macro_f1}
    assert list(sections) == ["test", "recall", "F1", "set day", "set day_1"]


@pytest.mark.parametrize(
    ("raw_names", "names"),
    [
        (["", ""], ["0", "1"]),
        (["a b/c", "a_b_c", "a:b:c"], ["a_b_c", "a_b_c_1", "a_b_c_2"]),
        (["..", "Straße.1-x"], ["0", "Straße.1-x"]),
        (["only one"], ["0", "1"]),
        (["1", ""], ["1", "1_1"]),
    ],
)
def test_names_are_different_and_fit_for_files(raw_names: list[str], names: list[str]) -> None:
    class Named:
        def set_names(self, stage: str) -> list[str]:
            return raw_names

    assert set_names(Named(), "val", len(names)) == names


def test_data_module_without_names_and_no_data_module_give_numbers() -> None:
    assert set_names(LightningDataModule(), "test", 3) == ["0", "1", "2"]
    assert set_names(None, "val", 2) == ["0", "1"]


def test_metrics_of_sets_are_in_no_checkpoint_and_do_not_prevent_copies(tmp_path: Path) -> None:
    model = ToyTask()
    names = set(model.state_dict())
    running = trainer(tmp_path, max_epochs=1)
    running.fit(model, loader(), [loader(2), loader(1)])
    assert len(model.val_set_metrics.updates) == 2
    assert set(model.state_dict()) == names
    copied = copy.deepcopy(model.val_set_metrics)
    assert len(pickle.loads(pickle.dumps(copied)).updates) == 2


# -- ranks -------------------------------------------------------------------------------------------------

# By rank and set: seeds of batches. A rank may get no batch of a set, and batches may differ in size.
SEEDS = (((1, 2, 3), ()), ((4,), (5, 6)))


def rank_batches(kind: str, rank: int) -> list[list[Any]]:
    make_batch = detection_batch if kind == "detection" else classification_batch
    return [[make_batch(2 + seed % 2, seed=seed) for seed in seeds] for seeds in SEEDS[rank]]


def evaluate_on_rank(folder: Path) -> None:
    """Test two sets as one of two ranks, which have different numbers of batches, and write the scores."""
    rank = dist.get_rank()
    scores = {}
    for kind in ("detection", "classification"):
        running = rank_trainer(use_distributed_sampler=False)
        model = scoring_task(kind)
        # An iterable without a length, since Lightning skips a loader that has no batch.
        running.test(model, [as_loader(Batches(batches)) for batches in rank_batches(kind, rank)], verbose=False)
        scores[kind] = {name: float(value) for name, value in running.callback_metrics.items()}
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(scores))
    dist.barrier()


class Batches(torch.utils.data.IterableDataset[Any]):
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


@pytest.mark.filterwarnings("ignore:.*Using `DistributedSampler`", "ignore:.*Total length of .* across ranks is zero")
def test_ranks_with_different_numbers_of_batches_have_the_scores_of_one_process(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, evaluate_on_rank, tmp_path)
    for kind in ("detection", "classification"):
        sets = [
            [*first, *second] for first, second in zip(*(rank_batches(kind, rank) for rank in range(2)), strict=True)
        ]
        model = scoring_task(kind)
        expected = scores_of_test(model, tmp_path, list(map(as_loader, sets)))
        assert (
            expected["0/" + model.monitor.removeprefix("val/")] != expected["1/" + model.monitor.removeprefix("val/")]
        )
        for rank in range(2):
            scores = pickle.loads((tmp_path / f"{rank}.pkl").read_bytes())[kind]
            assert scores == pytest.approx({f"test/{name}": value for name, value in expected.items()}, nan_ok=True)
