"""The meter measures what really arrives, leaves nothing behind, and gives the settings back."""

from __future__ import annotations

import time

import pytest
from torch.utils.data import Dataset

from lit_loader.app.tuning import INLINE, Candidate, LoaderMeter
from lit_loader.datamodules import LoaderDataModule
from lit_loader.samplers import RandomSampler


class Timed(Dataset):
    """Samples that take a known time: of the core, or asleep."""

    def __init__(self, *, busy_s=0.0, sleep_s=0.0, length=64):
        self.busy_s, self.sleep_s, self.length = busy_s, sleep_s, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        end = time.thread_time() + self.busy_s
        while time.thread_time() < end:
            pass
        time.sleep(self.sleep_s)
        return index


class Module(LoaderDataModule):
    def __init__(self, dataset, **settings):
        super().__init__(seed=0, **settings)
        self.dataset, self.made = dataset, []

    def stage_data(self, stage):
        return [(self.dataset, RandomSampler(self.dataset))]

    def collate_fn(self, stage):
        return None

    def train_dataloader(self):
        self.made.append(super().train_dataloader())
        return self.made[-1]


@pytest.mark.parametrize("candidate", [INLINE, Candidate(2, "thread", 2), Candidate(2, "fork", 2)], ids=str)
def test_cpu_time_is_counted_wherever_it_is_spent(candidate):
    found = LoaderMeter(Module(Timed(busy_s=0.004), batch_size=4))(candidate, 0.6)
    assert found.candidate == candidate
    assert found.samples_per_s > 0
    assert 0.75 * 0.004 < found.cpu_s_per_sample < 3 * 0.004  # and what the loader itself takes
    in_main = found.main_cpu_s_per_sample > 0.5 * found.cpu_s_per_sample
    assert in_main is (candidate.method != "fork")
    assert found.memory_bytes > 1 << 20
    assert found.wall_s >= 0.6
    assert found.start_s > 0


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_rate_counts_samples_not_batches(drop_last):
    # one sample takes 4 ms, the last batch of six has two samples
    found = LoaderMeter(Module(Timed(sleep_s=0.004, length=22), batch_size=4, drop_last=drop_last))(
        INLINE, 0.4
    )
    assert found.samples_per_s <= 250
    assert found.cpu_s_per_sample < 0.004


def test_a_turn_is_counted_even_if_it_takes_longer_than_asked_for():
    found = LoaderMeter(Module(Timed(sleep_s=0.05), batch_size=2))(Candidate(2, "thread", 1), 0.01)
    assert found.wall_s >= 0.05
    assert found.samples_per_s > 0


def test_a_step_of_the_consumer_lowers_the_rate_of_inline_by_its_time():
    found = LoaderMeter(Module(Timed(sleep_s=0.01), batch_size=2), step_s=0.05)(INLINE, 0.3)
    assert found.samples_per_s <= 2 / 0.07
    assert found.main_cpu_s_per_sample > 0.003  # of 0.025, were the core its own


@pytest.mark.parametrize("candidate", [Candidate(2, "thread", 4), Candidate(3, "fork", 2), INLINE], ids=str)
def test_the_loader_has_the_settings_and_the_module_gets_its_own_back(candidate):
    module = Module(
        Timed(),
        batch_size=4,
        workers={"num_workers": "auto", "prefetch_factor": 7, "multiprocessing_context": "fork"},
    )
    meter = LoaderMeter(module)
    meter(candidate, 0.05)
    (loader,) = module.made
    for name, value in candidate.settings().items():
        assert getattr(loader, name) == value or name == "multiprocessing_context"
    assert loader.worker_method == ("thread" if candidate.is_threaded else "multiprocessing")
    assert loader._iterator is None
    meter.restore()
    assert (module.num_workers, module.workers.prefetch_factor) == ("auto", 7)
    assert (module.workers.worker_method, module.workers.multiprocessing_context) == (
        "multiprocessing",
        "fork",
    )


class Failing(Timed):
    def __getitem__(self, index):
        raise OSError(f"cannot read sample {index}")


@pytest.mark.parametrize("candidate", [INLINE, Candidate(1, "fork", 2), Candidate(1, "thread", 2)], ids=str)
def test_an_error_of_a_sample_comes_out_and_nothing_stays(candidate):
    with pytest.raises(OSError, match="cannot read sample"):
        LoaderMeter(Module(Failing(), batch_size=4))(candidate, 0.1)
