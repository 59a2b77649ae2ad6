"""The monitor of a loop: it divides its time, and finds the place at which a loop is slowed on purpose."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from lit_loader import DataLoader, LoopMonitor
from lit_loader.monitoring import gather_reports, loop
from tests.support.lightning_ranks import on_ranks
from tests.support.slow_loops import SlowSet, first_cause, run_loop

CAUSES = ["read", "decode", "sample", "transform", "collate", "transfer", "consumer", "slow rank"]


@pytest.mark.parametrize("cause", CAUSES)
def test_place_of_a_slowed_loop_is_named(cause, monkeypatch):
    assert first_cause(cause, monkeypatch=monkeypatch) == cause


@pytest.mark.parametrize("cause", ["read", "collate"])
def test_slow_stage_in_worker_threads_is_named(cause):
    settings = {"num_workers": 2, "worker_method": "thread", "prefetch_factor": 1}
    assert first_cause(cause, **settings) == cause


@pytest.mark.soak
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
@pytest.mark.parametrize("cause", CAUSES)
def test_place_of_a_slowed_loop_is_named_each_of_twenty_times(cause, workers, monkeypatch):
    # Long enough that workers of a busy machine, which start slowly, are not half of the waiting.
    settings = {"num_batches": 24, "seconds": 0.03}
    causes = [first_cause(cause, monkeypatch=monkeypatch, **settings, **workers) for _ in range(20)]
    assert causes == [cause] * 20


def test_time_between_epochs_and_in_a_validation_is_left_out():
    loader = DataLoader(SlowSet("read", 0.01, 3), batch_size=1, seed=0)
    monitor = LoopMonitor(loader)
    begin = time.perf_counter()
    for _ in range(2):
        for _ in monitor.batches():
            with monitor.excluded():
                time.sleep(0.05)
        time.sleep(0.05)
    elapsed_s = time.perf_counter() - begin
    report = monitor.report()
    assert (report.num_steps, report.num_epochs) == (6, 2)
    assert 0.06 <= report.stats.wait_s <= report.total_s <= elapsed_s - 0.4
    assert report.first_wait_s >= 0.02
    parts_s = report.stats.wait_s + report.stats.transfer_s + report.between_s + report.step_s
    assert parts_s == pytest.approx(report.total_s, abs=1e-3)


def test_hooks_of_a_loop_count_steps_images_and_time_between():
    loader = DataLoader(SlowSet("none", 0.0, 4), batch_size=2, seed=0)
    monitor = LoopMonitor(loader, num_records=8)
    monitor.start_epoch()
    for batch in loader:
        time.sleep(0.02)  # a transfer that the loader does not make
        monitor.start_step(len(batch))
        monitor.end_step()
    report = monitor.report()
    assert (report.num_steps, report.num_images) == (2, 4)
    assert report.between_s >= 0.02
    assert [step.end_s >= step.step_start_s >= step.start_s for step in monitor.records] == [True, True]


def test_period_leaves_out_what_was_before():
    loader = DataLoader(SlowSet("read", 0.01, 4), batch_size=1, seed=0)
    monitor = LoopMonitor(loader)
    for number, _ in enumerate(monitor.batches()):
        if number == 2:
            earlier = monitor.totals()
    period = monitor.report(since=earlier)
    assert period.num_steps == 2
    assert 0.01 <= period.stats.wait_s < monitor.report().stats.wait_s
    assert period.stats.num_batches == 1


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["inline", "threads"])
def test_burst_shows_the_step_without_waiting(workers, monkeypatch):
    monkeypatch.setattr(loop, "_FIRST_BURST", 2)
    loader = DataLoader(SlowSet("read", 0.1, 11), batch_size=1, seed=0, **workers)
    monitor = LoopMonitor(loader, num_bursts=1)
    with loader:
        numbers = [time.sleep(0.01) for _ in monitor.batches()]
    report = monitor.report()
    assert len(numbers) == 11
    assert report.num_steps == 7  # the four steps of the burst are left out
    assert 0.01 <= report.free_step_s < 0.04
    assert report.num_epochs == 1
    assert report.headroom.is_measured
    # Waiting takes 50 ms or more of each step.
    assert report.headroom.gain > 0.5


def test_idle_workers_during_an_excluded_block_do_not_count():
    workers = {"num_workers": 1, "worker_method": "thread", "prefetch_factor": 1}
    loader = DataLoader(SlowSet("read", 0.01, 4), batch_size=1, seed=0, **workers)
    monitor = LoopMonitor(loader)
    with loader:
        for _ in monitor.batches():
            with monitor.excluded():
                time.sleep(0.1)
    assert monitor.report().stats.idle_s < 0.05
    assert loader.stats().num_samples == 4


def test_burst_waits_for_an_epoch_with_enough_batches(monkeypatch):
    monkeypatch.setattr(loop, "_FIRST_BURST", 5)
    loader = DataLoader(SlowSet("read", 0.001, 8), batch_size=1, seed=0)
    monitor = LoopMonitor(loader, num_bursts=1)
    counts = [len(list(monitor.batches())) for _ in range(2)]
    assert counts == [8, 8]
    report = monitor.report()
    # Three batches of the first epoch are too few; the burst after the first step of the second one takes six.
    assert report.num_steps == 8 + 1 + 3
    assert report.headroom.is_measured


def test_validation_withdraws_a_burst_that_it_ends(monkeypatch):
    monkeypatch.setattr(loop, "_FIRST_BURST", 2)
    loader = DataLoader(SlowSet("read", 0.001, 10), batch_size=1, seed=0)
    monitor = LoopMonitor(loader, num_bursts=1)
    monitor.start_epoch()
    for number, _ in enumerate(loader, start=1):
        monitor.start_step()
        monitor.end_step()
        if number == 2:
            monitor.pause()
            monitor.resume()
    report = monitor.report()
    assert (report.num_steps, report.stats.hold_s, loader.stats().hold_s) == (10, 0.0, 0.0)
    assert not report.headroom.is_measured


def test_first_step_of_a_burst_may_wait_for_other_ranks(monkeypatch):
    monkeypatch.setattr(loop, "_FIRST_BURST", 1)
    loader = DataLoader(SlowSet("read", 0.001, 9), batch_size=1, seed=0)
    monitor = LoopMonitor(loader, num_bursts=1)
    for number, _ in enumerate(monitor.batches()):
        time.sleep(0.2 if number == 1 else 0.005)
    assert 0.005 <= monitor.report().free_step_s < 0.05


def test_batches_that_the_owner_of_a_loop_collects_are_left_out():
    loader = DataLoader(SlowSet("read", 0.02, 4), batch_size=1, seed=0)
    monitor = LoopMonitor(loader, num_bursts=0)
    loader.hold_batches(4)
    list(monitor.batches())
    report = monitor.report()
    assert report.total_s < 0.04 < 0.08 <= report.stats.hold_s
    assert report.between_s < 0.04


def test_resources_of_the_host_are_read_once(monkeypatch):
    calls = []
    resources = loop.read_resources()
    monkeypatch.setattr(loop, "read_resources", lambda: calls.append(None) or resources)
    monitor = LoopMonitor(DataLoader(SlowSet("none", 0.0, 1), batch_size=1, seed=0))
    assert monitor.report().host == monitor.report().host == resources
    assert len(calls) == 1


def test_loader_without_a_seed_has_a_bound(monkeypatch):
    monkeypatch.setattr(loop, "_FIRST_BURST", 2)
    monitor = LoopMonitor(DataLoader(SlowSet("read", 0.001, 6), batch_size=1))
    assert len(list(monitor.batches())) == 6
    assert monitor.report().num_steps == 6
    assert not monitor.report().headroom.is_measured


def test_loop_that_is_broken_off_is_measured_to_its_end():
    monitor = LoopMonitor(DataLoader(SlowSet("none", 0.0, 4), batch_size=1, seed=0))
    for _ in monitor.batches():
        break
    total_s = monitor.report().total_s
    time.sleep(0.01)
    assert monitor.report().total_s == total_s


class Wrapper:
    """As Fabric's: the loader behind another object, which moves its batches."""

    def __init__(self, loader):
        self._dataloader = loader

    def __iter__(self):
        return iter(self._dataloader)


