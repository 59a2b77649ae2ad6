"""The average that `EmaWeights` validates is the one that is saved, tested and resumed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_loader.callbacks import EmaWeights, SigtermCheckpoint
from tests.support.toy_task import ToyTask, loader, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The dirpath has changed",
    "ignore:Be aware that when using `ckpt_path`",
)


def copied(model):
    return {name: value.clone() for name, value in model.model.state_dict().items()}


class WithoutDropout(ToyTask):
    """A task whose steps draw no random numbers, which a resumed fit would not restore."""

    def on_train_start(self):
        self.model.body[2].p = 0.0


class Weights(Callback):
    """Records the weights after each step, in each validation and in each test."""

    def __init__(self):
        self.trained = []
        self.validated = []
        self.tested = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.trained.append(copied(pl_module))

    def on_validation_batch_start(self, trainer, pl_module, *_):
        self.validated.append(copied(pl_module))

    def on_test_batch_start(self, trainer, pl_module, *_):
        self.tested.append(copied(pl_module))


def fitted(folder, *, task=WithoutDropout, ckpt_path=None, **settings):
    """Fit, save a checkpoint after each epoch, and return the trainer, the model and the recorded weights."""
    weights = Weights()
    best = ModelCheckpoint(folder, filename="epoch{epoch}", auto_insert_metric_name=False, save_top_k=-1)
    callbacks = [EmaWeights(**settings.pop("ema", {})), best, weights]
    running = trainer(folder, enable_checkpointing=True, callbacks=callbacks, **settings)
    model = task()
    running.fit(model, loader(), loader(1), ckpt_path=ckpt_path, weights_only=True)
    return running, model, weights


def saved(folder, epoch, key="state_dict"):
    state = torch.load(folder / f"epoch{epoch}.ckpt", weights_only=True)[key]
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}


def test_average_is_the_warmed_up_mean_of_the_weights(tmp_path):
    class LargeSteps(WithoutDropout):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    _, model, weights = fitted(tmp_path, task=LargeSteps, ema={"decay": 0.25}, max_epochs=1)
    average = weights.trained[0]["head.weight"]
    for count, state in enumerate(weights.trained[1:], start=1):
        decay = min(0.25, (1 + count) / (10 + count))
        average = decay * average + (1 - decay) * state["head.weight"]
    torch.testing.assert_close(model.model.head.weight.detach(), average)


def test_buffers_of_whole_numbers_are_copied(tmp_path):
    class WithPositions(WithoutDropout):
        def __init__(self):
            super().__init__()
            self.model.register_buffer("positions", torch.arange(300))

    _, _, weights = fitted(tmp_path, task=WithPositions, max_epochs=1)
    assert torch.equal(saved(tmp_path, 0)["positions"], torch.arange(300))
    assert saved(tmp_path, 0)["body.1.num_batches_tracked"] == 4
    assert not torch.equal(saved(tmp_path, 0)["body.1.running_mean"], weights.trained[3]["body.1.running_mean"])


def test_validated_weights_are_saved_and_tested(tmp_path):
    running, model, weights = fitted(tmp_path)
    for epoch in (0, 1):
        torch.testing.assert_close(saved(tmp_path, epoch), weights.validated[epoch], rtol=0, atol=0)
        assert not torch.equal(weights.validated[epoch]["head.weight"], weights.trained[4 * epoch + 3]["head.weight"])
    # With Lightning's callback, a test after the fit has the weights of training.
    running.test(model, loader(1), ckpt_path=tmp_path / "epoch0.ckpt", verbose=False, weights_only=True)
    torch.testing.assert_close(weights.tested[0], weights.validated[0], rtol=0, atol=0)
    running.validate(model, loader(1), ckpt_path=tmp_path / "epoch0.ckpt", verbose=False, weights_only=True)
    torch.testing.assert_close(weights.validated[-1], weights.validated[0], rtol=0, atol=0)
    # Another process has no average of a fit.
    other = Weights()
    tests = trainer(tmp_path, callbacks=[EmaWeights(), other])
    tests.test(ToyTask(), loader(1), ckpt_path=tmp_path / "epoch0.ckpt", verbose=False, weights_only=True)
    torch.testing.assert_close(other.tested[0], weights.validated[0], rtol=0, atol=0)


def test_resumed_fit_continues_the_average_and_the_weights(tmp_path):
    fitted(tmp_path / "whole")
    fitted(tmp_path / "resumed", ckpt_path=tmp_path / "whole/epoch0.ckpt")
    uninterrupted, resumed = (
        torch.load(tmp_path / name / "epoch1.ckpt", weights_only=True) for name in ("whole", "resumed")
    )
    for key in ("state_dict", "current_model_state", "averaging_state"):
        torch.testing.assert_close(resumed[key], uninterrupted[key], rtol=0, atol=0)
    assert not torch.equal(
        uninterrupted["state_dict"]["model.head.weight"], uninterrupted["current_model_state"]["model.head.weight"]
    )


def test_checkpoints_after_the_last_step_have_both_weights(tmp_path):
    weights = Weights()
    # Saves nothing before the fit ends.
    last = ModelCheckpoint(tmp_path, save_last=True, save_top_k=0, every_n_epochs=100)
    running = trainer(tmp_path, enable_checkpointing=True, callbacks=[EmaWeights(), last, weights], max_epochs=1)
    model = ToyTask()
    running.fit(model, loader(), loader(1))
    running.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("last.ckpt", "after.ckpt"):
        state = torch.load(tmp_path / name, weights_only=True)
        for key, expected in (("state_dict", copied(model)), ("current_model_state", weights.trained[-1])):
            assert torch.equal(state[key]["model.head.weight"], expected["head.weight"])
    assert not torch.equal(model.model.head.weight, weights.trained[-1]["head.weight"])


def test_callback_of_a_finished_fit_averages_another_one(tmp_path):
    ema = EmaWeights()
    for _ in range(2):
        weights = Weights()
        model = ToyTask()
        trainer(tmp_path, callbacks=[ema, weights], max_epochs=1).fit(model, loader(), loader(1))
        assert not torch.equal(weights.validated[0]["head.weight"], weights.trained[-1]["head.weight"])


def test_weights_are_validated_and_saved_until_the_average_starts(tmp_path):
    _, model, weights = fitted(tmp_path, ema={"update_starting_at_step": 100})
    torch.testing.assert_close(weights.validated[0], weights.trained[3], rtol=0, atol=0)
    torch.testing.assert_close(saved(tmp_path, 0), weights.trained[3], rtol=0, atol=0)
    assert "current_model_state" not in torch.load(tmp_path / "epoch0.ckpt", weights_only=True)
    torch.testing.assert_close(copied(model), weights.trained[-1], rtol=0, atol=0)
    # The average starts after the fit resumes.
    path = tmp_path / "epoch0.ckpt"
    _, _, resumed = fitted(tmp_path / "resumed", ckpt_path=path, ema={"update_starting_at_step": 5, "decay": 0.0})
    torch.testing.assert_close(saved(tmp_path / "resumed", 1), resumed.trained[-1], rtol=0, atol=0)


def test_update_follows_every_few_steps(tmp_path):
    callback = EmaWeights(update_every_n_steps=3, update_starting_at_step=4)
    assert [step for step in range(13) if callback.should_update(step_idx=step)] == [6, 9, 12]
    assert not callback.should_update(epoch_idx=6)


def test_sigterm_in_a_validation_saves_both_weights(tmp_path):
    weights = Weights()

    class Terminated(Callback):
        def on_validation_batch_end(self, *_):
            raise SIGTERMException

    callbacks = [EmaWeights(), SigtermCheckpoint(tmp_path), weights, Terminated()]
    running = trainer(tmp_path, enable_checkpointing=True, callbacks=callbacks)
    with pytest.raises(SIGTERMException):
        running.fit(ToyTask(), loader(), loader(1))
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    for key, expected in (("state_dict", weights.validated[0]), ("current_model_state", weights.trained[3])):
        actual = {name.removeprefix("model."): value for name, value in state[key].items() if "metric" not in name}
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "settings", [{"decay": 1.0}, {"decay": -0.1}, {"update_every_n_steps": 0}, {"update_starting_at_step": -1}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        EmaWeights(**settings)


def test_average_is_saved_in_fits_only():
    checkpoint = {}
    EmaWeights().on_save_checkpoint(SimpleNamespace(state=SimpleNamespace(fn="test")), ToyTask(), checkpoint)
    assert checkpoint == {}
