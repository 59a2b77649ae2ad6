"""The callback and the data modules: bad samples of all ranks, counted, logged and written once."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import CombinedLoader

from lit_loader import (
    ClassificationDataModule,
    DataLoader,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.callbacks import BadSampleReport
from lit_loader.datasets import ShapesSource
from lit_loader.errors import TooManyBadSamplesError
from tests.support.extras import needs
from tests.support.faulty_set import FaultyFiles

pytestmark = [
    pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:predict returned None"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]
BAD = {3: ValueError("three"), 4: OSError(5, "broken", "/x/four.jpg"), 17: KeyError("k")}


class Counting(LightningModule):
    """Counts the batches and notes the indices that it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        first = batch if "index" in batch else next(iter(batch.values()))
        self.seen.append(first["index"].tolist())
        return self.weight.sum() * 0

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch["index"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_of(*callbacks, **arguments):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"max_epochs": 1, "devices": 1, **arguments},
    )


def loader_of(bad=BAD, length=24, **arguments):
    arguments = {"seed": 3, "on_bad_sample": "skip", "batch_size": 4, **arguments}
    return DataLoader(FaultyFiles(bad, length), **arguments)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", [None, 3])
def test_each_epoch_is_counted_logged_and_written(tmp_path, seed, caplog):
    caplog.set_level(logging.INFO, "lightning.pytorch")
    logging.getLogger("lightning.pytorch").addHandler(caplog.handler)
    report = BadSampleReport(tmp_path / "bad.jsonl")
    trainer = trainer_of(report, max_epochs=2)
    trainer.fit(Counting(), loader_of(seed=seed), [loader_of({}, seed=seed), loader_of({1: KeyError(1)}, seed=seed)])
    logging.getLogger("lightning.pytorch").removeHandler(caplog.handler)
    assert report.num_bad_samples == {"train": 6, "val": 2}
    assert [record.index for record in report.records["train"]] == [3, 4, 17]
    assert {record.epoch for record in report.records["train"]} == {1}
    assert trainer.callback_metrics["data/bad_samples"] == 3
    assert trainer.callback_metrics["data/val_bad_samples"] == 1
    lines = lines_of(tmp_path / "bad.jsonl")
    assert [(line["stage"], line["dataloader_idx"], line["index"]) for line in lines[-4:]] == [
        ("val", 1, 1),
        ("train", 0, 3),
        ("train", 0, 4),
        ("train", 0, 17),
    ]
    assert [line["stage"] for line in lines].count("val") == 2  # the sanity check is left out
    assert "train, epoch 1, all ranks: 3 bad samples (0 replaced): sample 3, file /pictures/3.jpg" in caplog.text


def test_bad_samples_of_tests_and_predictions_are_counted(tmp_path):
    report = BadSampleReport()
    trainer = trainer_of(report)
    trainer.test(Counting(), loader_of(), verbose=False)
    assert report.num_bad_samples == {"test": 3}
    assert trainer.callback_metrics["data/test_bad_samples"] == 3
    trainer.predict(Counting(), loader_of())
    assert report.num_bad_samples == {"test": 3, "predict": 3}


def test_shortened_epoch_counts_delivered_batches():
    report = BadSampleReport()
    trainer_of(report, limit_train_batches=2, max_epochs=3).fit(Counting(), loader_of())
    assert report.num_bad_samples == {"train": 6}


def test_validation_on_the_training_loader_counts_each_pass_once():
    report = BadSampleReport()
    loader = loader_of()
    trainer_of(report, val_check_interval=2, num_sanity_val_steps=0).fit(Counting(), loader, loader)
    assert report.num_bad_samples == {"train": 3, "val": 9}


def test_each_pass_of_combined_loaders_counts():
    report = BadSampleReport()
    short = loader_of({1: ValueError(1)}, 8)
    long = loader_of()
    loaders = CombinedLoader({"long": long, "short": short, "torchs": [1] * 6}, "max_size_cycle")
    trainer_of(report).fit(Counting(), loaders)
    assert report.num_bad_samples == {"train": 3 + 3}


def test_other_loaders_count_no_bad_samples():
    report = BadSampleReport()
    trainer = trainer_of(report)
    trainer.fit(Counting(), torch.utils.data.DataLoader(FaultyFiles({}), batch_size=4))
    assert report.num_bad_samples == {"train": 0}
    assert trainer.callback_metrics["data/bad_samples"] == 0
    trainer_of(report).fit(Counting(), loader_of({}, on_bad_sample="raise"))
    assert report.num_bad_samples == {"train": 0}


def test_training_continues_if_the_report_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    report = BadSampleReport(tmp_path / "file" / "bad.jsonl")
    with pytest.warns(UserWarning, match="bad samples of train could not be written to"):
        trainer_of(report).fit(Counting(), loader_of())
    assert report.num_bad_samples == {"train": 3}


def test_report_can_be_sent_to_spawned_ranks():
    report = BadSampleReport("x.jsonl")
    trainer_of(report).predict(Counting(), loader_of({}))
    assert pickle.loads(pickle.dumps(report)).num_bad_samples == {"predict": 0}


