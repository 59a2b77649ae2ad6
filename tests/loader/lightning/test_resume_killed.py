"""Guarantee: a training process killed with SIGKILL loses the steps since its last checkpoint, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_loader.callbacks import ResumeLoaders
from tests.support.lightning_resuming import Learner, assert_same, fitted, loader

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists")


class Killed(Learner):
    """Is killed in a training step of its second epoch."""

    def training_step(self, batch, batch_idx):
        if len(self.seen) == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def run(kind, folder, *, num_workers, ckpt_path=None):
    def made():
        return loader(num_workers=num_workers, persistent_workers=num_workers > 0)

    saves = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1)
    return fitted(kind(made), callbacks=[ResumeLoaders(), saves], ckpt_path=ckpt_path, enable_checkpointing=True)


@pytest.mark.parametrize(("workers_before", "workers_after"), [(2, 0), (0, 2)])
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(tmp_path, workers_before, workers_after):
    process = multiprocessing.get_context("fork").Process(
        target=run, args=(Killed, tmp_path), kwargs={"num_workers": workers_before}
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    last = max(tmp_path.glob("*.ckpt"), key=os.path.getmtime)
    assert "step=10" in last.name
    resumed = run(Learner, tmp_path, num_workers=workers_after, ckpt_path=last)
    assert_same(resumed, run(Learner, tmp_path / "whole", num_workers=0), 10)
