"""The monitor of training under Lightning: waiting, its causes, and the settings that help."""

from __future__ import annotations

import json
import time
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.callbacks import DataMonitor
from lit_loader.callbacks import data_monitor as module
from lit_loader.errors import DataWaitWarning
from tests.support.lightning_ranks import QUIET
from tests.support.simulated_device import Prompt, present

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Labelled(Dataset):
    def __init__(self, seconds, length=8):
        self.seconds = seconds
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.zeros(3, 4, 4), {"labels": torch.tensor([1] * 3 + [2])}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


class Sleeping(LightningModule):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        time.sleep(0.2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(*callbacks, sample_s=0.0, step_s=0.0, device=None, **arguments):
    settings = {"max_epochs": 2, "num_sanity_val_steps": 0, "log_every_n_steps": 1, "callbacks": list(callbacks)}
    trainer = Trainer(**QUIET | settings | arguments)
    loader = DataLoader(Labelled(sample_s), batch_size=2, seed=0, collate_fn=collate, device=device)
    trainer.fit(Sleeping(step_s), loader, loader if "val_check_interval" in arguments else None)
    return trainer


def test_waiting_for_data_is_separated_from_training():
    slow_data = DataMonitor(warn_above=None)
    slow_step = DataMonitor(warn_above=None)
    trainer = fit(slow_data, sample_s=0.02)
    fit(slow_step, step_s=0.04)
    assert slow_data.num_batches == slow_step.num_batches == 8
    report = slow_data.report()
    assert report.stats.wait_s >= 16 * 0.02
    assert report.wait_fraction > 0.6
    assert slow_step.report().step_s >= 8 * 0.04
    assert slow_step.report().wait_fraction < 0.4
    assert 0.5 < float(trainer.callback_metrics["data/wait_fraction"]) <= 1
    assert float(trainer.callback_metrics["data/transfer_fraction"]) == 0
    assert (report.num_images, report.num_epochs, report.num_steps) == (16, 2, 8)
    assert 0 < float(trainer.callback_metrics["data/images_per_s"]) < 1 / 0.02


PAUSE_S = 0.08  # much longer than a loader on a busy machine


class Busy(Prompt):
    """A device for which the host waits before each batch."""

    def wait_event(self, event):
        super().wait_event(event)
        time.sleep(PAUSE_S)


class Slow(Callback):
    """A callback that takes time before each step."""

    def on_train_batch_start(self, *_):
        time.sleep(PAUSE_S)


@pytest.mark.parametrize("callbacks", [[], [Slow()]], ids=["device", "device and callback"])
def test_waiting_for_the_device_or_a_callback_is_no_waiting_for_data(monkeypatch, callbacks):
    present(monkeypatch, Busy)
    monitor = DataMonitor(warn_above=None)
    fit(*callbacks, monitor, device="cuda")
    report = monitor.report()
    assert report.num_steps == 8
    assert report.total_s - report.stats.wait_s >= 8 * PAUSE_S * (1 + len(callbacks))
    assert report.between_s >= 8 * PAUSE_S * len(callbacks)
    assert 0 < report.wait_fraction < 0.3


def test_time_between_steps_counts_as_waiting_for_other_loaders():
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[monitor := DataMonitor(warn_above=None)])
    loader = torch.utils.data.DataLoader(Labelled(0.01), batch_size=2, collate_fn=collate)
    trainer.fit(Sleeping(0.0), loader)
    report = monitor.report()
    assert report.stats.wait_s >= 8 * 0.01
    assert report.between_s == 0


def test_validation_does_not_count_as_waiting():
    monitor = DataMonitor(warn_above=None)
    fit(monitor, val_check_interval=2, max_epochs=1)
    assert monitor.report().total_s < 0.8  # two validations of four batches sleep 1.6 s


def test_report_before_the_first_batch_is_empty():
    monitor = DataMonitor()
    assert monitor.report().wait_fraction == 0
    assert monitor.epoch_rates() == {}
    assert monitor.diagnosis() == []


