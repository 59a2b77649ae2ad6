"""New class weights between epochs: when they are computed and used, several ranks, and resumed runs."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lit_loader import ClassificationDataModule, CopyPaste
from lit_loader.annotations import image_weights
from lit_loader.callbacks import ReweightClasses
from lit_loader.datamodules import AspectRatioBatching, WeightedSamplerConfig, expected_class_mix
from lit_loader.samplers import WeightedRandomSampler
from tests.support.reweighting import (
    ANSWERS,
    Asked,
    Recording,
    data_of,
    expected_epochs,
    fit,
    three_classes,
    trainer_of,
)

pytestmark = [pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return three_classes(tmp_path_factory.mktemp("shapes"))


def test_weights_are_computed_after_validation_and_used_in_the_next_epoch(shapes, tmp_path):
    callback = ReweightClasses(Asked())
    module = fit(tmp_path, shapes, callback)
    assert callback.class_weights.epochs == [0, 1, 2, 3]
    assert module.seen == expected_epochs(shapes, [None, ANSWERS[0], ANSWERS[0], ANSWERS[2]])
    assert callback.last_class_weights == ANSWERS[0]  # of epoch 3
    assert module.seen[2] != module.seen[1]  # the same weights, another epoch


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_epoch_that_workers_have_started_ahead_is_drawn_again(shapes, tmp_path, method):
    data = data_of(shapes, workers={"num_workers": 2, "worker_method": method, "persistent_workers": True})
    module = fit(tmp_path, shapes, ReweightClasses(Asked()), data=data, max_epochs=3)
    assert module.seen == expected_epochs(shapes, [None, ANSWERS[0], ANSWERS[0]])


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("at", ["epoch end", "validation end", "middle"])
def test_resumed_run_has_the_weights_of_the_uninterrupted_run(shapes, tmp_path, at):
    settings = {
        "epoch end": {"save_on_train_epoch_end": True},
        "validation end": {"save_on_train_epoch_end": False},
        "middle": {"every_n_train_steps": 8},
    }[at]

    def run(callback, ckpt_path=None):
        saving = ModelCheckpoint(tmp_path, filename="at-{epoch}-{step}", save_top_k=-1, **settings)
        saved = {"callbacks": [saving], "enable_checkpointing": True, "max_epochs": 3}
        return fit(tmp_path, shapes, callback, ckpt_path=ckpt_path, **saved)

    uninterrupted = run(ReweightClasses(Asked()))
    name = "at-epoch=1-step=8.ckpt" if at == "middle" else "at-epoch=0-step=6.ckpt"
    state = torch.load(tmp_path / name, weights_only=True)["callbacks"]["ReweightClasses"]
    assert state == {"class_weights": ANSWERS[0], "epoch": 0}
    callback = ReweightClasses(Asked())
    resumed = run(callback, tmp_path / name)
    if at == "middle":  # the loader decides which batches of the epoch are repeated
        resumed.seen.pop(1)
    assert resumed.seen
    assert all(resumed.seen[epoch] == uninterrupted.seen[epoch] for epoch in resumed.seen)
    assert 0 not in callback.class_weights.epochs  # the weights of a past epoch are not computed again


def test_weights_are_computed_at_the_end_of_an_epoch_without_validation(shapes, tmp_path):
    epochs = []
    callback = ReweightClasses(lambda trainer, pl_module: epochs.append(trainer.current_epoch))
    module = fit(tmp_path, shapes, callback, limit_val_batches=0, max_epochs=2)
    assert epochs == [0, 1]
    assert module.seen == expected_epochs(shapes, [None, None])


def test_grouped_batches_are_reweighted(shapes, tmp_path):
    data = data_of(shapes, train_batching=AspectRatioBatching())
    module = fit(tmp_path, shapes, ReweightClasses(lambda *_: [0.0, 0.0, 1.0]), data=data, max_epochs=2)
    (table,) = data.tables("train")
    rare = set(table.image_of_object()[table.labels == 2].tolist())
    assert not set(module.seen[0]) <= rare
    assert set(module.seen[1]) <= rare


def test_expected_mix_is_logged(shapes, tmp_path):
    callback = ReweightClasses(lambda *_: [1.0, 2.0, 4.0])
    fit(tmp_path, shapes, callback, logger=CSVLogger(tmp_path), max_epochs=1)
    data = data_of(shapes)
    (table,) = data.tables("train")
    mix = expected_class_mix([table], WeightedRandomSampler(image_weights(table, [1.0, 2.0, 4.0])))
    with (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["data/class_mix/" + table.class_names[0]]]
    assert [int(row["step"]) for row in logged] == [6]
    for name, share in zip(table.class_names, mix, strict=True):
        assert float(logged[0][f"data/class_mix/{name}"]) == pytest.approx(share)


def test_logged_mix_counts_pasted_objects(shapes, tmp_path):
    def last_share(folder, mixing):
        (tmp_path / folder).mkdir()
        callback = ReweightClasses(lambda *_: [1.0, 2.0, 4.0])
        data = data_of(shapes, mixing=mixing)
        fit(tmp_path / folder, shapes, callback, data=data, logger=CSVLogger(tmp_path / folder), max_epochs=1)
        (table,) = data.tables("train")
        name = f"data/class_mix/{table.class_names[2]}"
        with (tmp_path / folder / "lightning_logs/version_0/metrics.csv").open() as file:
            (share,) = [float(row[name]) for row in csv.DictReader(file) if row[name]]
        return share, table.class_names[2]

    plain, rare = last_share("plain", None)
    pasted, _ = last_share("pasted", CopyPaste(num_objects=10, class_weights={rare: 1.0}))
    assert pasted > plain + 0.2


def test_two_ranks_draw_with_the_weights_of_rank_zero(shapes, tmp_path):
    class Saving(Recording):
        def on_train_end(self):
            torch.save(self.seen, tmp_path / f"{self.global_rank}.pt")

    def by_rank(trainer, pl_module):
        return [1.0, 5.0, 0.0] if trainer.global_rank == 0 else [0.0, 0.0, 1.0]

    trainer = trainer_of(tmp_path, ReweightClasses(by_rank), max_epochs=2, devices=2, strategy="ddp_fork")
    trainer.fit(Saving(), data_of(shapes, batch_size=2))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for epoch, order in expected_epochs(shapes, [None, [1.0, 5.0, 0.0]]).items():
        pairs = [order[start : start + 4] for start in range(0, len(order), 4)]
        for rank, seen in enumerate(ranks):
            assert seen[epoch] == [i for four in pairs for i in four[2 * rank : 2 * rank + 2]]


# -- errors and settings -----------------------------------------------------------------------------------


def set_up_with(callback, datamodule):
    """Set a callback up with the attributes of a trainer that `setup` reads."""
    callback.setup(SimpleNamespace(current_epoch=0, datamodule=datamodule), Recording(), "fit")


def test_a_sampler_without_weights_is_refused_before_the_first_epoch(shapes, tmp_path):
    callback = ReweightClasses(Asked())
    with pytest.raises(ValueError, match=r"DetectionDataModule .* got a RandomSampler; .*WeightedSamplerConfig\(\)"):
        set_up_with(callback, data_of(shapes, train_sampler=None))
    with pytest.raises(ValueError, match="got no data module"):
        set_up_with(callback, None)
    with pytest.raises(ValueError, match="colour"):
        set_up_with(ReweightClasses(Asked(), balance_by="colour"), data_of(shapes))
    too_short = WeightedRandomSampler([1.0, 1.0])
    with pytest.raises(ValueError, match="24 samples of the training table, got 2 weights"):
        set_up_with(callback, data_of(shapes, train_sampler=too_short))


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="must be a function of"):
        ReweightClasses([1.0, 2.0])
    with pytest.raises(ValueError, match="reduce='median'"):
        ReweightClasses(Asked(), reduce="median")


def test_weights_that_do_not_fit_are_refused(shapes):
    callback = ReweightClasses(Asked())
    set_up_with(callback, data_of(shapes))
    for weights, message in (([1.0, 1.0], "one weight for each of 3 classes"), ([0.0] * 3, "all zero")):
        with pytest.raises(ValueError, match=message):
            callback.load_state_dict({"class_weights": weights, "epoch": 0})


def test_checkpoint_without_weights_restores_the_samplers_initial_weights(shapes):
    data = data_of(shapes)
    callback = ReweightClasses(Asked())
    set_up_with(callback, data)
    initial_state = callback.state_dict()
    initial_weights = data.train_dataloader().sampler.weights
    callback.load_state_dict({"class_weights": [0.0, 0.0, 1.0], "epoch": 3})
    assert not torch.equal(data.train_dataloader().sampler.weights, initial_weights)
    callback.load_state_dict(initial_state)
    assert torch.equal(data.train_dataloader().sampler.weights, initial_weights)


def test_options_change_the_weights_of_images(shapes):
    options = {"reduce": "max", "empty_weight": 0.5}
    data = data_of(shapes)
    callback = ReweightClasses(Asked(), balance_by="finish", **options)
    set_up_with(callback, data)
    callback.load_state_dict({"class_weights": [1.0, 3.0, 2.0], "epoch": 0})
    (table,) = data.tables("train")
    expected = torch.from_numpy(image_weights(table, [1.0, 3.0, 2.0], by="finish", **options))
    assert torch.equal(data.train_dataloader().sampler.weights, expected)


def test_object_crops_have_the_weight_of_their_class(shapes):
    data = ClassificationDataModule(shapes, train_sampler=WeightedSamplerConfig(), sample_unit="object")
    callback = ReweightClasses(Asked())
    set_up_with(callback, data)
    callback.load_state_dict({"class_weights": [1.0, 2.0, 3.0], "epoch": 0})
    (table,) = data.tables("train")
    sampler = data.train_dataloader().sampler
    assert sampler.weights.tolist() == (table.labels + 1.0).tolist()


@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_training_with_another_sampler_warns(shapes, tmp_path):
    with pytest.warns(UserWarning, match="ReweightClasses has no effect: .* got SequentialSampler"):
        fit(tmp_path, shapes, ReweightClasses(Asked()), overfit_batches=2, max_epochs=1)
