"""The causes of waiting in reports, and the settings that remove them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lit_loader.foundation.host import Resources
from lit_loader.monitoring import diagnose
from lit_loader.monitoring.report import add_stats
from tests.support.data_reports import made_report

MOST = {"read": 10.0, "decode": 10.0, "transform": 10.0, "sample": 10.0, "collate": 10.0, "send": 5.0}


def causes(report, **arguments):
    return [verdict.cause for verdict in diagnose(report, **arguments)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stage", ["read", "decode", "transform", "sample", "collate"])
def test_slowest_stage_is_the_first_cause(stage, workers):
    report = made_report(stages={**MOST, stage: 130.0}, workers=workers)
    first = diagnose(report)[0]
    assert first.cause == stage
    assert "waited for data for 50% of its time" in first.problem
    assert "16.25 ms per sample" in first.problem


@pytest.mark.parametrize(
    ("report", "cause", "settings"),
    [
        (
            made_report(stages={"decode": 190.0}, settings={"decode": "exact"}),
            "decode",
            {"decode": "fast", "cache": True},
        ),
        (made_report(stages={"decode": 190.0}, settings={"decode": "fast", "cache": True}), "decode", {}),
        (made_report(stages={"read": 190.0}), "read", {"cache": True}),
        (made_report(stages={"send": 100.0, "sample": 90.0}), "hand-over", {"worker_method": "thread"}),
        (
            made_report(stages={"sample": 20.0}, idle=170.0),
            "hand-over",
            {"prefetch_factor": 4, "worker_method": "thread"},
        ),
        (
            made_report(stages={"sample": 390.0}, workers=4, method="thread", cpu=100.0),
            "interpreter lock",
            {"worker_method": "multiprocessing"},
        ),
        (made_report(wait=0.0, transfer=0.3), "transfer", {"pin_memory": True, "prefetch_to_device": True}),
        (made_report(wait=0.0, transfer=0.3, settings={"pin_memory": True, "copies_ahead": True}), "transfer", {}),
        (made_report(wait=0.0, between=0.3), "transfer", {"prefetch_to_device": True}),
        (made_report(wait=0.01), "consumer", {}),
        (made_report(stages={"sample": 20.0}, idle=170.0, first_wait_s=40.0, num_epochs=10), "epoch start", {}),
    ],
)
def test_cause_has_the_settings_that_remove_it(report, cause, settings):
    first = diagnose(report)[0]
    assert (first.cause, dict(first.settings)) == (cause, settings)


def test_longer_queue_is_not_advised_if_batches_are_ready():
    report = made_report(wait=0.06, stages={"sample": 20.0}, idle=170.0)
    ready = replace(report, stats=replace(report.stats, ready_batches=3900))
    (verdict,) = diagnose(ready)
    assert (verdict.cause, verdict.settings) == ("hand-over", {"worker_method": "thread"})
    assert "batches were ready (queue 98% full), so receiving one took 6.00 ms" in verdict.problem


def test_loader_of_another_library_has_unknown_stages():
    report = made_report(workers=0)
    foreign = replace(report, stats=replace(report.stats, num_batches=0))
    (verdict,) = diagnose(foreign)
    assert verdict.cause == "unknown"
    assert "replace it by lit_loader.DataLoader" in verdict.text()
    assert causes(replace(foreign, other_cores=16.0, main_cpu_s=50.0)) == ["busy host", "unknown"]


def test_start_of_workers_is_the_cause_in_a_single_epoch():
    report = made_report(stages={"sample": 20.0}, idle=170.0, first_wait_s=40.0)
    (verdict,) = diagnose(report)
    assert (verdict.cause, verdict.settings) == ("epoch start", {})
    assert "first batch of its only epoch" in verdict.problem


def test_advice_for_a_loader_without_a_datamodule_has_only_arguments_of_the_loader():
    settings = {"has_datamodule": False, "cache": None}
    reading = diagnose(made_report(stages={"read": 190.0}, settings=settings))[0]
    assert (reading.settings, "give the dataset a cache" in reading.remedy) == ({}, True)
    between = diagnose(made_report(wait=0.0, between=0.3, settings=settings))[0]
    assert (between.settings, "give lit_loader.DataLoader the device" in between.remedy) == ({}, True)
    assert "waiting for the device" in between.problem
    transfer = diagnose(made_report(wait=0.0, transfer=0.3, settings=settings))[0]
    assert transfer.settings == {"pin_memory": True}


def test_several_loaders_are_advised_the_workers_of_one():
    single = made_report(stages={"decode": 190.0}, cores=64)
    stats = add_stats(single.stats, replace(single.stats, wait_s=0.0))
    both = replace(single, stats=stats, settings=replace(single.settings, num_loaders=2))
    assert diagnose(single)[1].settings == diagnose(both)[1].settings == {"num_workers": 5}
    assert "for each of 2 loaders" in diagnose(both)[1].problem


def test_few_workers_are_raised_to_what_the_steps_need():
    # A batch takes 190 ms of a worker, and a step 50 ms: 3.8 workers and a reserve of a tenth.
    verdicts = diagnose(made_report(stages={"decode": 190.0}))
    assert [verdict.cause for verdict in verdicts] == ["decode", "few workers"]
    assert verdicts[1].settings == {"num_workers": 5}
    assert "pass num_workers=5" in verdicts[1].text()


def test_workers_that_compute_are_not_more_than_cores():
    assert diagnose(made_report(stages={"decode": 1900.0}, cores=4))[1].settings == {"num_workers": 4}
    # Without an accelerator the step keeps a core.
    inline = made_report(stages={"decode": 190.0}, workers=0, cores=2, accelerated=False)
    assert diagnose(inline)[1].settings == {"num_workers": 1}


def test_workers_that_wait_for_a_disk_may_be_more_than_cores():
    report = made_report(stages={"read": 1900.0}, cpu=190.0, cores=2)
    few_workers = diagnose(report)[1]
    assert few_workers.settings == {"num_workers": 16}
    assert "the steps need 42 workers, and 16 is the limit for 2 cores" in few_workers.problem


def test_memory_limits_the_number_of_workers():
    host = Resources(num_cores=16, has_accelerator=True, available_bytes=6 * 2**30)
    assert diagnose(made_report(stages={"decode": 1900.0}, host=host))[1].settings == {"num_workers": 6}


def test_full_cores_cannot_take_more_workers():
    report = made_report(stages={"decode": 190.0}, cores=2)
    assert causes(report) == ["decode", "CPU bound"]


def test_slow_steps_beside_the_workers_are_not_called_waiting():
    cache = {"cache": False}
    report = made_report(wait=0.03, stages=MOST, cores=2, free_step_s=0.04, main_cpu_s=120.0, settings=cache)
    (verdict,) = diagnose(report)
    assert verdict.cause == "slow steps"
    assert "steps take 2.4 times as long beside the workers, because they compete for cores" in verdict.problem
    assert verdict.settings == {"cache": True}
    assert "2.5 times as fast" in report.headroom_text()
    assert "3.0 ms of it waiting" in report.headroom_text()


def test_slow_steps_on_a_busy_host_make_the_headroom_unreliable():
    report = made_report(wait=0.0, stages=MOST, cores=4, other_cores=3.0, free_step_s=0.04)
    assert causes(report) == ["busy host"]
    assert "no figure here is reliable" in diagnose(report)[0].problem


@pytest.mark.parametrize("fields", [{"free_step_s": 0.095}, {"free_step_s": 0.04}, {}])
def test_steps_are_not_slow_without_a_difference_and_busy_cores(fields):
    assert causes(made_report(wait=0.0, stages=MOST, **fields)) == ["consumer"]


def test_headroom_stands_in_one_place():
    assert "faster" not in diagnose(made_report(wait=0.01))[0].problem


def test_transforms_that_wait_are_told_from_those_that_compute():
    waiting = diagnose(made_report(stages={"transform": 190.0}, cpu=10.0))[0]
    assert "they wait rather than compute" in waiting.problem
    assert "a core was busy for only 5% of the workers' time" in waiting.problem
    assert "rather" not in diagnose(made_report(stages={"transform": 190.0}))[0].problem
    # On full cores a low share is a lack of cores.
    full = made_report(stages={"transform": 190.0}, cpu=10.0, cores=2, main_cpu_s=180.0)
    assert "rather" not in diagnose(full)[0].problem


def test_busy_host_comes_first():
    report = made_report(stages={"decode": 190.0}, cores=4, other_cores=3.0)
    assert causes(report)[:2] == ["busy host", "decode"]
    assert "other processes kept 3.0 cores busy" in diagnose(report)[0].problem


def test_samples_that_need_no_core_do_not_wait_for_one():
    report = made_report(stages={"read": 190.0}, cpu=1.0, cores=4, other_cores=4.0, main_cpu_s=0.0)
    assert causes(report)[0] == "read"


def test_waiting_threads_are_no_proof_of_the_interpreter_lock():
    reading = made_report(stages={"read": 390.0}, workers=4, method="thread", cpu=10.0)
    assert causes(reading)[0] == "read"
    computing = made_report(stages={"decode": 390.0}, workers=4, method="thread", cpu=380.0)
    assert causes(computing)[0] == "decode"


def test_callbacks_between_steps_are_no_transfer_on_a_cpu():
    assert causes(made_report(wait=0.0, between=0.3, accelerated=False)) == ["consumer"]


def test_slow_rank_is_named_with_its_own_causes():
    ranks = [made_report(wait=0.01, rank=0), made_report(wait=0.4, rank=1, stages={"read": 190.0})]
    ranks += [made_report(wait=0.02, rank=2)]
    verdicts = diagnose(ranks[0], ranks=ranks)
    assert [verdict.cause for verdict in verdicts[:2]] == ["slow rank", "read"]
    assert "rank 1 waited for data for 40% of its time, and most other ranks for 2%" in verdicts[0].problem
    assert "rank 1 waited" in verdicts[1].problem


def test_ranks_that_wait_alike_have_no_slow_one():
    ranks = [made_report(wait=wait, rank=rank, stages={"read": 190.0}) for rank, wait in enumerate((0.4, 0.45))]
    assert causes(ranks[0], ranks=ranks)[0] == "read"


def test_larger_loss_comes_first():
    both = made_report(wait=0.1, transfer=0.3, stages={"read": 190.0})
    assert causes(both)[:2] == ["transfer", "read"]
    assert causes(made_report(wait=0.3, transfer=0.1, stages={"read": 190.0}))[0] == "read"


def test_threshold_decides_what_counts():
    report = made_report(wait=0.08, stages={"read": 190.0})
    assert causes(report, above=0.1) == ["consumer"]
    assert causes(report, above=0.05)[0] == "read"


def test_no_step_has_no_verdict():
    assert diagnose(made_report(steps=0)) == []


def test_headroom_is_measured_or_a_bound():
    bound = made_report(wait=0.2)
    assert bound.headroom == (pytest.approx(0.25), False)
    assert "25.0% faster (an upper bound: waiting took 20.0%" in bound.headroom_text()
    assert "more than 5.0 times as fast (an upper bound" in made_report(wait=0.8).headroom_text()
    measured = made_report(wait=0.0, free_step_s=0.096)
    assert measured.headroom == (pytest.approx(0.1 / 0.096 - 1), True)
    assert "no loader can make this run more than 4.2% faster (measured" in measured.headroom_text()


def test_report_is_json_and_text():
    report = made_report(stages=MOST)
    assert json.loads(json.dumps(report.as_dict()))["stats"]["stage_s"]["decode"] == 10.0
    lines = report.lines()
    assert lines[0] == ("1000 steps in 100.0 s: waiting for data 50.0%, transfer 0.0%, between steps 0.0%, step 50.0%")
    assert "decode 16.7%" in lines[1]
    assert lines[2] == "2 workers, 0.7 of 16 cores, queue 25% full"
    assert made_report(steps=1).lines()[0].startswith("1 step in ")


def test_settings_are_written_as_the_reader_writes_them():
    verdict = diagnose(made_report(stages={"read": 190.0}))[0]
    assert verdict.text().endswith("; pass cache=True")
    assert verdict.text(lambda name, value: f"datamodule.{name}=true").endswith("; pass datamodule.cache=true")
