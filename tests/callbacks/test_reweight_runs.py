"""New class weights at the end of a run: its checkpoints resume, and the next run starts with initial weights."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from lightning.pytorch import Callback

from lit_loader.callbacks import ReweightClasses
from tests.support.reweighting import Asked, Recording, data_of, fit, three_classes, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return three_classes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def uninterrupted(shapes, tmp_path_factory):
    """A run of three epochs."""
    return fit(tmp_path_factory.mktemp("whole"), shapes, ReweightClasses(Asked()), max_epochs=3)


class Failing(Callback):
    """Fails in the middle of the second of six-step epochs, and saves a checkpoint when anything fails."""

    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 8:
            raise RuntimeError("on purpose")

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.path)


def test_checkpoint_saved_after_a_run_resumes_with_its_weights(shapes, tmp_path, uninterrupted):
    trainer = trainer_of(tmp_path, ReweightClasses(Asked()), max_epochs=2)
    trainer.fit(Recording(), data_of(shapes))
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    resumed = fit(tmp_path, shapes, ReweightClasses(Asked()), ckpt_path=tmp_path / "after.ckpt", max_epochs=3)
    assert resumed.seen == {2: uninterrupted.seen[2]}


def test_checkpoint_saved_on_an_exception_resumes_with_its_weights(shapes, tmp_path, uninterrupted):
    path = tmp_path / "failed.ckpt"
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path, shapes, ReweightClasses(Asked()), callbacks=[Failing(path)], max_epochs=3)
    resumed = fit(tmp_path, shapes, ReweightClasses(Asked()), ckpt_path=path, max_epochs=3)
    assert sorted(resumed.seen) == [1, 2]
    assert resumed.seen[2] == uninterrupted.seen[2]
    assert resumed.seen[1] == uninterrupted.seen[1][-len(resumed.seen[1]) :]


@pytest.mark.parametrize("same", [True, False], ids=["the same callback", "another"])
@pytest.mark.parametrize("failed", [True, False], ids=["failed", "ended"])
def test_second_run_starts_with_the_samplers_initial_weights(shapes, tmp_path, uninterrupted, same, failed):
    data = data_of(shapes)
    callback = ReweightClasses(Asked())
    if failed:
        with pytest.raises(RuntimeError, match="on purpose"):
            fit(tmp_path, shapes, callback, data=data, callbacks=[Failing(tmp_path / "failed.ckpt")])
    else:
        fit(tmp_path, shapes, callback, data=data, max_epochs=2)
    second = callback if same else ReweightClasses(Asked())
    assert fit(tmp_path, shapes, second, data=data, max_epochs=3).seen == uninterrupted.seen


def test_weights_set_between_two_runs_are_the_initial_weights(shapes, tmp_path):
    data = data_of(shapes)
    callback = ReweightClasses(Asked())
    fit(tmp_path, shapes, callback, data=data, max_epochs=1)
    sampler = data.train_dataloader().sampler
    sampler.set_weights(torch.arange(1.0, 25.0))
    order = sampler.order(seed=data.train_dataloader().seed, epoch=0)[:].tolist()
    assert fit(tmp_path, shapes, callback, data=data, max_epochs=1).seen == {0: order}


def test_testing_a_checkpoint_does_not_change_the_training_weights(shapes, tmp_path):
    class Tested(Recording):
        def test_step(self, batch, batch_idx):
            pass

    data = data_of(shapes)
    module = Tested()
    trainer = trainer_of(tmp_path, ReweightClasses(Asked()), max_epochs=1)
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    data.train_dataloader().sampler.set_weights(torch.ones(24))
    trainer.test(module, data, ckpt_path=tmp_path / "after.ckpt", weights_only=True)
    assert torch.equal(data.train_dataloader().sampler.weights, torch.ones(24).double())


def test_callback_does_not_keep_samplers_alive(shapes, tmp_path):
    data = data_of(shapes)
    fit(tmp_path, shapes, ReweightClasses(Asked()), data=data, max_epochs=1)
    sampler = weakref.ref(data.train_dataloader().sampler)
    del data
    gc.collect()
    assert sampler() is None
