"""The meter counts samples and CPU time, leaves nothing behind, and restores the settings."""

from __future__ import annotations

import time

import pytest
from torch.utils.data import Dataset, IterableDataset

from lit_loader.app.tuning import INLINE, Candidate, LoaderMeter
from lit_loader.datamodules import LoaderDataModule
from lit_loader.samplers import RandomSampler


class Timed(Dataset):
    """Dataset whose samples need a known time, computing or asleep."""

    def __init__(self, *, busy_s=0.0, sleep_s=0.0, length=64):
        self.busy_s = busy_s
        self.sleep_s = sleep_s
        self.length = length

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
        self.dataset = dataset
        self.loaders = []

    def stage_data(self, stage):
        return [(self.dataset, RandomSampler(self.dataset))]

    def collate_fn(self, stage):
        return None

    def train_dataloader(self):
        self.loaders.append(super().train_dataloader())
        return self.loaders[-1]


@pytest.mark.parametrize("candidate", [INLINE, Candidate(2, "thread", 2), Candidate(2, "fork", 2)], ids=str)
def test_cpu_time_is_counted_wherever_it_is_spent(candidate):
    measurement = LoaderMeter(Module(Timed(busy_s=0.004), batch_size=4))(candidate, 0.6)
    assert measurement.candidate == candidate
    assert measurement.samples_per_s > 0
    assert 0.75 * 0.004 < measurement.cpu_s_per_sample < 3 * 0.004  # the loader needs some CPU time, too
    in_main = measurement.main_cpu_s_per_sample > 0.5 * measurement.cpu_s_per_sample
    assert in_main is (candidate.method != "fork")
    assert measurement.memory_bytes > 1 << 20
    assert measurement.wall_s >= 0.6
    assert measurement.start_s > 0


@pytest.mark.parametrize("drop_last", [True, False])
def test_rate_counts_samples_not_batches(drop_last):
    # one sample takes 4 ms, the last batch of six has two samples
    measurement = LoaderMeter(Module(Timed(sleep_s=0.004, length=22), batch_size=4, drop_last=drop_last))(INLINE, 0.4)
    assert measurement.samples_per_s <= 250
    assert measurement.cpu_s_per_sample < 0.004


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(22))


def test_stream_without_a_length_is_measured_with_drop_last():
    class StreamModule(Module):
        def stage_data(self, stage):
            return [(self.dataset, None)]

    assert LoaderMeter(StreamModule(Stream(), batch_size=4, drop_last=True))(INLINE, 0.1).samples_per_s > 0


def test_one_turn_is_counted_even_if_it_is_slow():
    measurement = LoaderMeter(Module(Timed(sleep_s=0.05), batch_size=2))(Candidate(2, "thread", 1), 0.01)
    assert measurement.wall_s >= 0.05
    assert measurement.samples_per_s > 0


def test_simulated_step_lowers_the_rate_of_inline():
    measurement = LoaderMeter(Module(Timed(sleep_s=0.01), batch_size=2), step_s=0.05)(INLINE, 0.3)
    assert measurement.samples_per_s <= 2 / 0.07
    assert measurement.main_cpu_s_per_sample > 0.003  # of 0.025, were the core its own


@pytest.mark.parametrize("candidate", [Candidate(2, "thread", 4), Candidate(3, "fork", 2), INLINE], ids=str)
def test_loader_has_the_settings_and_the_module_is_restored(candidate):
    module = Module(
        Timed(), batch_size=4, workers={"num_workers": "auto", "prefetch_factor": 7, "multiprocessing_context": "fork"}
    )
    LoaderMeter(module)(candidate, 0.05)
    (loader,) = module.loaders
    for name, value in candidate.settings().items():
        assert getattr(loader, name) == value or name == "multiprocessing_context"
    assert loader.worker_method == ("thread" if candidate.is_threaded else "multiprocessing")
    assert loader._iterator is None
    assert (module.num_workers, module.workers.prefetch_factor) == ("auto", 7)
    assert (module.workers.worker_method, module.workers.multiprocessing_context) == ("multiprocessing", "fork")


class Failing(Timed):
    def __getitem__(self, index):
        raise OSError(f"cannot read sample {index}")


@pytest.mark.parametrize("candidate", [INLINE, Candidate(1, "fork", 2), Candidate(1, "thread", 2)], ids=str)
def test_error_of_a_sample_is_raised_and_nothing_is_left(candidate):
    with pytest.raises(OSError, match="cannot read sample"):
        LoaderMeter(Module(Failing(), batch_size=4))(candidate, 0.1)
