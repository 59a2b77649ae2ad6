"""SIGTERM with several ranks: they agree before one of them saves or stops."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_loader.callbacks import SigtermCheckpoint


@pytest.fixture
def _handler():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def trainer_of_ranks(other_received):
    """A trainer of two ranks, whose reduction knows whether the other one got the signal."""
    saved = []
    return SimpleNamespace(
        world_size=2,
        is_last_batch=False,
        strategy=SimpleNamespace(reduce_boolean_decision=lambda value, all: value or other_received),
        fast_dev_run=False,
        sanity_checking=False,
        saved=saved,
        save_checkpoint=lambda path, weights_only: saved.append(path.name),
    )


@pytest.mark.parametrize("other_received", [False, True])
@pytest.mark.usefixtures("_handler")
def test_every_rank_saves_and_stops_after_one_receives_the_signal(tmp_path, other_received):
    callback = SigtermCheckpoint(tmp_path, every_n_steps=2)
    trainer = trainer_of_ranks(False)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 1)
    assert trainer.saved == []
    if other_received:
        trainer = trainer_of_ranks(True)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SIGTERMException):
        callback.on_train_batch_end(trainer, None, None, None, 3)
    assert trainer.saved == ["last.ckpt"]
    assert callback.has_saved


def test_ranks_agree_every_few_batches_and_at_the_end_of_an_epoch(tmp_path):
    agreements = []
    trainer = trainer_of_ranks(False)
    trainer.strategy.reduce_boolean_decision = lambda value, all: agreements.append(batch_idx)
    callback = SigtermCheckpoint(tmp_path, every_n_steps=3)
    for batch_idx in range(8):
        trainer.is_last_batch = batch_idx == 7
        callback.on_train_batch_end(trainer, None, None, None, batch_idx)
    assert agreements == [2, 5, 7]
    with pytest.raises(ValueError, match="every_n_steps=0 must be at least 1"):
        SigtermCheckpoint(tmp_path, every_n_steps=0)