def test_loader_inside_the_wrapper_of_fabric_is_measured():
    monitor = LoopMonitor(Wrapper(DataLoader(SlowSet("read", 0.01, 2), batch_size=1, seed=0)))
    assert len(list(monitor.batches())) == 2
    assert monitor.report().stats.wait_s >= 0.02


def test_other_loader_is_refused():
    with pytest.raises(TypeError, match=r"expected a lit_loader\.DataLoader.*got a DataLoader"):
        LoopMonitor(TorchDataLoader(TensorDataset(torch.zeros(1))))


def report_of_rank(folder):
    rank = torch.distributed.get_rank()
    report = run_loop("consumer", num_batches=1, rank=rank)
    reports = gather_reports(replace(report, free_step_s=(0.3, 0.2)[rank]))
    # In a step ranks wait for the slowest one, so the shortest step is the free one of all.
    assert [rank_report.free_step_s for rank_report in reports] == [0.2, 0.2]
    (folder / str(rank)).write_text(" ".join(str(report.rank) for report in reports))


def test_reports_of_all_ranks_are_gathered_in_their_order(tmp_path):
    on_ranks(2, tmp_path, report_of_rank, tmp_path)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["0 1", "0 1"]
    alone = run_loop("consumer", num_batches=1)
    assert gather_reports(alone) == [alone]
