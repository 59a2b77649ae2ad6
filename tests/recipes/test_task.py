"""The base class of all tasks: optimizers, schedulers, frozen layers, compilation, precision and averaging."""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, ReduceLROnPlateau

from lit_loader.recipes import WarmupCosineLR
from tests.support.toy_task import Net, ToyTask, loader, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches .* is smaller than the logging interval"),
]

sgd = partial(SGD, lr=1.0)


def run(model: ToyTask, folder: Any, *, ckpt_path: Any = None, **changes: Any) -> Trainer:
    running = trainer(folder, **changes)
    running.fit(model, loader(), loader(), ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return running


def first_rates(model: ToyTask) -> list[float]:
    return [rates[0] for rates in model.rates]


def schedule(**arguments: Any) -> list[float]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = WarmupCosineLR(optimizer, **arguments)
    return [scheduler.factor(step) for step in range(14)]


# -- schedules -------------------------------------------------------------------------------------------


def test_schedule_is_linear_then_half_a_cosine() -> None:
    rates = schedule(warmup_steps=3, total_steps=13)
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[8] == pytest.approx(0.5)
    assert rates[13] == pytest.approx(0.0)


def test_rate_stays_at_its_peak_while_the_total_is_unknown() -> None:
    assert schedule(warmup_steps=1) == [0.5] + [1.0] * 13


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"warmup_steps": -1}, "warmup_steps=-1 must be 0 or more"),
        ({"warmup_steps": 5, "total_steps": 5}, "total_steps=5 must be above warmup_steps=5"),
    ],
)
def test_schedule_without_steps_after_the_warm_up_is_refused(arguments: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        schedule(**arguments)


@pytest.mark.parametrize("limits", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 8}])
def test_rate_is_zero_at_the_last_step_of_the_trainer(tmp_path: Any, limits: dict[str, int]) -> None:
    model = ToyTask(optimizer=sgd, scheduler=partial(WarmupCosineLR, warmup_steps=3))
    running = run(model, tmp_path, **limits)
    assert first_rates(model)[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert running.global_step == 8
    assert [group["lr"] for group in running.optimizers[0].param_groups] == pytest.approx([0.0, 0.0])


def test_given_total_overrides_the_trainers(tmp_path: Any) -> None:
    model = ToyTask(optimizer=sgd, scheduler=partial(WarmupCosineLR, warmup_steps=0, total_steps=16))
    running = run(model, tmp_path)
    assert running.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5)


def test_no_loader_is_set_up_before_a_checkpoint_is_loaded(tmp_path: Any) -> None:
    class Watching(ToyTask):
        def configure_optimizers(self) -> Any:
            optimizers = super().configure_optimizers()
            self.loaders = self.trainer.fit_loop._combined_loader
            return optimizers

    model = Watching()
    run(model, tmp_path)
    assert model.loaders is None


def test_resumed_fit_continues_the_same_schedule(tmp_path: Any) -> None:
    arguments: dict[str, Any] = {"optimizer": sgd, "scheduler": partial(WarmupCosineLR, warmup_steps=2)}
    uninterrupted = ToyTask(**arguments)
    run(uninterrupted, tmp_path, max_epochs=2)

    class Stopping(ToyTask):
        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = True

    first = Stopping(**arguments)
    run(first, tmp_path, max_epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    state = torch.load(tmp_path / "half.ckpt", weights_only=True)["lr_schedulers"][0]
    assert state["last_epoch"] == 4
    second = ToyTask(**arguments)
    run(second, tmp_path, max_epochs=2, ckpt_path=tmp_path / "half.ckpt")
    assert first_rates(first) + first_rates(second) == pytest.approx(first_rates(uninterrupted))
    assert len(second.rates) == 4


def test_torch_scheduler_steps_by_epoch_and_on_request_by_step(tmp_path: Any) -> None:
    halving = partial(LinearLR, start_factor=1.0, end_factor=0.5, total_iters=1)
    by_epoch = ToyTask(optimizer=sgd, scheduler=halving)
    run(by_epoch, tmp_path)
    assert first_rates(by_epoch) == [1.0] * 4 + [0.5] * 4
    by_step = ToyTask(optimizer=sgd, scheduler=halving, scheduler_interval="step")
    run(by_step, tmp_path)
    assert first_rates(by_step) == [1.0] + [0.5] * 7


def test_plateau_scheduler_watches_the_monitored_score(tmp_path: Any) -> None:
    settings = {"factor": 0.1, "patience": 0, "threshold": 2.0}  # no score gets better by that much
    model = ToyTask(optimizer=sgd, scheduler=partial(ReduceLROnPlateau, mode="max", **settings))
    running = run(model, tmp_path, max_epochs=3)
    assert first_rates(model) == pytest.approx([1.0] * 8 + [0.1] * 4)
    assert running.lr_scheduler_configs[0].monitor == "val/accuracy"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"scheduler": ReduceLROnPlateau}, "whose best value is its maximum; give mode='max'"),
        ({"scheduler_interval": "epoch"}, "WarmupCosineLR steps by step"),
        (
            {"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=8), "lr_scales": {"body.*": 0.1}},
            "OneCycleLR sets its own learning rates",
        ),
    ],
)
def test_scheduler_against_other_settings_is_refused(tmp_path: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        run(ToyTask(**arguments), tmp_path)


# -- optimizers ------------------------------------------------------------------------------------------


def test_default_optimizer_is_adamw_without_decay_of_biases_and_norms(tmp_path: Any) -> None:
    optimizer = run(ToyTask(scheduler=None), tmp_path).optimizers[0]
    assert type(optimizer) is AdamW
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(1e-3, 1e-2), (1e-3, 0)]
    optimizer = run(ToyTask(optimizer=partial(SGD, lr=0.5, momentum=0.9)), tmp_path).optimizers[0]
    assert (type(optimizer), optimizer.param_groups[0]["momentum"]) == (SGD, 0.9)


