"""Guarantee: a run that was stopped and gone on with ends with the weights of one that was not, bit for bit.

In a user's own module with `lit_loader.DataLoader` and the callback `ResumeLoaders`. The unbroken run saves
checkpoints on its way; other runs resume from some of them, in the soak from each.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from lit_loader import DataLoader
from lit_loader.callbacks import ResumeLoaders
from lit_loader.datamodules.resuming import ResumeStates
from tests.support.lightning_ranks import trainer
from tests.support.lightning_resuming import Learner, Save, assert_same, fitted, loader
from tests.support.resume_sets import Numbers, make

pytestmark = [
    pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning"),  # of samples that are counted off
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]

STEPS = {"max_steps": 18, "max_epochs": -1}
END = "on_train_batch_end"
BEGIN = "on_train_batch_start"
SOME = (0, 1, 4, 7, 20)  # batches before the checkpoint, of 7 an epoch


@pytest.fixture(params=[SOME, pytest.param(range(30), marks=pytest.mark.soak)], ids=["some", "each"])
def stops(request):
    return request.param


def two():
    return {"a": loader(), "b": DataLoader(Numbers(18), batch_size=4, shuffle=True, seed=4)}


def resumes(folder, makes, hook=END, *, stops=SOME, ask=False, with_val=False, callbacks=(ResumeLoaders,), **settings):
    """Fit unbroken, then from each checkpoint that was saved on the way, and compare the weights."""

    def run(*more, ckpt_path=None):
        model = Learner(makes, loader if with_val else None, ask=ask)
        used_callbacks = [*(make_callback() for make_callback in callbacks), *more]
        return fitted(model, callbacks=used_callbacks, ckpt_path=ckpt_path, **settings)

    save = Save(folder, hook)
    unbroken = run(save)
    chosen = [(num_seen, path) for num_seen, path in save.saved if num_seen in stops]
    assert chosen
    for num_seen, path in chosen:
        assert_same(run(ckpt_path=path), unbroken, num_seen)


SETTINGS = {
    "plain": {},
    "limit": {"limit_train_batches": 4},
    "max_steps": STEPS,
    "estimated steps": {"ask": True},
    "estimated steps, max_steps": {"ask": True, **STEPS},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
}


def matrix(*axes, often):
    """Return all combinations of names; those that are not ``often`` tried are left to the soak."""
    marks = {True: (), False: pytest.mark.soak}
    return [pytest.param(*names, marks=marks[often(*names)]) for names in product(*axes)]


@pytest.mark.parametrize(
    ("name", "hook"),
    matrix(
        SETTINGS,
        [END, BEGIN, "on_train_epoch_end", "on_train_epoch_start", "on_train_start"],
        often=lambda name, hook: hook == END or name == "max_steps" or (name, hook) == ("plain", BEGIN),
    ),
)
def test_a_loader_goes_on_from_any_checkpoint(tmp_path, name, hook, stops):
    resumes(tmp_path, loader, hook, stops=stops, **SETTINGS[name])


@pytest.mark.parametrize(
    ("mode", "hook", "limit"),
    matrix(
        ["max_size_cycle", "min_size", "max_size"],
        [END, BEGIN],
        [1.0, 6],
        often=lambda mode, hook, limit: mode != "min_size" and (hook == END or limit == 1.0),
    ),
)
def test_several_loaders_go_on_together(tmp_path, mode, hook, limit, stops):
    resumes(tmp_path, lambda: CombinedLoader(two(), mode), hook, stops=stops, limit_train_batches=limit)


@pytest.mark.parametrize(
    ("source", "name", "hook"),
    matrix(
        ["stream", "stream with state"],
        ["plain", "limit", "max_steps"],
        [END, BEGIN, "on_train_epoch_end", "on_train_epoch_start"],
        often=lambda source, name, hook: (
            (name == "plain" and hook in (END, BEGIN)) or (source, hook) == ("stream", END)
        ),
    ),
)
def test_a_loader_without_a_length_loses_no_batch(tmp_path, source, name, hook, stops):
    if source == "stream with state" and name == "limit":
        stops = (0, 1, 6, 11)  # its next epoch begins where this one was left, which only who was there knows
    resumes(tmp_path, lambda: make(source), hook, stops=stops, **SETTINGS[name])


@pytest.mark.parametrize(
    ("name", "interval", "hook"),
    matrix(
        ["plain", "max_steps"],
        [3, 0.5, 1.0],
        ["on_validation_start", "on_validation_batch_end", "on_validation_end"],
        often=lambda name, interval, hook: (
            (name == "plain" and interval == 3) or (interval, hook) == (1.0, "on_validation_end")
        ),
    ),
)
def test_checkpoint_may_be_saved_during_validation(tmp_path, name, interval, hook):
    settings = {"val_check_interval": interval, "limit_val_batches": 2, **SETTINGS[name]}
    resumes(tmp_path, loader, hook, stops=(3, 7, 13, 17), with_val=True, **settings)


@pytest.mark.parametrize("interval", [3, 1.0])
def test_a_loader_without_a_length_may_be_saved_while_validation_runs(tmp_path, interval):
    resumes(
        tmp_path,
        lambda: make("stream with state"),
        "on_validation_end",
        stops=(3, 7, 17),
        with_val=True,
        val_check_interval=interval,
        limit_val_batches=2,
    )


@pytest.mark.parametrize("name", ["weighted", "class-balanced", "grouped", "weighted grouped", "custom"])
def test_every_sampler_goes_on(tmp_path, name):
    resumes(tmp_path, lambda: make(name), stops=(3, 9), max_epochs=2)


def test_without_the_callback_lightning_loads_what_it_can(tmp_path):
    resumes(tmp_path, loader, callbacks=())
    resumes(tmp_path, two, callbacks=(), stops=(6, 7))


def test_a_limited_sampler_of_a_users_begins_its_next_epoch(tmp_path):
    resumes(tmp_path, lambda: make("custom"), limit_train_batches=4)


@pytest.mark.parametrize(
    ("when", "accumulate"),
    [({"every_n_train_steps": 3}, 1), ({"every_n_train_steps": 1}, 3), ({"every_n_epochs": 1}, 2)],
    ids=["steps", "accumulated gradients", "epochs"],
)
@pytest.mark.parametrize("settings", [{}, {"max_steps": 8, "max_epochs": -1}], ids=["epochs", "max_steps"])
def test_run_resumes_from_model_checkpoint(tmp_path, when, accumulate, settings):
    def run(ckpt_path=None):
        callbacks = [ResumeLoaders(), ModelCheckpoint(tmp_path, save_top_k=-1, **when)]
        settings_ = {"enable_checkpointing": True, "accumulate_grad_batches": accumulate, **settings}
        return fitted(Learner(loader), callbacks=callbacks, ckpt_path=ckpt_path, **settings_)

    unbroken = run()
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) > 1
    for path in paths:
        assert_same(run(path), unbroken)


def test_between_two_optimizer_steps_the_batches_go_on(tmp_path):
    def run(*callbacks, ckpt_path=None):
        callbacks = [ResumeLoaders(), *callbacks]
        return fitted(Learner(loader), callbacks=callbacks, ckpt_path=ckpt_path, accumulate_grad_batches=3)

    save = Save(tmp_path)
    unbroken = run(save)
    for num_seen, path in save.saved[:8]:  # Lightning saves no gradients
        assert_same(run(ckpt_path=path), unbroken, num_seen, weights=False)


class Stop(Exception):
    pass


class StopAt(Learner):
    """Raises in a training step, as one does that runs out of memory."""

    def training_step(self, batch, batch_idx):
        if len(self.seen) == 10:
            raise Stop
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("source", [loader, lambda: make("stream with state")], ids=["map", "stream"])
@pytest.mark.parametrize("backends", [((0, ""), (2, "fork")), ((2, "fork"), (2, "thread"))], ids=str)
def test_a_step_that_raised_is_done_again(tmp_path, source, backends):
    """And with other workers; a stream's number of workers is fixed."""
    if source is not loader:
        backends = [backends[1], backends[1]] if backends[1][1] == "fork" else [backends[0]] * 2

    def made(backend):
        num_workers, kind = backend
        arguments = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        if kind == "thread":
            arguments["worker_method"] = kind
        return lambda: loader(**arguments) if source is loader else make("stream with state", backend)

    save = Save(tmp_path, "on_exception")
    unbroken = fitted(Learner(made(backends[0])))
    with pytest.raises(Stop):
        fitted(StopAt(made(backends[0])), callbacks=[ResumeLoaders(), save])
    ((num_seen, path),) = save.saved
    assert num_seen == 10
    assert_same(fitted(Learner(made(backends[1])), callbacks=[ResumeLoaders()], ckpt_path=path), unbroken, num_seen)


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end", None])
@pytest.mark.parametrize("source", [loader, lambda: make("stream")], ids=["map", "stream"])
def test_training_that_max_steps_ended_goes_on_with_more(tmp_path, source, hook):
    model = Learner(source)
    saves = [Save(tmp_path, hook)] if hook else []
    settings = {"num_sanity_val_steps": 0, "limit_val_batches": 0}
    short = trainer(max_steps=9, callbacks=[ResumeLoaders(), *saves], **settings)
    short.fit(model)
    path = saves[0].saved[-1][1] if saves else tmp_path / "after.ckpt"
    if not saves:
        short.save_checkpoint(path)
    more = fitted(Learner(source), callbacks=[ResumeLoaders(), Save(tmp_path)], ckpt_path=path, **STEPS)
    unbroken = fitted(Learner(source), **STEPS)
    assert_same(more, unbroken, 9)
    from_middle = fitted(Learner(source), callbacks=[ResumeLoaders()], ckpt_path=tmp_path / "6.ckpt", **STEPS)
    assert_same(from_middle, unbroken, 16)


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end"])
@pytest.mark.parametrize("source", [loader, lambda: make("stream")], ids=["map", "stream"])
def test_max_steps_within_the_last_epoch_can_be_raised(tmp_path, source, hook):
    save = Save(tmp_path, hook)
    fitted(Learner(source), callbacks=[ResumeLoaders(), save], max_epochs=1, max_steps=3)
    more = fitted(Learner(source), callbacks=[ResumeLoaders()], ckpt_path=save.saved[-1][1], max_epochs=1)
    assert_same(more, fitted(Learner(source), max_epochs=1), 3)


def test_a_checkpoint_is_plain_values(tmp_path):
    save = Save(tmp_path)
    fitted(Learner(two), callbacks=[ResumeLoaders(), save], max_epochs=1)
    loaded = torch.load(save.saved[2][1], weights_only=True)
    states = loaded["callbacks"]["ResumeLoaders"]["loaders"]
    assert [state["position"] for state in states] == [12, 12]
    assert loaded["loops"]["fit_loop"]["state_dict"]["combined_loader"] == states


def test_a_checkpoint_of_other_loaders_is_refused(tmp_path):
    save = Save(tmp_path)
    fitted(Learner(two), callbacks=[ResumeLoaders(), save], max_epochs=1)
    resume = ResumeStates()
    resume.states = [{}] * 3
    with pytest.raises(ValueError, match="states of 3 training loaders and there are 2"):
        fitted(Learner(two), callbacks=[resume], max_epochs=1)