class Writer(BasePredictionWriter):
    def __init__(self):
        super().__init__("batch")
        self.pairs = []

    def write_on_batch_end(self, trainer, module, prediction, batch_indices, *_):
        self.pairs.append((prediction, batch_indices))


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["inline", "processes"])
def test_prediction_indices_match_the_delivered_samples(policy, workers):
    writer = Writer()
    loader = loader_of(on_bad_sample=policy, **workers)
    trainer_of(writer).predict(Counting(), loader, return_predictions=False)
    assert len(writer.pairs) == 6
    assert all(prediction == indices for prediction, indices in writer.pairs)
    assert {3, 4, 17}.isdisjoint(index for prediction, _ in writer.pairs for index in prediction)


class Written(Counting):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self):
        (self.folder / f"seen-{self.global_rank}.json").write_text(json.dumps(self.seen))


class Told(BadSampleReport):
    """Writes the counts of each rank to a file."""

    def on_train_end(self, trainer, pl_module):
        counts = [self.num_bad_samples["train"], float(trainer.callback_metrics["data/bad_samples"])]
        self.path.with_suffix(f".{trainer.global_rank}").write_text(json.dumps(counts))


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_ranks_stay_in_step_if_one_has_bad_samples(tmp_path, policy):
    """Ranks take turns of four: 0-3 is the first one's, 4-7 the second's."""
    bad = {4: ValueError("four"), 6: ValueError("six"), 13: ValueError("thirteen")}
    path = tmp_path / "bad.jsonl"
    trainer = trainer_of(Told(path), strategy="ddp_fork", devices=2)
    trainer.fit(Written(tmp_path), loader_of(bad, on_bad_sample=policy, shuffle=False))
    first, second = (json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2))
    assert first == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    assert len(second) == len(first)
    assert set(bad).isdisjoint(index for batch in second for index in batch)
    assert [len(batch) for batch in second] == ([2, 3, 4] if policy == "skip" else [4, 4, 4])
    lines = lines_of(path)
    assert {line["rank"] for line in lines} == {1}
    assert set(bad) <= {line["index"] for line in lines}
    assert [json.loads(path.with_suffix(f".{rank}").read_text()) for rank in range(2)] == [[len(lines)] * 2] * 2


# -- data modules -----------------------------------------------------------------------------------------


@pytest.fixture
def shapes(tmp_path):
    return ShapesSource(
        num_images={"train": 20, "val": 4, "test": 4},
        image_size=48,
        class_shares=(0.7, 0.2, 0.1),
        cache_dir=str(tmp_path),
        progress=False,
    )


@pytest.mark.parametrize(
    "kind", [DetectionDataModule, LandmarkDataModule, ClassificationDataModule, MultiTaskDataModule]
)
@pytest.mark.parametrize(("policy", "num_workers"), [("skip", 0), ("substitute", 2)])
def test_data_module_passes_the_policy_and_records_name_the_file(shapes, kind, policy, num_workers):
    settings = {"on_bad_sample": policy, "max_bad_samples": 90, "num_workers": num_workers}
    if kind is ClassificationDataModule:
        settings["sample_unit"] = "object"
    datamodule = kind(shapes, batch_size=4, seed=1, train_transforms={"size": 32}, **settings)
    datamodule.prepare_data()
    datamodule.setup("fit")
    with datamodule.train_dataloader() as loader:
        assert (loader.on_bad_sample, loader.max_bad_samples) == (policy, 90)
        path = loader.dataset.sample_path(1)
        assert path == loader.dataset.sample_path(1 - len(loader.dataset))
        path.write_bytes(b"no image")
        assert len(list(loader)) == len(loader)
        assert {(record.file, record.error) for record in loader.bad_samples} == {(str(path), "ImageError")}
        assert 1 in {record.index for record in loader.bad_samples}
        with pytest.raises(IndexError):
            loader.dataset.sample_path(len(loader.dataset))
    assert datamodule.val_dataloader().on_bad_sample == policy
    datamodule.teardown()


def test_data_module_refuses_invalid_policies(shapes):
    with pytest.raises(ValueError, match="on_bad_sample='ignore' of type str should be 'raise' or 'skip'"):
        DetectionDataModule(shapes, on_bad_sample="ignore")
    with pytest.raises(ValueError, match="max_bad_samples=3 would have no effect"):
        DetectionDataModule(shapes, max_bad_samples=3)


def test_too_many_bad_samples_end_a_fit():
    with pytest.raises(TooManyBadSamplesError, match="exceed max_bad_samples=2"):
        trainer_of().fit(Counting(), loader_of(max_bad_samples=2))


@needs("hydra")
@pytest.mark.parametrize("kind", ["detection", "landmarks", "classification", "multi_task"])
def test_config_keys_reach_the_data_module(kind):
    from lit_loader.app.composition import build_datamodule, compose_config

    words = ["dataset=shapes", f"datamodule={kind}"]
    words += ["datamodule.on_bad_sample=skip", "datamodule.max_bad_samples=7"]
    datamodule = build_datamodule(compose_config(overrides=words))
    assert (datamodule.on_bad_sample, datamodule.max_bad_samples) == ("skip", 7)
