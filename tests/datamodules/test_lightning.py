"""The data module under Lightning: every stage runs, workers end, its tuner may scale the batch."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader import DataLoader, DetectionDataModule
from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules import ClassBalancedSamplerConfig, WeightedSamplerConfig
from lit_loader.datasets import TableSource

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


class Counting(LightningModule):
    """A model that looks at its batches."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[str, list[int]] = {"train": [], "val": [], "test": [], "predict": []}
        self.scales: list[float] = []

    def _see(self, stage, batch):
        self.seen[stage].extend(int(target["image_id"]) for target in batch[1])

    def training_step(self, batch, batch_idx):
        self._see("train", batch)
        self.scales.append(float(batch[0][0].max()))
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        self._see("val", batch)

    def test_step(self, batch, batch_idx):
        self._see("test", batch)

    def predict_step(self, batch, batch_idx):
        self._see("predict", batch)
        return len(batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def processes():
    """Return this process's children but for those that multiprocessing keeps for good."""
    permanent = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
    pids = set()
    for child in psutil.Process().children():
        try:
            if not any(name in " ".join(child.cmdline()) for name in permanent):
                pids.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return pids


def trainer(**arguments):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, **arguments},
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning_fits_validates_tests_and_predicts(shapes, num_workers):
    datamodule = DetectionDataModule(
        shapes,
        batch_size=8,
        num_workers=num_workers,
        batch_transforms=lambda batch: ([image * 10 for image in batch[0]], *batch[1:]),
    )
    model = Counting()
    runner = trainer(num_sanity_val_steps=0, log_every_n_steps=1)
    processes_before = processes()
    runner.fit(model, datamodule=datamodule)
    assert processes() == processes_before
    assert sorted(model.seen["train"]) == sorted(2 * list(range(60)))
    assert model.seen["train"][:60] != model.seen["train"][60:]
    assert model.seen["val"] == 2 * list(range(20))
    assert max(model.scales) > 2  # batch_transforms ran on training batches
    runner.test(model, datamodule=datamodule, verbose=False)
    assert processes() == processes_before
    runner.predict(model, datamodule=datamodule)
    assert processes() == processes_before  # while the trainer, and the loader that it made itself, live
    assert model.seen["test"] == model.seen["predict"] == list(range(24))
    assert datamodule._loaders == []


def test_lightnings_batch_size_finder_scales_it(shapes):
    from lightning.pytorch.callbacks import BatchSizeFinder

    datamodule = DetectionDataModule(shapes, batch_size=2)
    finder = BatchSizeFinder(mode="power", steps_per_trial=1, init_val=2, max_trials=2)
    trainer(callbacks=[finder], max_epochs=1, limit_val_batches=0).fit(Counting(), datamodule=datamodule)
    assert datamodule.batch_size == finder.optimal_batch_size > 2


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_users_own_module_may_return_our_loader(shapes):
    class Own(Counting):
        def train_dataloader(self):
            dataset = DetectionDataModule(shapes).train_dataloader().dataset
            return DataLoader(
                dataset, batch_size=8, shuffle=True, seed=1, collate_fn=lambda s: tuple(zip(*s, strict=True))
            )

    model = Own()
    trainer(max_epochs=2, log_every_n_steps=1, limit_val_batches=0).fit(model)
    assert sorted(model.seen["train"]) == sorted(2 * list(range(60)))
    assert model.seen["train"][:60] != model.seen["train"][60:]


class Empty(TableSource):
    """The same sets, every image without boxes."""

    def __init__(self, source):
        self.source = source

    def prepare(self):
        self.source.prepare()

    def tables(self, stage):
        (table,) = self.source.tables(stage)
        parts = {"offsets": [0] * (table.num_images + 1), "boxes": [], "labels": []}
        for name in ("root", "image_paths", "class_names", "widths", "heights"):
            parts[name] = getattr(table, name)
        return [AnnotationTable(**parts)]


@pytest.mark.parametrize("sampling", [None, WeightedSamplerConfig(replacement=False), ClassBalancedSamplerConfig()])
def test_images_without_boxes_go_through_fit_and_test(shapes, sampling):
    datamodule = DetectionDataModule(Empty(shapes), batch_size=8, train_sampler=sampling)
    model = Counting()
    runner = trainer(num_sanity_val_steps=0, log_every_n_steps=1, max_epochs=1)
    runner.fit(model, datamodule=datamodule)
    runner.test(model, datamodule=datamodule, verbose=False)
    assert sorted(model.seen["train"]) == list(range(60))
    assert model.seen["test"] == list(range(24))


def test_training_without_a_batch_is_refused(shapes):
    datamodule = DetectionDataModule(shapes, batch_size=64, drop_last=True)
    message = r"no batch: 60 samples with batch_size=64, world_size=1 and drop_last=True; lower batch_size"
    with pytest.raises(ValueError, match=message):
        datamodule.train_dataloader()  # not through fit: Lightning leaves its patches on after a hook that raises
    ranks = DetectionDataModule(shapes, batch_size=8, drop_last=True)
    cpu = SimpleNamespace(root_device=torch.device("cpu"))
    ranks.trainer = SimpleNamespace(global_rank=3, world_size=8, strategy=cpu)
    with pytest.raises(ValueError, match="60 samples with batch_size=8, world_size=8"):
        ranks.train_dataloader()
    assert len(DetectionDataModule(shapes, batch_size=64).train_dataloader()) == 1
    assert len(DetectionDataModule(shapes, batch_size=60, drop_last=True).train_dataloader()) == 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there")
def test_pinning_is_left_out_without_an_accelerator_and_without_a_warning(shapes):
    loader = DetectionDataModule(shapes).train_dataloader()
    assert not loader.pin_memory
    next(iter(loader))