def test_rates_of_groups_are_scaled_during_the_whole_schedule(tmp_path: Any) -> None:
    scheduler = partial(WarmupCosineLR, warmup_steps=3)
    model = ToyTask(optimizer=sgd, scheduler=scheduler, lr_scales={"body.*": 0.1, "head.bias": 2.0})
    groups = run(model, tmp_path).optimizers[0].param_groups
    rate_by_id = {id(parameter): group["initial_lr"] for group in groups for parameter in group["params"]}
    peak_rates = {name: rate_by_id[id(parameter)] for name, parameter in model.model.named_parameters()}
    assert peak_rates["body.0.weight"] == peak_rates["body.1.weight"] == pytest.approx(0.1)
    assert (peak_rates["head.weight"], peak_rates["head.bias"]) == (1.0, 2.0)
    for rates in model.rates:
        peak = max(rates) / 2
        assert sorted(rate / peak for rate in rates) == pytest.approx([0.1, 0.1, 1.0, 2.0])


def test_frozen_module_keeps_its_weights_statistics_and_evaluation_mode(tmp_path: Any) -> None:
    model = ToyTask(freeze=["body.*"], scheduler=None)
    initial_state = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    modes: list[bool] = []
    for layer in model.model.body[1:3]:
        layer.register_forward_hook(lambda module, *_: modes.append(module.training))
    running = run(model, tmp_path)
    state = model.model.state_dict()
    changed = {name for name in state if not torch.equal(state[name], initial_state[name])}
    assert changed == {"head.weight", "head.bias"}
    assert not any(modes)
    assert sum(len(group["params"]) for group in running.optimizers[0].param_groups) == 2


def test_statistics_of_a_partly_frozen_module_are_updated(tmp_path: Any) -> None:
    model = ToyTask(freeze=["body.0.*"], scheduler=None)
    run(model, tmp_path)
    assert int(model.model.body[1].num_batches_tracked) == 8


# -- features of Lightning -------------------------------------------------------------------------------


def test_compiled_model_is_used_and_keeps_the_names_of_its_state(tmp_path: Any) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = ToyTask(compile={"backend": backend})
    names = set(model.state_dict())
    run(model, tmp_path)
    assert graphs
    assert set(model.state_dict()) == names


def test_bfloat16_trains_and_validates(tmp_path: Any) -> None:
    model = ToyTask()
    dtypes = []
    model.model.head.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    run(model, tmp_path, precision="bf16-mixed")
    assert set(dtypes) == {torch.bfloat16}
    assert math.isfinite(model.val_scores.accuracy)


class Recording(ToyTask):
    def on_train_start(self) -> None:
        self.weights: list[Any] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights.append(self.model.head.weight.detach().clone())


def moving_average(weights: list[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(lambda average, tensor: 0.5 * average + 0.5 * tensor, weights)


@pytest.mark.parametrize(
    ("compile", "callback", "average"),
    [
        (False, WeightAveraging(), lambda weights: torch.stack(weights).mean(dim=0)),
        ({"backend": "eager"}, WeightAveraging(), lambda weights: torch.stack(weights).mean(dim=0)),
        (False, EMAWeightAveraging(decay=0.5), moving_average),
    ],
)
def test_weight_averaging_leaves_the_average_of_the_weights(
    tmp_path: Any, compile: Any, callback: Any, average: Any
) -> None:
    model = Recording(optimizer=sgd, compile=compile)
    run(model, tmp_path, callbacks=[callback])
    torch.testing.assert_close(model.model.head.weight.detach(), average(model.weights))


def test_synchronised_batch_normalisation_is_accepted(tmp_path: Any) -> None:
    run(ToyTask(), tmp_path, sync_batchnorm=True)


# -- hyperparameters and reports -------------------------------------------------------------------------


def test_hyperparameters_are_plain_and_without_callables_and_weights(tmp_path: Any) -> None:
    excluded: dict[str, Any] = {"weights": "file.pth", "optimizer": sgd, "compile": {"backend": "eager"}}
    model = ToyTask(Net, class_names=("low", "high"), freeze=("body.0.*",), **excluded)
    assert dict(model.hparams) == {"class_names": ["low", "high"], "freeze": ["body.0.*"]}
    assert ToyTask("net").hparams["model"] == "net"
    run(model, tmp_path).save_checkpoint(tmp_path / "task.ckpt")
    restored = ToyTask.load_from_checkpoint(tmp_path / "task.ckpt", weights_only=True)
    assert restored.freeze_patterns == ["body.0.*"]
    torch.testing.assert_close(restored.state_dict(), model.state_dict())


def test_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        ToyTask().test_report()


def test_sum_of_losses_and_its_parts_are_logged(tmp_path: Any) -> None:
    logged = run(ToyTask(), tmp_path).callback_metrics
    assert logged["train/loss"] == logged["train/classification"]
    assert "val/accuracy" in logged
