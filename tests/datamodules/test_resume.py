"""Guarantee: with our data modules nothing is to be done for a stopped run to go on exactly, augmentation included."""

from __future__ import annotations

import pytest
import torch

from lit_loader import DetectionDataModule
from lit_loader.callbacks import ResumeLoaders
from lit_loader.datamodules import LoaderDataModule, WeightedSamplerConfig, WorkerSettings
from lit_loader.samplers import RandomSampler
from tests.support.lightning_ranks import trainer
from tests.support.lightning_resuming import Learner, Save, assert_same, fitted
from tests.support.resume_sets import BATCH, SIZE, Numbers, StatefulStream

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
]

STEPS = {"max_steps": 18, "max_epochs": -1}


class NumbersModule(LoaderDataModule):
    def __init__(self, dataset=Numbers, **settings):
        super().__init__(batch_size=BATCH, seed=3, **settings)
        self.dataset = dataset

    def stage_data(self, stage):
        return [(self.dataset(), RandomSampler(SIZE) if self.dataset is Numbers else None)]

    def collate_fn(self, stage):
        return None


class WithTest(Learner):
    def test_step(self, batch, batch_idx):
        pass


def resumes(folder, make, hook, stops, *, makes_next=None, ask=False, callbacks=(), **settings):
    def run(make_datamodule, *more, ckpt_path=None):
        callbacks_ = [*(make_callback() for make_callback in callbacks), *more]
        model = Learner(ask=ask)
        return fitted(model, datamodule=make_datamodule(), callbacks=callbacks_, ckpt_path=ckpt_path, **settings)

    save = Save(folder, hook)
    expected = run(make, save)
    chosen = [(num_seen, path) for num_seen, path in save.saved if num_seen in stops]
    assert len(chosen) >= len(stops)
    for num_seen, path in chosen:
        assert_same(run(makes_next or make, ckpt_path=path), expected, num_seen)


@pytest.mark.parametrize(
    ("hook", "stops"),
    [
        ("on_train_batch_end", (1, 7, 16)),
        ("on_train_batch_start", (0, 6, 16)),
        ("on_train_epoch_end", (7, 14)),
        ("on_train_epoch_start", (0, 14)),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"ask": True}, STEPS], ids=["plain", "estimated steps", "max_steps"])
def test_a_data_module_goes_on_by_itself(tmp_path, hook, stops, settings):
    resumes(tmp_path, NumbersModule, hook, stops, **settings)


def test_max_steps_within_the_last_epoch_can_be_raised(tmp_path):
    save = Save(tmp_path, "on_train_end")
    fitted(Learner(), datamodule=NumbersModule(), callbacks=[save], max_epochs=1, max_steps=3)
    path = save.saved[-1][1]
    more = fitted(Learner(), datamodule=NumbersModule(), ckpt_path=path, max_epochs=1, max_steps=20)
    assert_same(more, fitted(Learner(), datamodule=NumbersModule(), max_epochs=1), 3)


@pytest.mark.parametrize("is_tested", [False, True])
@pytest.mark.parametrize("dataset", [Numbers, StatefulStream])
def test_checkpoint_that_is_saved_after_training_counts_no_batch_that_was_only_fetched(tmp_path, dataset, is_tested):
    run = trainer(max_steps=3, limit_val_batches=0, num_sanity_val_steps=0)
    model = WithTest()
    run.fit(model, datamodule=NumbersModule(dataset))
    if is_tested:
        run.test(model, datamodule=NumbersModule(), verbose=False)
    run.save_checkpoint(tmp_path / "3.ckpt")
    more = fitted(Learner(), datamodule=NumbersModule(dataset), ckpt_path=tmp_path / "3.ckpt", max_epochs=1)
    assert_same(more, fitted(Learner(), datamodule=NumbersModule(dataset), max_epochs=1), 3)


def test_a_limit_ends_an_epoch(tmp_path):
    resumes(tmp_path, NumbersModule, "on_train_batch_end", (1, 4, 8), limit_train_batches=4)


def test_the_callback_beside_it_changes_nothing(tmp_path):
    resumes(tmp_path, NumbersModule, "on_train_batch_end", (1, 7), callbacks=(ResumeLoaders,))


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_batch_start"])
def test_a_stream_goes_on_too(tmp_path, hook):
    resumes(tmp_path, lambda: NumbersModule(StatefulStream), hook, (1, 6, 16))


def test_with_other_workers(tmp_path):
    resumes(
        tmp_path,
        lambda: NumbersModule(num_workers=2),
        "on_train_batch_end",
        (3, 14),
        makes_next=lambda: NumbersModule(workers=WorkerSettings(num_workers=1, worker_method="thread")),
    )


def test_images_and_draws_of_batch_transforms_go_on(shapes, tmp_path):
    def noisy(batch):
        images, targets = batch
        return [image + torch.rand_like(image) for image in images], targets

    def make(**workers):
        return DetectionDataModule(
            shapes, batch_size=16, seed=5, train_sampler=WeightedSamplerConfig(), batch_transforms=noisy, **workers
        )

    resumes(tmp_path, make, "on_train_batch_end", (2, 4, 6), makes_next=lambda: make(num_workers=2))


@pytest.mark.parametrize("callbacks", [(), (ResumeLoaders,)], ids=["alone", "with the callback"])
def test_a_test_of_a_checkpoint_changes_nothing_of_a_later_fit(tmp_path, callbacks):
    save = Save(tmp_path)
    trainer_callbacks = [make_callback() for make_callback in callbacks]
    expected = fitted(WithTest(), datamodule=NumbersModule(), callbacks=[*trainer_callbacks, save])
    datamodule = NumbersModule()
    runner = trainer(max_epochs=3, num_sanity_val_steps=0, limit_val_batches=0, callbacks=trainer_callbacks)
    runner.test(WithTest(), datamodule=datamodule, ckpt_path=save.saved[3][1], verbose=False)
    model = WithTest()
    runner.fit(model, datamodule=datamodule)
    assert_same(model, expected, 0)


def test_without_a_trainer_the_next_loader_goes_on():
    with NumbersModule().train_dataloader() as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = next(batches)
    datamodule = NumbersModule()
    datamodule.load_state_dict({"train": state})
    assert torch.equal(next(iter(datamodule.train_dataloader())), expected)


def test_a_state_that_does_not_fit_is_refused_with_the_remedy():
    state = NumbersModule().train_dataloader().state_dict()
    other = NumbersModule()
    other.batch_size = 5
    other.load_state_dict({"train": state})
    with pytest.raises(ValueError, match=r'global_batch=4 in the state, 5 here.*resume="restart"'):
        other.train_dataloader()