def test_reports_and_diagnosis_are_written_at_the_end(tmp_path):
    monitor = DataMonitor(warn_above=None, path=tmp_path / "run" / "data_monitor.json")
    monitor.setting_text = lambda name, value: f"workers.{name}={value}"
    fit(monitor, sample_s=0.02, max_epochs=1)
    content = json.loads(monitor.path.read_text())
    assert len(content["ranks"]) == 1
    assert content["ranks"][0]["num_steps"] == 4
    causes = [verdict["cause"] for verdict in content["diagnosis"] if verdict["cause"] != "busy host"]
    assert causes[0] == "sample"
    assert "waiting for data" in monitor.lines()[0]
    assert any(line.startswith("- sample: training waited for data") for line in monitor.lines())


@pytest.mark.parametrize("num_records", [0, 3])
def test_times_of_the_last_steps_are_kept_on_request(num_records):
    monitor = DataMonitor(warn_above=None, num_records=num_records)
    fit(monitor, step_s=0.001)
    assert len(monitor.loop.records) == num_records
    assert all(record.end_s - record.step_start_s >= 0.001 for record in monitor.loop.records)


def test_unwritable_report_does_not_end_the_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="could not be written"):
        fit(DataMonitor(warn_above=None, path=tmp_path / "file" / "report.json"), max_epochs=1)


@pytest.fixture
def early_warnings(monkeypatch):
    """A warm-up of one step, and a diagnosis after each step from the third one on."""
    monkeypatch.setattr(module, "_WARM_UP_STEPS", 1)
    monkeypatch.setattr(module, "_DIAGNOSED_STEPS", 2)
    monkeypatch.setattr(module, "_DIAGNOSIS_DISTANCE_S", 0.0)


@pytest.mark.usefixtures("early_warnings")
def test_waiting_run_warns_once_with_the_cause():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(DataMonitor(), sample_s=0.02)
    messages = [str(warning.message) for warning in caught if warning.category is DataWaitWarning]
    named = [message for message in messages if "sample: training waited for data" in message]
    # Other processes of the machine may be a second cause, in front of it.
    assert len(named) in (1, 2)
    assert len(messages) == len({message.partition(":")[0] for message in messages})


@pytest.mark.usefixtures("early_warnings")
@pytest.mark.parametrize("monitor", [DataMonitor(warn_above=None), DataMonitor(warn_above=1.0)])
def test_warning_is_switched_off(monitor):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWaitWarning)
        fit(monitor, sample_s=0.01, max_epochs=1)


def test_run_within_the_warm_up_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWaitWarning)
        fit(DataMonitor(), sample_s=0.01)


def test_short_run_warns_once_at_its_end():
    with pytest.warns(DataWaitWarning, match="sample: training waited for data") as caught:
        fit(DataMonitor(), sample_s=0.003, max_epochs=5)
    assert len([warning for warning in caught if warning.category is DataWaitWarning]) == 1


def test_short_run_without_waiting_logs_one_line(caplog):
    with caplog.at_level("INFO", logger="lit_loader"), warnings.catch_warnings():
        warnings.simplefilter("error", DataWaitWarning)
        fit(DataMonitor(warn_above=0.9), max_epochs=5)
    assert len([record for record in caplog.records if record.name == module.__name__]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warn_above": 5}, "warn_above=5 must be a fraction"),
        ({"num_bursts": -1}, "num_bursts=-1 must be at least 0"),
        ({"num_records": -1}, "num_records=-1 must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataMonitor(**arguments)


def test_two_ranks_log_the_mean_wait_and_the_summed_speed_and_gather_reports(tmp_path):
    class Recording(DataMonitor):
        def on_train_batch_start(self, trainer, pl_module, batch, *arguments):
            # A rank without known images logs the same names as the other one.
            batch = None if trainer.global_rank else tuple(batch)
            super().on_train_batch_start(trainer, pl_module, batch, *arguments)

        def on_train_end(self, trainer, pl_module):
            super().on_train_end(trainer, pl_module)
            logged = [float(trainer.callback_metrics[f"data/{name}"]) for name in ("wait_fraction", "images_per_s")]
            waits = [report.wait_fraction for report in self.reports]
            speeds = [report.num_images / report.total_s for report in self.reports]
            (tmp_path / f"{trainer.global_rank}.json").write_text(json.dumps([logged, waits, speeds]))

    fit(Recording(warn_above=None), sample_s=0.01, max_epochs=1, devices=2, strategy="ddp_fork")
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    logged, waits, speeds = first
    assert logged[0] == pytest.approx(sum(waits) / 2, abs=1e-6)
    assert logged[1] == pytest.approx(sum(speeds), rel=1e-3)
