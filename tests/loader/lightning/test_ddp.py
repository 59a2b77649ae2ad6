"""Guarantee: on real ranks our loader in a user's own module gives the batches of the samplers' pure functions.

One process group runs all: every family of samplers and users' own ones, in every stage, with
``use_distributed_sampler`` on and off.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import BatchSampler
from torch.utils.data import RandomSampler as TorchRandomSampler

from lit_loader import DataLoader, samplers
from tests.support import users_on_ranks
from tests.support.lightning_ranks import on_ranks, trainer

LENGTH = 23
BATCH_SIZE = 3
NUM_EPOCHS = 2
SEED = 7
LABELS = np.arange(LENGTH) % 4 % 3  # 0 twice as often
WEIGHTS = np.arange(1.0, LENGTH + 1)
FAMILIES = {
    "sequential": lambda: samplers.SequentialSampler(LENGTH),
    "random": lambda: samplers.RandomSampler(LENGTH),
    "weighted": lambda: samplers.WeightedRandomSampler(WEIGHTS, 30),
    "weighted without replacement": lambda: samplers.WeightedRandomSampler(WEIGHTS, 20, replacement=False),
    "class balanced": lambda: samplers.ClassBalancedSampler(LABELS, num_samples=25),
    "class aware": lambda: samplers.ClassAwareSampler(LABELS),
    "repeat factor": lambda: samplers.RepeatFactorSampler(1 + (LABELS == 2)),
    "effective number": lambda: samplers.WeightedRandomSampler(
        samplers.effective_number_weights(np.bincount(LABELS), beta=0.9)[LABELS]
    ),
    "subset": lambda: samplers.SubsetRandomSampler(range(4, LENGTH)),
    "mixed source": lambda: samplers.MixedSourceSampler([13, 10], [2, 1]),
    "grouped": lambda: samplers.GroupedSampler(samplers.RandomSampler(LENGTH), LABELS),
    "grouped weighted": lambda: samplers.GroupedSampler(samplers.WeightedRandomSampler(WEIGHTS), LABELS),
}
# Passed to the loader in another form than sampler=: its arguments, and the family that it equals.
FORMS = {
    "shuffle": (lambda: {"batch_size": BATCH_SIZE, "shuffle": True}, "random"),
    "batch sampler": (lambda: {"batch_sampler": BatchSampler(FAMILIES["weighted"](), BATCH_SIZE, False)}, "weighted"),
    "torch's": (lambda: {"batch_size": BATCH_SIZE, "sampler": TorchRandomSampler(range(LENGTH))}, "random"),
}
STAGES = ("fit", "val", "validate", "test", "predict")


class Own(LightningModule):
    """A user's module: its hooks return our loader, and its steps record their batches."""

    automatic_optimization = False

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = {stage: [] for stage in STAGES}

    def _loader(self):
        return DataLoader(range(LENGTH), seed=SEED, **self.make())

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader

    def _see(self, stage, batch):
        self.seen[stage].append([self.trainer.fit_loop.epoch_progress.current.processed, *batch.tolist()])

    def training_step(self, batch, batch_idx):
        self._see("fit", batch)

    def validation_step(self, batch, batch_idx):
        self._see("val" if self.trainer.state.fn == "fit" else "validate", batch)

    def test_step(self, batch, batch_idx):
        self._see("test", batch)

    def predict_step(self, batch, batch_idx):
        self._see("predict", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def cases():
    for name, make in FAMILIES.items():
        yield name, name, lambda make=make: {"batch_size": BATCH_SIZE, "sampler": make()}
    for name, (make, family) in FORMS.items():
        yield name, family, make


def run_all(folder):
    actual = {}
    warnings.filterwarnings("error", message="Using `DistributedSampler`")  # of unmarked duplicates: not with ours
    users = {name: make for name, (make, _) in users_on_ranks.USERS.items()}
    for name, make in [*((name, make) for name, _, make in cases()), *users.items()]:
        if name in users:  # Lightning warns before it makes the loader, which puts the user's sampler back
            warnings.filterwarnings("ignore", message="Using `DistributedSampler`")
        for use in (True, False):
            model = Own(make)
            runner = trainer(use_distributed_sampler=use, max_epochs=NUM_EPOCHS, num_sanity_val_steps=0)
            runner.fit(model)
            runner.validate(model, verbose=False)
            runner.test(model, verbose=False)
            runner.predict(model, return_predictions=False)
            actual[f"{name}, {use}"] = model.seen
    actual["refused"] = users_on_ranks.run_refused()
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(actual))


def planned(sampler, rank, world_size, epochs):
    """Return what pure functions say that a rank gets in each of these epochs."""
    cut = {"batch_size": BATCH_SIZE, "world_size": world_size, "drop_last": False}
    rows = []
    for epoch in epochs:
        order = sampler.batch_order(seed=SEED, epoch=epoch, global_batch=BATCH_SIZE * world_size)
        numbers = range(samplers.num_batches(len(order), **cut))
        batches = (samplers.rank_batch(order, number, rank=rank, **cut) for number in numbers)
        rows.extend([epoch, *batch.indices.tolist()] for batch in batches)
    return rows


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.soak)])
def ran(request, tmp_path_factory):
    """Return (rank, world size, results) of each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    world_size = request.param
    on_ranks(world_size, folder, run_all, folder)
    return [(rank, world_size, json.loads((folder / f"{rank}.json").read_text())) for rank in range(world_size)]


def test_every_family_in_every_stage_gives_each_rank_what_was_planned(ran):
    for rank, world_size, actual in ran:
        for name, family, _ in cases():
            sampler = FAMILIES[family]()
            for use in (True, False):
                seen = actual[f"{name}, {use}"]
                for stage in STAGES:
                    epochs = range(NUM_EPOCHS) if stage in ("fit", "val") else [NUM_EPOCHS]
                    expected = planned(sampler, rank, world_size, epochs)
                    assert seen[stage] == expected, (rank, name, use, stage)


@pytest.mark.parametrize("name", users_on_ranks.USERS)
def test_a_users_sampler_is_cut_by_rank_in_every_stage(name, ran):
    for rank, world_size, actual in ran:
        for use in (True, False):
            for stage in STAGES:
                expected = users_on_ranks.expected(name, rank, world_size, stage, NUM_EPOCHS)
                assert actual[f"{name}, {use}"][stage] == expected, (rank, use, stage)


def test_ranks_that_get_other_things_from_a_users_sampler_are_refused_on_every_rank(ran):
    for rank, world_size, actual in ran:
        users_on_ranks.check_refused(actual["refused"], rank, world_size)
