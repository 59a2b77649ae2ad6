"""Guarantee: under every mode of the Trainer epoch e has the order of epoch e, and no loader is left running."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BatchSizeFinder
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import BatchSampler

from lit_loader import DataLoader, samplers
from lit_loader.datamodules import LoaderDataModule
from tests.support.lightning_ranks import trainer

LENGTH = 20
SEED = 5


def loader(length=LENGTH, **arguments):
    settings = {"batch_size": 4, "shuffle": True, **arguments}
    return DataLoader(range(length), seed=SEED, **settings)


def epoch(number, length=LENGTH, sampler=None, batch_size=4):
    order = (sampler or samplers.RandomSampler(length)).order(seed=SEED, epoch=number)
    return [order[at : at + batch_size].tolist() for at in range(0, len(order), batch_size)]


class Seeing(LightningModule):
    """A module that records the batches of each epoch, and the workers alive when it begins."""

    automatic_optimization = False

    def __init__(self, make, make_val=None):
        super().__init__()
        self.make = make
        self.make_val = make_val
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.train_epochs = []
        self.val_epochs = []
        self.alive = []

    def train_dataloader(self):
        return self.make()

    def val_dataloader(self):
        return self.make_val() if self.make_val else []

    def on_train_epoch_start(self):
        self.train_epochs.append([])
        threads = [thread for thread in threading.enumerate() if "worker" in thread.name.lower()]
        self.alive.append(len(multiprocessing.active_children()) + len(threads))

    def training_step(self, batch, batch_idx):
        self.train_epochs[-1].append(plain(batch))

    def on_validation_epoch_start(self):
        self.val_epochs.append([])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.val_epochs[-1].append(plain(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain(batch):
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return batch if batch is None else batch.tolist()


def without_val(make_val=None):
    return {} if make_val else {"limit_val_batches": 0}


def fitted(make, make_val=None, **arguments):
    model = Seeing(make, make_val)
    trainer(**{"max_epochs": 3, "num_sanity_val_steps": 0, **without_val(make_val), **arguments}).fit(model)
    return model


# -- fewer batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 0.4])
def test_limited_batches_are_the_first_of_each_epochs_own_order(limit):
    workers = {"num_workers": 2, "worker_method": "thread", "persistent_workers": True}
    for settings in ({}, workers):
        model = fitted(
            lambda settings=settings: loader(**settings),
            lambda settings=settings: loader(shuffle=False, **settings),
            limit_train_batches=limit,
            limit_val_batches=limit,
        )
        assert model.train_epochs == [epoch(e)[:2] for e in range(3)]
        assert model.val_epochs == 3 * [epoch(0, sampler=samplers.SequentialSampler(LENGTH))[:2]]


def test_a_fast_dev_run_takes_the_first_batches_of_the_first_epoch():
    for fast_dev_run, batches in ((True, 1), (3, 3)):
        model = fitted(loader, lambda: loader(shuffle=False), fast_dev_run=fast_dev_run)
        assert model.train_epochs == [epoch(0)[:batches]]
        assert [len(seen) for seen in model.val_epochs] == [batches]


WEIGHTED = samplers.WeightedRandomSampler([0.0] * 5 + [1.0] * 15, 30)


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (loader, 0),
        (lambda: loader(shuffle=None, sampler=WEIGHTED), 5),
        (lambda: loader(batch_size=1, shuffle=None, batch_sampler=BatchSampler(WEIGHTED, 4, False)), 5),
    ],
    ids=["shuffled", "weighted", "batch sampler"],
)
@pytest.mark.parametrize("overfit", [2, 0.5])
def test_overfitting_repeats_the_same_batches(make, first, overfit):
    model = fitted(make, lambda: loader(shuffle=False), overfit_batches=overfit)
    assert model.train_epochs == 3 * [[list(range(at, at + 4)) for at in (first, first + 4)]]


# -- several loaders --------------------------------------------------------------------------------------


def combined(mode):
    return lambda: CombinedLoader({"long": loader(), "short": loader(8)}, mode)


def column(seen, name):
    return [[batch[name] for batch in batches] for batches in seen]


def test_a_short_loader_that_is_cycled_never_repeats_an_order_within_an_epoch():
    seen = fitted(combined("max_size_cycle")).train_epochs
    assert column(seen, "long") == [epoch(e) for e in range(3)]
    for number, batches in enumerate(column(seen, "short")):
        orders = [epoch(number + turn, 8) for turn in range(3)]
        assert batches == [*orders[0], *orders[1], orders[2][0]]
        assert orders[0] != orders[1] != orders[2]


def test_other_modes_of_combined_loaders():
    seen = fitted(combined("min_size")).train_epochs
    assert column(seen, "long") == [epoch(e)[:2] for e in range(3)]
    assert column(seen, "short") == [epoch(e, 8) for e in range(3)]
    seen = fitted(combined("max_size")).train_epochs
    assert column(seen, "long") == [epoch(e) for e in range(3)]
    assert column(seen, "short") == [[*epoch(e, 8), None, None, None] for e in range(3)]
    lists = fitted(loader, lambda: [loader(shuffle=False), loader(8, shuffle=False)]).val_epochs
    in_order = [epoch(0, sampler=samplers.SequentialSampler(n)) for n in (LENGTH, 8)]
    assert lists == 3 * [[*in_order[0], *in_order[1]]]


# -- loaders made anew ------------------------------------------------------------------------------------


class Module(LoaderDataModule):
    """The smallest data module."""

    def stage_data(self, stage):
        return [(range(LENGTH), samplers.RandomSampler(LENGTH))]

    def collate_fn(self, stage):
        return None


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize("whose", ["own module", "data module"])
def test_reloading_each_epoch_goes_on_and_leaves_no_workers(method, whose):
    workers = {"num_workers": 1, "worker_method": method, "persistent_workers": True}
    settings = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 6, "num_sanity_val_steps": 0}
    model = Seeing(lambda: loader(**workers))
    if whose == "own module":
        trainer(**settings, **without_val()).fit(model)
        assert model.train_epochs == [epoch(e) for e in range(6)]
    else:
        datamodule = Module(batch_size=4, seed=1, workers=workers)
        reference = Module(batch_size=4, seed=1).train_dataloader()
        trainer(**settings, limit_val_batches=0).fit(model, datamodule=datamodule)
        assert model.train_epochs == [[batch.tolist() for batch in reference] for _ in range(6)]
    assert max(model.alive) <= 3  # of six loaders, only the last two have workers


def test_the_batch_size_finder_scales_a_data_module_that_goes_on_with_what_it_found(tmp_path):
    datamodule = Module(batch_size=2, seed=1)
    finder = BatchSizeFinder(mode="power", steps_per_trial=1, init_val=2, max_trials=2)
    model = Seeing(None)
    runner = trainer(callbacks=[finder], max_epochs=1, limit_val_batches=0, default_root_dir=tmp_path)
    runner.fit(model, datamodule=datamodule)
    assert datamodule.batch_size == finder.optimal_batch_size == 4
    expected = [batch.tolist() for batch in Module(batch_size=4, seed=1).train_dataloader()]
    assert model.train_epochs[-1] == expected
